/* Push and pull apart in trouble: canceled, late, dead and refused. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { ROWS = 5000, WIDTH = 3 };

static const struct spec dense = {
    .rows = ROWS, .width = WIDTH, .dtype = ZENPS_F32, .density = 0.05, .odd_values = true};

/* A canceled pull is this rank's matter; a canceled push is everybody's. */
static void cancels(struct rank *rank) {
  zenps_request_t *push, *pull;
  zenps_grad_t in, out;
  rank_open(rank);
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &pull));
  if (rank->rank == 1) {
    CHECK_OK(zenps_cancel(pull));
    request_expect(pull, ZENPS_ERR_CANCELED, "rank 1 canceled it");
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK_OK(zenps_push(tensor, 1, &in, &push));
  request_wait_ok(push);
  if (rank->rank != 1) {
    request_wait_ok(pull);
    out_check(&dense, rank->world, 1, &out);
  }
  const zenps_rows_t some = ZENPS_ROWS_RANGE(0, 10);
  if (rank->rank == 0) {
    CHECK_OK(zenps_reduce_scatter(tensor, 2, &in, &some, &out, &pull));
    CHECK_OK(zenps_cancel(pull));
  } else {
    CHECK_OK(zenps_pull(tensor, 2, NULL, &out, &pull));
  }
  request_expect(pull, ZENPS_ERR_CANCELED, "rank 0");
  CHECK_OK(
      zenps_barrier(rank->zenps)); /* a server may hear that a rank has left before it hears what that rank canceled */
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
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank < 2) {
    const zenps_rows_t all = ZENPS_ROWS_RANGE(0, ROWS);
    if (rank->rank == 0) {
      CHECK_OK(zenps_push(tensor, 1, &in, &push));
      request_wait_ok(push); /* a push waits for no other rank */
      CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
    } else {
      CHECK_OK(zenps_reduce_scatter(tensor, 1, &in, &all, &out, &request));
    }
    CHECK_STATUS(zenps_wait(request, SOON_MS), ZENPS_ERR_MISSING);
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
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &dense);
  grad_make(&dense, rank->rank, 1, &in);
  out_make(&dense, &in, &out);
  CHECK_OK(zenps_barrier(rank->zenps));
  if (rank->rank == 2) {
    rank_await(rank, 0, 2);
    raise(SIGKILL);
  }
  CHECK_OK(zenps_push(tensor, 1, &in, &push));
  request_wait_ok(push);
  CHECK_OK(zenps_pull(tensor, 1, NULL, &out, &request));
  atomic_fetch_add(&rank->words[0], 1);
  request_expect(request, ZENPS_ERR_PEER_LOST, "rank 2");
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
  zenps_tensor_t *tensor = tensor_open_served(rank, "t", &dense);
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

const struct CMUnitTest api_operation_trouble_tests[] = {
    cmocka_unit_test(test_cancel_apart),
    cmocka_unit_test(test_half_a_group),
    cmocka_unit_test(test_killed_before_its_push),
    cmocka_unit_test(test_refusals),
};
const size_t n_api_operation_trouble_tests = sizeof api_operation_trouble_tests / sizeof api_operation_trouble_tests[0];
