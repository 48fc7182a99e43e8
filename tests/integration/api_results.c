/* Results that are lists of rows: how long they live, who owns them, and in which order they are; under every scheme.
 */
#include <pthread.h>

#include "common/plan/schemes.h"
#include "tests/integration/api_test.h"

enum { WORLD = 2 };

static const struct spec list_spec = {
    .rows = 5000, .width = 2, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .repeats = 2, .density = 0.2};

/* As flight_end(), of a flight whose request is gone. */
static void arrays_end(const struct spec *spec, struct flight *flight) {
  flight->request = NULL;
  flight_end(flight, spec);
}

/* ------------------------------------------------------------ requests after their job */

static void kept(struct rank *rank) {
  enum { FLIGHTS = 3 };
  struct flight flights[FLIGHTS];
  zenps_request_t *requests[FLIGHTS];
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  flight_open(&flights[0], &list_spec, rank);
  for (unsigned i = 0; i < FLIGHTS; i++) {
    flights[i].tensor = flights[0].tensor;
    flight_start(&flights[i], &list_spec, rank, 2 + i);
    requests[i] = flights[i].request;
  }
  CHECK_OK(zenps_wait_all(requests, FLIGHTS, SOON_MS));
  CHECK_OK(zenps_request_take(requests[1], &flights[1].out));
  zenps_request_free(requests[1]);
  rank_close(rank);
  for (unsigned i = 0; i < FLIGHTS; i++) out_check(&list_spec, WORLD, 2 + i, &flights[i].out);
  zenps_rows_free(&flights[1].out);
  arrays_end(&list_spec, &flights[1]);
  CHECK_OK(zenps_wait(requests[0], -1));
  CHECK_OK(zenps_request_stats(requests[0], &stats));
  CHECK(stats.nnz_out == flights[0].out.nnz);
  CHECK_OK(zenps_request_take(requests[2], &flights[2].out));
  for (unsigned i = 0; i < FLIGHTS; i += 2) flight_end(&flights[i], &list_spec);
  zenps_rows_free(&flights[2].out);
}

static void test_results_outlive_the_job(void **state) {
  (void)state;
  ranks_run(cluster_shared(), WORLD, kept, NULL, 0);
}

/* Rank 1 never comes: the job is closed with the request in flight. */
static void closed_in_flight(struct rank *rank) {
  struct flight flight;
  flight_open(&flight, &list_spec, rank);
  if (rank->rank == 0) {
    flight_start(&flight, &list_spec, rank, 2);
    rank_close(rank);
    const zenps_error_t *error = flight_expect_error(&flight, rank, ZENPS_ERR_CLOSED, 2, 0);
    CHECK_OK(zenps_cancel(flight.request));
    CHECK(zenps_request_error(flight.request) == error);
    flight_end(&flight, &list_spec);
    atomic_store(&rank->words[0], 1);
  } else {
    rank_await(rank, 0, 1);
    rank_close(rank);
  }
}

static void test_close_in_flight(void **state) {
  (void)state;
  ranks_run(cluster_shared(), WORLD, closed_in_flight, NULL, 0);
}

struct waiter {
  zenps_request_t *request;
  atomic_bool is_there;
  zenps_status_t status;
  zenps_error_t error;
};

static void *wait_for_it(void *ctx) {
  struct waiter *waiter = ctx;
  atomic_store(&waiter->is_there, true);
  waiter->status = zenps_wait(waiter->request, -1);
  waiter->error = *zenps_last_error();
  zenps_request_free(waiter->request);
  return NULL;
}

static void closed_under_a_wait(struct rank *rank) {
  struct flight flight;
  struct waiter waiter = {0};
  pthread_t thread;
  flight_open(&flight, &list_spec, rank);
  if (rank->rank == 0) {
    flight_start(&flight, &list_spec, rank, 2);
    waiter.request = flight.request;
    CHECK(pthread_create(&thread, NULL, wait_for_it, &waiter) == 0);
    while (!atomic_load(&waiter.is_there)) usleep(1000);
    usleep(20000); /* in zenps_wait(), most likely */
    rank_close(rank);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_STATUS(waiter.status, ZENPS_ERR_CLOSED);
    CHECK_SAYS(waiter.error.text, "tensor t, step 2");
    arrays_end(&list_spec, &flight);
    atomic_store(&rank->words[0], 1);
  } else {
    rank_await(rank, 0, 1);
    rank_close(rank);
  }
}

static void test_close_under_a_wait(void **state) {
  (void)state;
  ranks_run(cluster_shared(), WORLD, closed_under_a_wait, NULL, 0);
}

/* ------------------------------------------------------------ under every scheme */

enum { KEPT = 40 }; /* rows, by schemes that keep only the greatest */

static void check_ascends(const zenps_grad_t *out) {
  CHECK(out->nnz > 0);
  for (uint64_t i = 0; i < out->nnz; i++)
    CHECK(out->row_ids[i] >= (i == 0 ? 0 : out->row_ids[i - 1] + 1) && out->row_ids[i] < (int64_t)list_spec.rows);
}

static void check_same(const zenps_grad_t *got, const zenps_grad_t *wanted) {
  CHECK(got->nnz == wanted->nnz && got->contributors == wanted->contributors);
  CHECK(memcmp(got->row_ids, wanted->row_ids, wanted->nnz * sizeof *wanted->row_ids) == 0);
  CHECK(memcmp(got->values, wanted->values, wanted->nnz * spec_row_bytes(&list_spec)) == 0);
}

