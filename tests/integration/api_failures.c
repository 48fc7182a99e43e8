/* The outcome when something is wrong: a typed error that names the fault, in time, on every rank. */
#include "tests/integration/api_test.h"

/* ------------------------------------------------------------ ranks */

static void one_is_missing(struct rank *rank) {
  struct flight flight;
  rank->round_timeout_ms = 3000;
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank == 2) {
    rank_await(rank, 0, 3);
  } else {
    const uint64_t before = now_ms();
    flight_start(&flight, &plain_spec, rank, 2);
    const zenps_error_t *error = flight_expect_absent(&flight, rank, between_workers(), 2, SOON_MS);
    CHECK(now_ms() - before < SOON_MS);
    CHECK(error->n_missing == 1 && error->missing_ranks[0] == 2);
    CHECK_SAYS(error->text, "rank 2");
    flight_end(&flight, &plain_spec);
    atomic_fetch_add(&rank->words[0], 1);
  }
  if (rank->rank != 2) rank_await(rank, 0, 3);
  step_run(flight.tensor, &plain_spec, rank, 3); /* nothing is broken by it */
  rank_close(rank);
}

static void one_is_missing_ranks(struct rank *rank) {
  if (rank->rank == 3) { /* not one of the job: counts those that have failed */
    rank_await(rank, 0, 2);
    atomic_store(&rank->words[0], 3);
    return;
  }
  rank->world = 3;
  one_is_missing(rank);
}

static void test_missing_rank(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, one_is_missing_ranks, NULL, 0);
}

static void never_joins(struct rank *rank) {
  zenps_options_t options;
  zenps_job_t *job;
  if (rank->rank == 1) return;
  rank->join_timeout_ms = 2000;
  rank_options(rank, &options);
  const uint64_t before = now_ms();
  CHECK_STATUS(zenps_open(&options, &job), ZENPS_ERR_MISSING);
  CHECK(now_ms() - before < SOON_MS);
  CHECK_SAYS(zenps_last_error()->text, "1");
  CHECK_SAYS(zenps_last_error()->text, rank->job);
}

static void test_open_without_all(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, never_joins, NULL, 0);
}

static void taken(struct rank *rank) {
  if (rank->rank == 0) {
    rank->world = 1;
    rank_open(rank);
    atomic_store(&rank->words[0], 1);
    rank_await(rank, 1, 1);
    rank_close(rank);
    return;
  }
  zenps_options_t options;
  zenps_job_t *job;
  char pid[16];
  rank_await(rank, 0, 1);
  rank_options(rank, &options);
  options.rank = 0;
  options.world = 1;
  CHECK_STATUS(zenps_open(&options, &job), ZENPS_ERR_RANK_TAKEN);
  snprintf(pid, sizeof pid, "%d", (int)getpid() - 1);
  CHECK_SAYS(zenps_last_error()->text, "rank 0");
  atomic_store(&rank->words[1], 1);
}

static void test_rank_taken(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, taken, NULL, 0);
}

/* Two worlds under one name: the rank that comes second is told of both, the first waits in vain. One whose wait is
 * over before the other has come tries again. */
static void other_world(struct rank *rank) {
  zenps_options_t options;
  zenps_job_t *job;
  rank->join_timeout_ms = 3000;
  rank_options(rank, &options);
  options.world = rank->rank == 0 ? 2 : 7;
  zenps_status_t status;
  do {
    status = zenps_open(&options, &job);
    rank_moves(rank);
  } while (status == ZENPS_ERR_MISSING && atomic_load(&rank->words[1]) == 0);
  CHECK(status == ZENPS_ERR_SHAPE || status == ZENPS_ERR_MISSING);
  if (status == ZENPS_ERR_SHAPE) {
    CHECK_SAYS(zenps_last_error()->text, "7");
    CHECK_SAYS(zenps_last_error()->text, "2");
  }
  atomic_fetch_add(&rank->words[status == ZENPS_ERR_SHAPE], 1);
  rank_await(rank, 0, 1);
  rank_await(rank, 1, 1);
}

static void test_other_world(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, other_world, NULL, 0);
}

static void leaves(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &plain_spec, rank);
  if (rank->rank == 0) {
    rank_close(rank);
    return;
  }
  flight_start(&flight, &plain_spec, rank, 2);
  const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_CLOSED, 2, SOON_MS);
  CHECK_SAYS(error->text, "rank 0");
  flight_end(&flight, &plain_spec);
  rank_close(rank);
}

static void test_rank_leaves(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, leaves, NULL, 0);
}

static void cancels(struct rank *rank) {
  const struct spec *const spec = rank->arg ? rank->arg : &plain_spec;
  struct flight flight;
  rank_open(rank);
  flight.tensor = tensor_open(rank, "t", spec);
  if (rank->rank == 0) { /* before rank 1's push, or after it */
    flight_start(&flight, spec, rank, 1);
    CHECK_OK(zenps_cancel(flight.request));
    CHECK_OK(zenps_cancel(flight.request));
    atomic_fetch_add(&rank->words[1], 1);
    flight_expect_error(&flight, rank, ZENPS_ERR_CANCELED, 1, SOON_MS);
    flight_end(&flight, spec);
    rank_await(rank, 0, 2);
    step_run(flight.tensor, spec, rank, 2);
  } else {
    if (rank->rank == 2) rank_await(rank, 1, 1); /* so that the round cannot end before */
    flight_start(&flight, spec, rank, 1);
    const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_CANCELED, 1, SOON_MS);
    CHECK_SAYS(error->text, "rank 0");
    flight_end(&flight, spec);
    atomic_fetch_add(&rank->words[0], 1);
    step_run(flight.tensor, spec, rank, 2);
  }
  rank_close(rank);
}

