/* Push and pull apart, reduce-scatter, allgather: against the same sums by allreduce, and in trouble. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { ROWS = 5000, WIDTH = 3, STEPS = 6, MANY_STEPS = 12 };

static const struct spec dense = {
    .rows = ROWS, .width = WIDTH, .dtype = ZENPS_F32, .density = 0.05, .odd_values = true};
static const struct spec listed = {
    .rows = ROWS, .width = WIDTH, .dtype = ZENPS_F64, .rows_in = true, .rows_out = true, .repeats = 3, .density = 0.1};

/* Such tensors are over servers, whatever the environment says. */
static zenps_tensor_t *open_served(const struct rank *rank, const char *name, const struct spec *spec) {
  struct spec served = *spec;
  ZENPS_TENSOR_OPTIONS_INIT(&served.options);
  served.options.scheme = "balanced";
  return tensor_open(rank, name, &served);
}

static size_t bytes_of_row(const struct spec *spec) {
  return spec->width * (spec->dtype == ZENPS_F32 ? 4u : 8u);
}

static void wait_ok(zenps_request_t *request) {
  CHECK_OK(zenps_wait(request, 20000));
  zenps_request_free(request);
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
  wait_ok(request);
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
  zenps_tensor_t *tensor = open_served(rank, pulls_first ? "first" : "last", spec);
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
    CHECK_OK(zenps_wait(pushes[i], 20000));
    CHECK_OK(zenps_wait(pulls[i], 20000));
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
  zenps_tensor_t *tensor = open_served(rank, "t", spec), *other = open_served(rank, "other", spec);
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
    CHECK_OK(zenps_wait(request, 20000));
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
  zenps_tensor_t *tensor = open_served(rank, "t", &listed), *other = open_served(rank, "other", &listed);
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
        CHECK_OK(zenps_wait(request, 20000));
        check_rows(&listed, whole, &out, 0, ROWS);
        break;
      case 1:
        out.layout = ZENPS_ROWS;
        CHECK_OK(zenps_reduce_scatter(tensor, step, &in, &none, &out, &request));
        CHECK_OK(zenps_wait(request, 20000));
        CHECK(out.nnz == 0);
        break;
      default:
        out.layout = ZENPS_DENSE;
        out.values = malloc(N * each);
        CHECK_OK(zenps_push(tensor, step, &in, &push));
        wait_ok(push);
        CHECK_OK(zenps_pull(tensor, step, &rows, &out, &request));
        CHECK_OK(zenps_wait(request, 20000));
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
  CHECK_OK(zenps_wait(request, 20000));
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
  zenps_tensor_t *tensor = open_served(rank, "t", &dense);
  for (uint64_t step = 0; step < MANY_STEPS; step++) {
    grad_make(&dense, rank->rank, step, &in);
    CHECK_OK(zenps_push(tensor, step, &in, &request));
    wait_ok(request);
    grad_free(&in);
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_pull(tensor, MANY_STEPS - 1, NULL, &out, &request));
  wait_ok(request);
  out_check(&dense, rank->world, MANY_STEPS - 1, &out);
  CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
  CHECK_STATUS(zenps_wait(request, 20000), ZENPS_ERR_STALE);
  CHECK_SAYS(zenps_request_error(request)->text, "step 1: its sum is kept no longer");
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
  zenps_tensor_t *tensor = open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  if (rank->rank == 0)
    CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  else
    CHECK_OK(zenps_push(tensor, 1, &in, &request));
  wait_ok(request);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 1) {
    CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    wait_ok(request);
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank < 2) {
    CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    CHECK_STATUS(zenps_wait(request, 20000), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_request_error(request)->text,
               rank->rank == 0 ? "asked for all of its sum" : "pulled its sum already");
    zenps_request_free(request);
  }
  CHECK_OK(zenps_barrier(rank->zenps)); /* rank 2 still can */
  if (rank->rank == 2) {
    CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    wait_ok(request);
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

/* ------------------------------------------------------------ trouble */

static void expect(zenps_request_t *request, zenps_status_t status, const char *text) {
  CHECK_STATUS(zenps_wait(request, 20000), status);
  CHECK_SAYS(zenps_request_error(request)->text, text);
  zenps_request_free(request);
}

/* A canceled pull is this rank's matter; a canceled push is everybody's. */
static void cancels(struct rank *rank) {
  zenps_request_t *push, *pull;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &pull));
  if (rank->rank == 1) {
    CHECK_OK(zenps_cancel(pull));
    expect(pull, ZENPS_ERR_CANCELED, "rank 1 canceled it");
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK_OK(zenps_push(tensor, 1, &in, &push));
  wait_ok(push);
  if (rank->rank != 1) {
    wait_ok(pull);
    out_check(&dense, rank->world, 1, &out);
  }
  const zenps_rows_t some = ZENPS_ROWS_RANGE(0, 10);
  if (rank->rank == 0) {
    CHECK_OK(zenps_reduce_scatter(tensor, 2, &in, &some, &out, &pull));
    CHECK_OK(zenps_cancel(pull));
  } else {
    CHECK_OK(zenps_pull(tensor, 2, NULL, &out, &pull));
  }
  expect(pull, ZENPS_ERR_CANCELED, "rank 0");
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_cancel_apart(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, cancels, NULL, 0);
}