static void fetch(zenps_request_t *request, zenps_grad_t *out, const zenps_grad_t *wanted, bool ours) {
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  CHECK_STATUS(zenps_wait(request, SOON_MS), ZENPS_ERR_TRUNCATED);
  CHECK(zenps_request_error(request)->needed == wanted->nnz);
  CHECK_SAYS(zenps_request_error(request)->text, "zenps_request_fetch()");
  CHECK_STATUS(zenps_request_fetch(request, out), ZENPS_ERR_TRUNCATED);
  if (ours)
    out->row_ids = out->values = NULL;
  else
    out->capacity = wanted->nnz;
  CHECK_OK(zenps_request_fetch(request, out));
  CHECK_OK(zenps_test(request));
  CHECK(zenps_request_error(request) == NULL);
  CHECK_OK(zenps_request_stats(request, &stats));
  CHECK(stats.nnz_out == wanted->nnz);
}

/* The same step of two tensors: in arrays of the library's, and in the caller's, which are too small on rank 0. */
static void scheme_step(const struct rank *rank, zenps_tensor_t *tensor, zenps_tensor_t *twin, uint64_t step) {
  const bool truncated = rank->rank == 0 && step > 0, ours = step == 2;
  zenps_grad_t in, out, wanted;
  zenps_request_t *request, *twin_request;
  grad_make(&list_spec, rank->rank, step, &in);
  out_make(&list_spec, &in, &wanted);
  CHECK_OK(zenps_allreduce(twin, step, &in, &wanted, &twin_request));
  CHECK_OK(zenps_wait(twin_request, SOON_MS));
  check_ascends(&wanted);
  struct spec own = list_spec;
  own.own_arrays = true;
  out_make(&own, &in, &out);
  int64_t *const ids = out.row_ids;
  void *const values = out.values;
  if (truncated) out.capacity = wanted.nnz - 1;
  CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
  if (truncated)
    fetch(request, &out, &wanted, ours);
  else
    CHECK_OK(zenps_wait(request, SOON_MS));
  check_same(&out, &wanted);
  if (truncated && ours) {
    CHECK_OK(zenps_request_take(request, &out));
    check_same(&out, &wanted);
    zenps_rows_free(&out);
  }
  zenps_request_free(request);
  zenps_request_free(twin_request);
  free(ids);
  free(values);
  grad_free(&in);
}

/* Two ranks a host, so that schemes which look at hosts have something to do. */
static void every_scheme(struct rank *rank) {
  char host[16], twin[64];
  snprintf(host, sizeof host, "host%d", rank->rank / 2);
  setenv("ZENPS_HOST", host, 1);
  rank_open(rank);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    struct spec spec = list_spec;
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    const bool lossy = zps_plan_scheme_lossy((enum zps_plan_scheme)i);
    char text[40];
    snprintf(text, sizeof text, lossy ? "%s:k=%d" : "%s", zps_plan_scheme_names[i], KEPT);
    spec.options.scheme = text;
    snprintf(twin, sizeof twin, "twin of %s", spec.options.scheme);
    zenps_tensor_t *const tensors[] = {tensor_open(rank, spec.options.scheme, &spec), tensor_open(rank, twin, &spec)};
    for (uint64_t step = 0; step < 3; step++) scheme_step(rank, tensors[0], tensors[1], step);
  }
  rank_close(rank);
}

static void test_results_of_every_scheme(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, every_scheme, NULL, 0);
}

/* ------------------------------------------------------------ the log */

static void count_line(void *ctx, int level, const char *component, const char *text) {
  (void)level;
  CHECK(component != NULL && text != NULL);
  atomic_fetch_add((atomic_uint *)ctx, 1);
}

/* At level trace, every thread of the library writes lines. */
static void logs(struct rank *rank) {
  static atomic_uint first, second;
  struct flight flight;
  setenv("ZENPS_LOG_LEVEL", "trace", 1);
  zenps_options_t options;
  rank_options(rank, &options);
  options.log = count_line;
  options.log_ctx = &first;
  CHECK_OK(zenps_open(&options, &rank->zenps));
  flight.tensor = tensor_open(rank, "t", &list_spec);
  for (uint64_t step = 0; step < 3; step++) step_run(flight.tensor, &list_spec, rank, step);
  CHECK_OK(zenps_set_log(rank->zenps, count_line, &second));
  const unsigned n_first = atomic_load(&first);
  CHECK(n_first > 0);
  for (uint64_t step = 3; step < 6; step++) step_run(flight.tensor, &list_spec, rank, step);
  CHECK(atomic_load(&first) == n_first);
  flight_start(&flight, &list_spec, rank, 6);
  rank_close(rank);
  const unsigned n_second = atomic_load(&second);
  CHECK(n_second > 0);
  flight_end(&flight, &list_spec);
  zenps_job_t *job;
  options.job = "no such coordinator";
  options.coordinator = "127.0.0.1:1";
  options.join_timeout_ms = 100;
  options.log = NULL;
  setenv("ZENPS_LOG_LEVEL", "error", 1);
  CHECK(zenps_open(&options, &job) != ZENPS_OK); /* lines of another job do not come, either */
  CHECK(atomic_load(&first) == n_first && atomic_load(&second) == n_second);
}

static void test_log(void **state) {
  (void)state;
  ranks_run(cluster_shared(), WORLD, logs, NULL, 0);
}

const struct CMUnitTest api_result_tests[] = {
    cmocka_unit_test(test_results_outlive_the_job),
    cmocka_unit_test(test_close_in_flight),
    cmocka_unit_test(test_close_under_a_wait),
    cmocka_unit_test(test_results_of_every_scheme),
    cmocka_unit_test(test_log),
};
const size_t n_api_result_tests = sizeof api_result_tests / sizeof api_result_tests[0];
