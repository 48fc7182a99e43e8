/* Tensors whose scheme is chosen while they are used: the results are the same for any choice. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { FLIGHT = 4, STEPS = 64 };

/* Steps as of a run that goes on where another one ended, some in flight at once; after half of them the gradients are
 * another kind, so that another scheme may be taken. */
static void check_counts(const zenps_tensor_t *tensor, const zenps_request_t *request) {
  const uint32_t n = zenps_tensor_partitions(tensor);
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  uint32_t *const counts = calloc(n + 1, sizeof *counts);
  uint64_t sum = 0;
  CHECK(counts != NULL);
  counts[n] = 77; /* more than a step may fill, under any scheme */
  CHECK_OK(zenps_request_partition_nnz(request, counts, NULL));
  CHECK_OK(zenps_request_stats(request, &stats));
  for (uint32_t p = 0; p < n; p++) sum += counts[p];
  CHECK(counts[n] == 77);
  CHECK(sum == (strcmp(stats.scheme, "balanced") == 0 ? stats.nnz_in : 0));
  free(counts);
}

static void steps(struct rank *rank) {
  const struct spec *specs = rank->arg;
  zenps_grad_t in[FLIGHT], out[FLIGHT];
  zenps_request_t *requests[FLIGHT];
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &specs[0]);
  zenps_tensor_info_t info = {.struct_size = sizeof info};
  CHECK_OK(zenps_tensor_info(tensor, &info));
  CHECK(strcmp(info.scheme, "auto") == 0);
  CHECK(tensor_open(rank, "t", &specs[0]) == tensor);
  for (uint64_t step = 100000; step < 100000 + 2 * STEPS; step += FLIGHT) {
    const struct spec *spec = &specs[step >= 100000 + STEPS];
    for (unsigned i = 0; i < FLIGHT; i++) {
      grad_make(spec, rank->rank, step + i, &in[i]);
      out_make(spec, &in[i], &out[i]);
    }
    for (unsigned i = 0; i < FLIGHT; i++) {
      const unsigned at = (i + (unsigned)rank->rank) % FLIGHT; /* ranks start them in different orders */
      CHECK_OK(zenps_allreduce(tensor, step + at, &in[at], &out[at], &requests[at]));
    }
    for (unsigned i = 0; i < FLIGHT; i++) {
      CHECK_OK(zenps_wait(requests[i], -1));
      check_counts(tensor, requests[i]);
      out_check(spec, rank->world, step + i, &out[i]);
      zenps_request_free(requests[i]);
      out_free(spec, &in[i], &out[i]);
      grad_free(&in[i]);
    }
  }
  CHECK_OK(zenps_barrier(rank->zenps)); /* a rank that leaves takes its undelivered messages with it */
  rank_close(rank);
}

/* Under any order another scheme may round otherwise: values whose sums are exact in every order. */
static void test_automatic_any_order(void **state) {
  (void)state;
  struct spec specs[2] = {{.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.003, .few_values = true},
                          {.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.9, .few_values = true}};
  ZENPS_TENSOR_OPTIONS_INIT(&specs[0].options);
  specs[0].options.scheme = "auto:any";
  specs[1].options = specs[0].options;
  ranks_run(cluster_shared(), 4, steps, specs, 0);
  specs[0].options.scheme = "auto:recursive-doubling,hierarchical"; /* each of them, and no other */
  specs[1].options = specs[0].options;
  ranks_run(cluster_shared(), 4, steps, specs, 0);
}

static void test_automatic(void **state) {
  (void)state;
  struct spec specs[2] = {{.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.003},
                          {.rows = 20011, .width = 2, .dtype = ZENPS_F32, .density = 0.9}};
  ZENPS_TENSOR_OPTIONS_INIT(&specs[0].options);
  specs[0].options.scheme = "auto";
  specs[1].options = specs[0].options;
  ranks_run(cluster_shared(), 3, steps, specs, 0);
  const struct spec first = specs[0];
  specs[0] = specs[1];
  specs[1] = first;
  ranks_run(cluster_shared(), 4, steps, specs, 0);
  for (unsigned i = 0; i < 2; i++) specs[i].rows_in = specs[i].rows_out = true;
  ranks_run(cluster_shared(), 3, steps, specs, 0);
}