/* Half of the ranks do not come: pulls and scatters say which. */
static void is_absent(struct rank *rank) {
  zenps_request_t *request, *push;
  zenps_grad_t in, out;
  rank->round_timeout_ms = 2000;
  rank_open(rank);
  zenps_tensor_t *tensor = open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank < 2) {
    const zenps_rows_t all = ZENPS_ROWS_RANGE(0, ROWS);
    if (rank->rank == 0) {
      CHECK_OK(zenps_push(tensor, 1, &in, &push));
      wait_ok(push); /* which waits for nobody */
      CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    } else {
      CHECK_OK(zenps_reduce_scatter(tensor, 1, &in, &all, &out, &request));
    }
    CHECK_STATUS(zenps_wait(request, 20000), ZENPS_ERR_MISSING);
    const zenps_error_t *error = zenps_request_error(request);
    CHECK(error->n_missing == 2 && error->missing_ranks[0] == 2 && error->missing_ranks[1] == 3);
    CHECK_SAYS(error->text, "step 1: ");
    CHECK_SAYS(error->text, "without the push of rank 2, 3");
    zenps_request_free(request);
    atomic_fetch_add(&rank->words[0], 1);
  }
  rank_await(rank, 0, 2);
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_half_a_group(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, is_absent, NULL, 0);
}

static void dies(struct rank *rank) {
  zenps_request_t *request, *push;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 2) {
    rank_await(rank, 0, 2);
    raise(SIGKILL);
  }
  CHECK_OK(zenps_push(tensor, 1, &in, &push));
  wait_ok(push);
  CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
  atomic_fetch_add(&rank->words[0], 1);
  expect(request, ZENPS_ERR_PEER_LOST, "rank 2");
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_killed_before_its_push(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, dies, NULL, 1u << 2);
}