static void test_cancel(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, cancels, NULL, 0);
}

/* Some stripes are announced, others not scanned. */
static void test_cancel_stripes(void **state) {
  (void)state;
  struct spec spec = {.rows = (2 << 20) + 20001, .width = 1, .dtype = ZENPS_F32, .density = 0.05};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.partitions = 18;
  ranks_run(cluster_shared(), 3, cancels, &spec, 0);
  spec.rows_out = true;
  ranks_run(cluster_shared(), 3, cancels, &spec, 0);
}

/* A request may be freed, and a job closed, with the operation in flight. */
static void gives_up(struct rank *rank) {
  struct flight flight;
  rank_open(rank);
  flight.tensor = tensor_open(rank, "t", &plain_spec);
  if (rank->rank == 0) {
    flight_start(&flight, &plain_spec, rank, 1);
    flight_end(&flight, &plain_spec);
  }
  rank_close(rank);
}

static void test_free_in_flight(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, gives_up, NULL, 0);
}

/* ------------------------------------------------------------ arguments */

static void shapes(struct rank *rank) {
  zenps_tensor_t *tensor;
  rank_open(rank);
  if (rank->rank == 0) {
    CHECK_OK(zenps_tensor_open(rank->zenps, "t", 100, 4, ZENPS_F32, NULL, &tensor));
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 5, ZENPS_F32, NULL, &tensor), ZENPS_ERR_SHAPE);
    atomic_store(&rank->words[0], 1);
    rank_await(rank, 1, 1);
  } else {
    rank_await(rank, 0, 1);
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 200, 4, ZENPS_F32, NULL, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "100");
    CHECK_SAYS(zenps_last_error()->text, "200");
    CHECK_SAYS(zenps_last_error()->text, "t");
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 4, ZENPS_F64, NULL, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "f32");
    CHECK_SAYS(zenps_last_error()->text, "f64");
    zenps_tensor_options_t options;
    ZENPS_TENSOR_OPTIONS_INIT(&options);
    options.codec = ZENPS_CODEC_PAPER;
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "codec auto");
    CHECK_SAYS(zenps_last_error()->text, "codec paper");
    options.codec = (zenps_codec_t)7;
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    options.codec = ZENPS_CODEC_AUTO;
    options.values = ZENPS_VALUES_F16;
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "values raw");
    CHECK_SAYS(zenps_last_error()->text, "values f16");
    options.values = ZENPS_VALUES_RAW;
    options.scheme = "ring";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "scheme balanced");
    CHECK_SAYS(zenps_last_error()->text, "scheme ring");
    options.op = ZENPS_OP_MAX;
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_UNSUPPORTED);
    options.op = ZENPS_OP_SUM;
    options.scheme = "ring:k=5";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "k is for oktopk, gtopk, topka, topkdsa, gaussiank, not for scheme ring");
    options.scheme = "oktopk";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "k or density");
    options.scheme = "rings";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_UNSUPPORTED);
    CHECK_SAYS(zenps_last_error()->text, "recursive-doubling");
    static const char *const unpartitioned[] = {"ring",     "agsparse",   "sparse-ps",
                                                "dense-ps", "omnireduce", "hierarchical:ring"};
    for (unsigned i = 0; i < sizeof unpartitioned / sizeof unpartitioned[0]; i++) {
      const bool nests = strchr(unpartitioned[i], ':');
      char text[64];
      snprintf(text, sizeof text, "%s%cpartitioner=hierarchical", unpartitioned[i], nests ? ',' : ':');
      options.scheme = text;
      CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor),
                   nests ? ZENPS_ERR_UNSUPPORTED : ZENPS_ERR_INVALID);
      CHECK_SAYS(zenps_last_error()->text, unpartitioned[i]);
      CHECK_SAYS(zenps_last_error()->text, nests ? "leave the option partitioner=hierarchical out"
                                                 : "partitioner is for balanced, hierarchical, not for scheme");
    }
    options.scheme = "dsar:bits=4,allgather=doubling";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "allgather is doubling and bits 4");
    options.scheme = "ring:allgather=doubling";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "allgather is for split-allgather");
    options.scheme = "agsparse:delta=2";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "delta is '2'");
    options.scheme = "ring";
    options.values = ZENPS_VALUES_QSGD4;
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_UNSUPPORTED);
    CHECK_SAYS(zenps_last_error()->text, "with scheme ring they must be raw");
    options.values = ZENPS_VALUES_RAW;
    options.scheme = "blueconnect:levels=3x2";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "product of the levels");
    options.scheme = NULL;
    options.values = (zenps_values_t)7;
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 100, 4, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "values 7");
    CHECK_OK(zenps_tensor_open(rank->zenps, "t", 100, 4, ZENPS_F32, NULL, &tensor));
    zenps_tensor_info_t info = {.struct_size = 0};
    CHECK_STATUS(zenps_tensor_info(tensor, &info), ZENPS_ERR_INVALID);
    info.struct_size = offsetof(zenps_tensor_info_t, seed); /* an older header's */
    info.seed = 77;
    CHECK_OK(zenps_tensor_info(tensor, &info));
    CHECK(info.rows == 100 && info.seed == 77);
    info.struct_size = sizeof info;
    CHECK_OK(zenps_tensor_info(tensor, &info));
    CHECK(info.rows == 100 && info.width == 4 && info.partitions == zenps_tensor_partitions(tensor));
    CHECK(info.block_bits == 0 && info.dtype == ZENPS_F32 && info.op == ZENPS_OP_SUM);
    CHECK(info.codec == ZENPS_CODEC_AUTO && info.values == ZENPS_VALUES_RAW);
    atomic_store(&rank->words[1], 1);
  }
  rank_close(rank);
}

