/* Push and pull apart, reduce-scatter: against the same sums by allreduce. */
#include "tests/integration/api_test.h"

enum { ROWS = 5000, WIDTH = 3, STEPS = 6, MANY_STEPS = 12 };

static const struct spec dense = {
    .rows = ROWS, .width = WIDTH, .dtype = ZENPS_F32, .density = 0.05, .odd_values = true};
static const struct spec listed = {
    .rows = ROWS, .width = WIDTH, .dtype = ZENPS_F64, .rows_in = true, .rows_out = true, .repeats = 3, .density = 0.1};

static size_t bytes_of_row(const struct spec *spec) {
  return spec->width * (spec->dtype == ZENPS_F32 ? 4u : 8u);
}

/* All rows of the step's sum, by another tensor's allreduce. */
static void *whole_sum(zenps_tensor_t *other, const struct spec *spec, const struct rank *rank, uint64_t step) {
  zenps_grad_t in, out;
  zenps_request_t *request;
  struct spec plain = *spec;
  plain.rows_out = false;
  grad_make(&plain, rank->rank, step, &in);
  out_make(&plain, &in, &out);
  CHECK_OK(zenps_allreduce(other, step, &in, &out, &request));
  request_wait_ok(request);
  out_check(&plain, rank->world, step, &out);
  grad_free(&in);
  return out.values;
}

static void check_rows(const struct spec *spec, const void *whole, const zenps_grad_t *out, uint64_t first,
                       uint64_t count) {
  const size_t each = bytes_of_row(spec);
  for (uint64_t i = 0; i < out->nnz; i++) {
    const uint64_t row = (uint64_t)out->row_ids[i];
    CHECK(row >= first && row < first + count && (i == 0 || out->row_ids[i - 1] < out->row_ids[i]));
    CHECK(memcmp((const char *)out->values + i * each, (const char *)whole + row * each, each) == 0);
  }
}

/* ------------------------------------------------------------ what comes back */

static void push_and_pull(struct rank *rank, const struct spec *spec, bool pulls_first) {
  zenps_tensor_t *tensor = tensor_open_served(rank, pulls_first ? "first" : "last", spec);
  zenps_request_t *pushes[STEPS], *pulls[STEPS];
  zenps_grad_t in[STEPS], out[STEPS];
  for (uint64_t i = 0; i < STEPS; i++) {
    grad_make(spec, rank->rank, i, &in[i]);
    out_make(spec, &in[i], &out[i]);
    if (pulls_first) CHECK_OK(zenps_pull(tensor, i, NULL, &out[i], &pulls[i]));
    CHECK_OK(zenps_push(tensor, i, &in[i], &pushes[i]));
    if (!pulls_first) CHECK_OK(zenps_pull(tensor, i, NULL, &out[i], &pulls[i]));
  }
  for (uint64_t k = 0; k < STEPS; k++) {
    const uint64_t i = STEPS - 1 - k;
    CHECK_OK(zenps_wait(pushes[i], SOON_MS));
    CHECK_OK(zenps_wait(pulls[i], SOON_MS));
    out_check(spec, rank->world, i, &out[i]);
    zenps_request_free(pushes[i]);
    zenps_request_free(pulls[i]);
    out_free(spec, &in[i], &out[i]);
    grad_free(&in[i]);
  }
}

static void pushes_and_pulls(struct rank *rank) {
  rank_open(rank);
  push_and_pull(rank, &dense, false);
  push_and_pull(rank, &dense, true);
  rank_close(rank);
}

static void pushes_and_pulls_lists(struct rank *rank) {
  rank_open(rank);
  push_and_pull(rank, &listed, false);
  push_and_pull(rank, &listed, true);
  rank_close(rank);
}

static void test_push_and_pull(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, pushes_and_pulls, NULL, 0);
  ranks_run(cluster_shared(), 4, pushes_and_pulls_lists, NULL, 0);
}