static void is_refused(struct rank *rank) {
  static const char *const schemes[] = {"ring", "omnireduce", "auto"};
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  for (unsigned i = 0; i < 3; i++) {
    struct spec spec = dense;
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.scheme = schemes[i];
    zenps_tensor_t *tensor = tensor_open(rank, schemes[i], &spec);
    CHECK_STATUS(zenps_push(tensor, 1, &in, &request), ZENPS_ERR_UNSUPPORTED);
    CHECK_SAYS(zenps_last_error()->text, schemes[i]);
    CHECK_SAYS(zenps_last_error()->text, "open it with balanced, sparse-ps or dense-ps");
    CHECK_STATUS(zenps_pull(tensor, 1, NULL, &out, &request), ZENPS_ERR_UNSUPPORTED);
  }
  zenps_tensor_t *tensor = open_served(rank, "t", &dense);
  const int64_t bad[] = {3, ROWS};
  const zenps_rows_t names = ZENPS_ROWS_LIST(bad, 2), beyond = ZENPS_ROWS_RANGE(ROWS - 1, 2), unset = {0};
  CHECK_STATUS(zenps_pull(tensor, 1, &names, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "row number 5000 at position 1 of 2 that are asked for");
  CHECK_STATUS(zenps_pull(tensor, 1, &beyond, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "2 rows from 4999 on");
  CHECK_STATUS(zenps_reduce_scatter(tensor, 1, &in, &unset, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "rows->struct_size is 0");
  CHECK_STATUS(zenps_reduce_scatter(tensor, 1, &in, NULL, &out, &request), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_push(NULL, 1, &in, &request), ZENPS_ERR_INVALID);
  CHECK_STATUS(zenps_allgather(tensor, 1, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "in->layout is not ZENPS_ROWS");
  free(out.values);
  grad_free(&in);
  rank_close(rank);
}

static void test_refusals(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, is_refused, NULL, 0);
}

/* ------------------------------------------------------------ allgather */

/* Every third row is nobody's; the others are dealt to the ranks. Values are bits of any kind. */
static uint32_t bits_of(uint64_t row, uint32_t i, uint64_t step) {
  static const uint32_t odd[] = {0x80000000u, 0, 0x7fa00001u, 0xffc12345u, 1, 0x7f800000u, 0x3f800000u};
  return odd[(row + i + step) % 7];
}

static void gathers(struct rank *rank) {
  static int64_t ids[ROWS];
  static uint32_t values[ROWS * WIDTH];
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &dense);
  for (uint64_t step = 0; step < STEPS; step++) {
    ZENPS_GRAD_INIT(&in);
    ZENPS_GRAD_INIT(&out);
    in.layout = ZENPS_ROWS;
    in.row_ids = ids;
    in.values = values;
    for (uint64_t row = ROWS; row-- > 0;) { /* descending */
      if (row % 3 == 0 || (row + step) % (uint64_t)rank->world != (uint64_t)rank->rank) continue;
      ids[in.nnz] = (int64_t)row;
      for (uint32_t i = 0; i < WIDTH; i++) values[in.nnz * WIDTH + i] = bits_of(row, i, step);
      in.nnz++;
    }
    out.layout = step % 2 ? ZENPS_DENSE : ZENPS_ROWS;
    if (step % 2) out.values = malloc(sizeof values);
    CHECK_OK(zenps_allgather(tensor, step, &in, &out, &request));
    CHECK_OK(zenps_wait(request, 20000));
    CHECK(step % 2 || out.nnz == ROWS - (ROWS + 2) / 3);
    const uint32_t *got = out.values;
    for (uint64_t row = 0, at = 0; row < ROWS; row++) {
      const bool given = row % 3 != 0;
      if (step % 2) at = row;
      if (!(step % 2) && given) CHECK(out.row_ids[at] == (int64_t)row);
      for (uint32_t i = 0; i < WIDTH && (given || step % 2); i++)
        CHECK(got[at * WIDTH + i] == (given ? bits_of(row, i, step) : 0));
      at += given;
    }
    zenps_request_free(request);
    if (step % 2) free(out.values);
  }
  rank_close(rank);
}

static void test_allgather(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, gathers, NULL, 0);
}

static void gathers_twice(struct rank *rank) {
  int64_t ids[] = {100 + rank->rank, rank->rank == 0 ? 1 : 4000};
  float values[2 * WIDTH] = {0};
  zenps_request_t *request;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open(rank, "t", &dense);
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_ROWS;
  in.nnz = 2;
  in.row_ids = ids;
  in.values = values;
  CHECK_OK(zenps_allgather(tensor, 1, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, 20000), ZENPS_ERR_INVALID);
  const zenps_error_t *error = zenps_request_error(request);
  CHECK_SAYS(error->text, "ranks 1 and 2 both gave row 4000");
  CHECK(error->n_missing == 2 && error->missing_ranks[0] == 1 && error->missing_ranks[1] == 2);
  zenps_request_free(request);
  ids[1] = ids[0];
  CHECK_STATUS(zenps_allgather(tensor, 2, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "twice, at positions 0 and 1");
  rank_close(rank);
}

static void test_allgather_of_a_row_twice(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, gathers_twice, NULL, 0);
}

const struct CMUnitTest api_operation_tests[] = {
    cmocka_unit_test(test_push_and_pull),
    cmocka_unit_test(test_reduce_scatter),
    cmocka_unit_test(test_pull_by_name),
    cmocka_unit_test(test_bytes_of_reduce_scatter),
    cmocka_unit_test(test_sums_that_are_not_pulled),
    cmocka_unit_test(test_pulling_twice),
    cmocka_unit_test(test_cancel_apart),
    cmocka_unit_test(test_half_a_group),
    cmocka_unit_test(test_killed_before_its_push),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_allgather),
    cmocka_unit_test(test_allgather_of_a_row_twice),
};
const size_t n_api_operation_tests = sizeof api_operation_tests / sizeof api_operation_tests[0];