static void refusals(struct rank *rank) {
  struct spec spec = {.rows = 100, .width = 1, .dtype = ZENPS_F32};
  zenps_tensor_t *tensor;
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  rank_open(rank);
  spec.options.scheme = "auto:balanced,fast";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "no scheme 'fast'");
  spec.options.scheme = "automatic";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_UNSUPPORTED);
  spec.options.scheme = "auto:agsparse";
  CHECK_OK(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor));
  spec.options.scheme = "auto";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_SHAPE);
  CHECK_SAYS(zenps_last_error()->text, "auto:agsparse");
  spec.options.scheme = "auto:balanced,agsparse,partitioner=hierarchical"; /* agsparse has no partitions */
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "u", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "rows are dealt to partitions for balanced alone");
  CHECK_SAYS(zenps_last_error()->text, "auto:balanced,agsparse");
  spec.options.scheme = "auto:any";
  spec.options.order = ZENPS_ORDER_RANKS;
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "v", 100, 1, ZENPS_F32, &spec.options, &tensor), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "contradict each other");
  spec.options.order = 0;
  spec.options.scheme = "auto:balanced,partitioner=hierarchical";
  CHECK_OK(zenps_tensor_open(rank->zenps, "u", 100, 1, ZENPS_F32, &spec.options, &tensor));
  rank_close(rank);
}

static void test_automatic_refusals(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, refusals, NULL, 0);
}

/* ------------------------------------------------------------ the scheme of a step is not known yet */

static const struct spec auto_spec = {.rows = 5000,
                                      .width = 2,
                                      .dtype = ZENPS_F32,
                                      .density = 0.01,
                                      .rows_in = true,
                                      .rows_out = true,
                                      .options = {.struct_size = sizeof(zenps_tensor_options_t), .scheme = "auto"}};

struct call {
  zenps_grad_t in, out;
  zenps_request_t *request;
};

static void call_make(struct rank *rank, zenps_tensor_t *tensor, uint64_t step, struct call *call) {
  grad_make(&auto_spec, rank->rank, step, &call->in);
  out_make(&auto_spec, &call->in, &call->out);
  zenps_grad_t passing = call->in; /* the struct need not live as long as its arrays */
  CHECK_OK(zenps_allreduce(tensor, step, &passing, &call->out, &call->request));
  memset(&passing, 0xa5, sizeof passing);
}

static void call_free(struct call *call) {
  zenps_request_free(call->request);
  out_free(&auto_spec, &call->in, &call->out);
  grad_free(&call->in);
}

static void call_check(const struct rank *rank, uint64_t step, struct call *call) {
  CHECK_OK(zenps_wait(call->request, -1));
  out_check(&auto_spec, rank->world, step, &call->out);
  call_free(call);
}

enum { ARRIVED, GOES_ON }; /* words */

/* Returns on all ranks when the coordinator has stopped. */
static void coordinator_stops(struct rank *rank) {
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 0) {
    process_stop(rank->cluster->coordinator);
    atomic_store(&rank->words[GOES_ON], 1);
  }
  rank_await(rank, GOES_ON, 1);
}

/* The first rank lets the coordinator go on when all are here. */
static void coordinator_goes_on(struct rank *rank) {
  atomic_fetch_add(&rank->words[ARRIVED], 1);
  if (rank->rank == 0) {
    rank_await(rank, ARRIVED, (unsigned)rank->world);
    CHECK(kill(rank->cluster->coordinator, SIGCONT) == 0);
    atomic_store(&rank->words[GOES_ON], 2);
  }
  rank_await(rank, GOES_ON, 2);
}

/* Of a coordinator that no other test needs. */
static void run_apart(const rank_fn *fns, unsigned n, int world) {
  struct cluster cluster;
  cluster_start(&cluster, 2);
  for (unsigned i = 0; i < n; i++) ranks_run(&cluster, world, fns[i], NULL, 0);
  cluster_stop(&cluster);
}

/* Calls return although nobody answers, and what can be told to be wrong is told at once. */
static void calls_return(struct rank *rank) {
  struct call calls[FLIGHT];
  zenps_request_t *request;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &auto_spec), *const other = tensor_open(rank, "u", &auto_spec);
  coordinator_stops(rank);
  for (unsigned i = 0; i < FLIGHT; i++) call_make(rank, i % 2 ? other : tensor, i / 2, &calls[i]);
  for (unsigned i = 0; i < FLIGHT; i++) CHECK(zenps_test(calls[i].request) == ZENPS_IN_PROGRESS);
  CHECK_STATUS(zenps_allreduce(tensor, 1, &calls[0].in, &calls[0].out, &request), ZENPS_ERR_BUSY);
  CHECK_SAYS(zenps_last_error()->text, "tensor t: step 1 is in flight here");
  CHECK_STATUS(zenps_tensor_close(tensor), ZENPS_ERR_BUSY);
  CHECK_SAYS(zenps_last_error()->text, "tensor t: 2 of its operations are in flight");
  coordinator_goes_on(rank);
  for (unsigned i = 0; i < FLIGHT; i++) call_check(rank, i / 2, &calls[i]);
  CHECK_OK(zenps_tensor_close(tensor));
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

static void test_automatic_calls_return(void **state) {
  (void)state;
  run_apart((const rank_fn[]){calls_return}, 1, 3);
}