/* Each rank's even share, as rows and as an array of as many. */
static void scatter(struct rank *rank, const struct spec *spec) {
  const size_t each = bytes_of_row(spec);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", spec), *other = tensor_open_served(rank, "other", spec);
  for (uint64_t step = 0; step < STEPS; step++) {
    void *whole = whole_sum(other, spec, rank, step);
    const uint64_t first = ROWS * (uint64_t)rank->rank / (uint64_t)rank->world;
    const uint64_t count = ROWS * (uint64_t)(rank->rank + 1) / (uint64_t)rank->world - first;
    const zenps_rows_t mine = ZENPS_ROWS_RANGE(first, count);
    zenps_request_t *request;
    zenps_grad_t in, out;
    grad_make(spec, rank->rank, step, &in);
    ZENPS_GRAD_INIT(&out);
    out.layout = step % 2 ? ZENPS_DENSE : ZENPS_ROWS;
    if (step % 2) out.values = malloc(count * each);
    CHECK_OK(zenps_reduce_scatter(tensor, step, &in, &mine, &out, &request));
    CHECK_OK(zenps_wait(request, SOON_MS));
    if (step % 2)
      CHECK(memcmp(out.values, (char *)whole + first * each, count * each) == 0);
    else
      check_rows(spec, whole, &out, first, count);
    zenps_request_free(request);
    if (step % 2) free(out.values);
    grad_free(&in);
    free(whole);
  }
}

static void scatters(struct rank *rank) {
  struct spec wide = dense;
  wide.odd_values = false; /* their bits are compared */
  rank_open(rank);
  scatter(rank, &wide);
  rank_close(rank);
}

static void scatters_lists(struct rank *rank) {
  rank_open(rank);
  scatter(rank, &listed);
  rank_close(rank);
}

static void test_reduce_scatter(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, scatters, NULL, 0);
  ranks_run(cluster_shared(), 4, scatters_lists, NULL, 0);
}

/* Rows by name, in any order, some twice; and of a step that other ranks scatter or allreduce. */
static void pulls_names(struct rank *rank) {
  enum { N = 1500 };
  static int64_t names[N];
  const size_t each = bytes_of_row(&listed);
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &listed), *other = tensor_open_served(rank, "other", &listed);
  for (uint64_t i = 0; i < N; i++) names[i] = (int64_t)((i * 7919 + (uint64_t)rank->rank * 13) % (ROWS / 2));
  const zenps_rows_t rows = ZENPS_ROWS_LIST(names, N), none = ZENPS_ROWS_LIST(names, 0);
  for (uint64_t step = 0; step < STEPS; step++) {
    char *whole = whole_sum(other, &listed, rank, step);
    zenps_request_t *request, *push;
    zenps_grad_t in, out;
    grad_make(&listed, rank->rank, step, &in);
    ZENPS_GRAD_INIT(&out);
    switch ((step + (uint64_t)rank->rank) % 4) {
      case 0:
        out.layout = ZENPS_ROWS;
        CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
        CHECK_OK(zenps_wait(request, SOON_MS));
        check_rows(&listed, whole, &out, 0, ROWS);
        break;
      case 1:
        out.layout = ZENPS_ROWS;
        CHECK_OK(zenps_reduce_scatter(tensor, step, &in, &none, &out, &request));
        CHECK_OK(zenps_wait(request, SOON_MS));
        CHECK(out.nnz == 0);
        break;
      default:
        out.layout = ZENPS_DENSE;
        out.values = malloc(N * each);
        CHECK_OK(zenps_push(tensor, step, &in, &push));
        request_wait_ok(push);
        CHECK_OK(zenps_pull(tensor, step, &rows, &out, &request));
        CHECK_OK(zenps_wait(request, SOON_MS));
        for (uint64_t i = 0; i < N; i++)
          CHECK(memcmp((char *)out.values + i * each, whole + (uint64_t)names[i] * each, each) == 0);
        free(out.values);
    }
    zenps_request_free(request);
    grad_free(&in);
    free(whole);
  }
  rank_close(rank);
}

static void test_pull_by_name(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, pulls_names, NULL, 0);
}