static void test_shapes(void **state) {
  (void)state;
  if (between_workers()) skip(); /* its ranks do not open the tensor together */
  ranks_run(cluster_shared(), 2, shapes, NULL, 0);
}

static void arguments(struct rank *rank) {
  zenps_tensor_t *tensor;
  zenps_request_t *request;
  zenps_grad_t in, out;
  float values[20] = {0};
  int64_t rows[2] = {3, 10};
  rank_open(rank);
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "@x", 10, 2, ZENPS_F32, NULL, &tensor), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "", 10, 2, ZENPS_F32, NULL, &tensor), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 0, 2, ZENPS_F32, NULL, &tensor), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 10, 2, (zenps_dtype_t)3, NULL, &tensor), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_tensor_open(NULL, "t", 10, 2, ZENPS_F32, NULL, &tensor), ZENPS_ERR_INVALID);
  CHECK_OK(zenps_tensor_open(rank->zenps, "t", 10, 2, ZENPS_F32, NULL, &tensor));
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_DENSE;
  in.values = values;
  CHECK_STATUS(zenps_allreduce(tensor, 1, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "out->values");
  out.values = values;
  in.struct_size = 0;
  CHECK_STATUS(zenps_allreduce(tensor, 1, &in, &out, &request), ZENPS_ERR_INVALID);
  ZENPS_GRAD_INIT(&in);
  in.layout = ZENPS_ROWS;
  in.nnz = 2;
  in.row_ids = rows;
  CHECK_STATUS(zenps_allreduce(tensor, 1, &in, &out, &request), ZENPS_ERR_INVALID);
  float row_values[4] = {1, 2, 3, 4};
  in.values = row_values;
  /* A row that the tensor does not have is found by the scan. */
  CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, SOON_MS), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_request_error(request)->text, "10");
  zenps_request_free(request);
  CHECK_STATUS(zenps_broadcast(rank->zenps, values, 4, 1), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_wait(NULL, 0), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_barrier(NULL), ZENPS_ERR_INVALID);
  rank_close(rank);
}

static void test_arguments(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 1, arguments, NULL, 0);
}

static void small_arrays(struct rank *rank) {
  const struct spec spec = {.rows = 1000, .width = 1, .dtype = ZENPS_F32, .rows_out = true, .density = 0.5};
  struct flight flight;
  int64_t rows[1000];
  float values[1000];
  rank_open(rank);
  flight.tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 1, &flight.in);
  ZENPS_GRAD_INIT(&flight.out);
  flight.out.layout = ZENPS_ROWS;
  flight.out.row_ids = rows;
  flight.out.values = values;
  flight.out.capacity = rank->rank == 0 ? 10 : 1000;
  CHECK_OK(zenps_allreduce(flight.tensor, 1, &flight.in, &flight.out, &flight.request));
  if (rank->rank == 0) { /* the others have their result */
    const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_TRUNCATED, 1, SOON_MS);
    CHECK(error->needed > 500 && error->needed <= 1000);
  } else {
    CHECK_OK(zenps_wait(flight.request, SOON_MS));
    out_check(&spec, 2, 1, &flight.out);
  }
  zenps_request_free(flight.request);
  grad_free(&flight.in);
  step_run(flight.tensor, &spec, rank, 2);
  rank_close(rank);
}

static void test_truncated(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, small_arrays, NULL, 0);
}

const struct CMUnitTest api_failure_tests[] = {
    cmocka_unit_test(test_missing_rank),   cmocka_unit_test(test_open_without_all), cmocka_unit_test(test_rank_taken),
    cmocka_unit_test(test_other_world),    cmocka_unit_test(test_rank_leaves),      cmocka_unit_test(test_cancel),
    cmocka_unit_test(test_cancel_stripes), cmocka_unit_test(test_free_in_flight),   cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_arguments),      cmocka_unit_test(test_truncated),
};
const size_t n_api_failure_tests = sizeof api_failure_tests / sizeof api_failure_tests[0];