/* More than may be in flight, which the first ones to come are not kept from. */
static void too_many(struct rank *rank) {
  enum { MOST = 32 };
  static struct call calls[MOST];
  zenps_request_t *request;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &auto_spec);
  coordinator_stops(rank);
  for (unsigned i = 0; i < MOST; i++) call_make(rank, tensor, i, &calls[i]);
  CHECK_STATUS(zenps_allreduce(tensor, MOST, &calls[0].in, &calls[0].out, &request), ZENPS_ERR_AGAIN);
  CHECK_SAYS(zenps_last_error()->text, "32 steps are in flight");
  coordinator_goes_on(rank);
  for (unsigned i = 0; i < MOST; i++) call_check(rank, i, &calls[i]);
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

/* Nobody says so in time: the call ends with a timeout, and the next one is as if it had not been. */
static void no_answer(struct rank *rank) {
  struct call call;
  rank->round_timeout_ms = 1000;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &auto_spec);
  coordinator_stops(rank);
  call_make(rank, tensor, 0, &call);
  CHECK_STATUS(zenps_wait(call.request, -1), ZENPS_ERR_TIMEOUT);
  CHECK_SAYS(zenps_request_error(call.request)->text, "s its ranks have not agreed on the scheme that it runs as");
  CHECK_SAYS(zenps_request_error(call.request)->text, "tensor t, step 0: after ");
  CHECK(zenps_request_error(call.request)->step == 0 && strcmp(zenps_request_error(call.request)->tensor, "t") == 0);
  call_free(&call);
  coordinator_goes_on(rank);
  for (uint64_t step = 1; step < 4; step++) {
    call_make(rank, tensor, step, &call);
    call_check(rank, step, &call);
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

/* One rank gives its call up before anybody knows the scheme: all hear of it, as of any round. */
static void canceled(struct rank *rank) {
  struct call call;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &auto_spec);
  coordinator_stops(rank);
  call_make(rank, tensor, 0, &call);
  if (rank->rank == 1) CHECK_OK(zenps_cancel(call.request));
  coordinator_goes_on(rank);
  CHECK_STATUS(zenps_wait(call.request, -1), ZENPS_ERR_CANCELED);
  call_free(&call);
  call_make(rank, tensor, 1, &call);
  call_check(rank, 1, &call);
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

/* The job goes while calls wait: they are done, and have no result. */
static void closed(struct rank *rank) {
  struct call call;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &auto_spec);
  coordinator_stops(rank);
  call_make(rank, tensor, 0, &call);
  zenps_close(rank->zenps);
  CHECK_STATUS(zenps_wait(call.request, -1), ZENPS_ERR_CLOSED);
  CHECK_SAYS(zenps_request_error(call.request)->text, "the job was closed here, before the round began");
  call_free(&call);
  coordinator_goes_on(rank);
}

static void test_automatic_too_many(void **state) {
  (void)state;
  run_apart((const rank_fn[]){too_many}, 1, 2);
}

static void test_automatic_without_an_answer(void **state) {
  (void)state;
  run_apart((const rank_fn[]){no_answer, canceled, closed}, 3, 3);
}

/* The coordinator dies, and no other comes: what runs goes on, for as long as one likes. */
static void without(struct rank *rank) {
  enum { BEFORE = 10, AFTER = 130 };
  struct call calls[FLIGHT];
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &auto_spec);
  CHECK_OK(zenps_barrier(rank->zenps));
  for (uint64_t step = 0; step < BEFORE + AFTER; step++) {
    if (step == BEFORE && rank->rank == 0) CHECK(kill(rank->cluster->coordinator, SIGKILL) == 0);
    if (step >= FLIGHT) call_check(rank, step - FLIGHT, &calls[step % FLIGHT]);
    call_make(rank, tensor, step, &calls[step % FLIGHT]);
  }
  for (uint64_t step = BEFORE + AFTER - FLIGHT; step < BEFORE + AFTER; step++)
    call_check(rank, step, &calls[step % FLIGHT]);
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

static void test_automatic_without_a_coordinator(void **state) {
  (void)state;
  run_apart((const rank_fn[]){without}, 1, 3);
}

const struct CMUnitTest api_automatic_tests[] = {
    cmocka_unit_test(test_automatic),
    cmocka_unit_test(test_automatic_any_order),
    cmocka_unit_test(test_automatic_refusals),
    cmocka_unit_test(test_automatic_calls_return),
    cmocka_unit_test(test_automatic_too_many),
    cmocka_unit_test(test_automatic_without_an_answer),
    cmocka_unit_test(test_automatic_without_a_coordinator),
};
const size_t n_api_automatic_tests = sizeof api_automatic_tests / sizeof api_automatic_tests[0];