/* With COO both ways the bytes that come back follow from the rows: one row and one index each. */
static void counts_bytes(struct rank *rank) {
  struct spec spec = dense;
  spec.odd_values = false;
  rank_open(rank);
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = "balanced";
  spec.options.codec = ZENPS_CODEC_COO;
  zenps_tensor_t *tensor = tensor_open(rank, "t", &spec);
  const uint64_t first = ROWS * (uint64_t)rank->rank / (uint64_t)rank->world;
  const zenps_rows_t mine = ZENPS_ROWS_RANGE(first, ROWS / (uint64_t)rank->world);
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  zenps_request_t *request;
  zenps_grad_t in, out;
  grad_make(&spec, rank->rank, 1, &in);
  ZENPS_GRAD_INIT(&out);
  out.layout = ZENPS_ROWS;
  CHECK_OK(zenps_reduce_scatter(tensor, 1, &in, &mine, &out, &request));
  CHECK_OK(zenps_wait(request, SOON_MS));
  CHECK_OK(zenps_request_stats(request, &stats));
  CHECK(out.nnz == stats.nnz_out && stats.nnz_out > 0);
  CHECK(stats.payload_in == stats.nnz_out * (bytes_of_row(&spec) + 4));
  const uint64_t pushed = stats.nnz_in * (bytes_of_row(&spec) + 4);
  CHECK(stats.payload_out > pushed && stats.payload_out <= pushed + 6 * zenps_tensor_partitions(tensor));
  zenps_request_free(request);
  grad_free(&in);
  rank_close(rank);
}

static void test_bytes_of_reduce_scatter(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, counts_bytes, NULL, 0);
}

/* ------------------------------------------------------------ sums that nobody, or not everybody, pulls */

static void forgets(struct rank *rank) {
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &dense);
  for (uint64_t step = 0; step < MANY_STEPS; step++) {
    grad_make(&dense, rank->rank, step, &in);
    CHECK_OK(zenps_push(tensor, step, &in, &request));
    request_wait_ok(request);
    grad_free(&in);
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_pull(tensor, MANY_STEPS - 1, NULL, &out, &request));
  request_wait_ok(request);
  out_check(&dense, rank->world, MANY_STEPS - 1, &out);
  CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
  CHECK_STATUS(zenps_wait(request, SOON_MS), ZENPS_ERR_STALE);
  CHECK_SAYS(zenps_request_error(request)->text, "the sum of step 1 is kept no longer");
  zenps_request_free(request);
  free(out.values);
  rank_close(rank);
}

static void test_sums_that_are_not_pulled(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, forgets, NULL, 0);
}

/* Each rank pulls once, and not what its push asked for. */
static void pulls_twice(struct rank *rank) {
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  if (rank->rank == 0)
    CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  else
    CHECK_OK(zenps_push(tensor, 1, &in, &request));
  request_wait_ok(request);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 1) {
    CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    request_wait_ok(request);
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank < 2) {
    CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    CHECK_STATUS(zenps_wait(request, SOON_MS), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_request_error(request)->text,
               rank->rank == 0 ? "asked for all of its sum" : "pulled its sum already");
    zenps_request_free(request);
  }
  CHECK_OK(zenps_barrier(rank->zenps)); /* rank 2 still can */
  if (rank->rank == 2) {
    CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    request_wait_ok(request);
    out_check(&dense, rank->world, 1, &out);
  }
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_pulling_twice(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, pulls_twice, NULL, 0);
}

const struct CMUnitTest api_operation_tests[] = {
    cmocka_unit_test(test_push_and_pull),
    cmocka_unit_test(test_reduce_scatter),
    cmocka_unit_test(test_pull_by_name),
    cmocka_unit_test(test_bytes_of_reduce_scatter),
    cmocka_unit_test(test_sums_that_are_not_pulled),
    cmocka_unit_test(test_pulling_twice),
};
const size_t n_api_operation_tests = sizeof api_operation_tests / sizeof api_operation_tests[0];
