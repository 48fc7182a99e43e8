/* Ok-Topk's algorithm 2 with the library's parts: dense accumulators go in, the scheme selects, and what contributed
 * leaves the residual. And what ranks must agree on for it. */
#include <math.h>

#include <zenps/sparsify.h>

#include "tests/integration/api_test.h"

enum { N_RANKS = 3, ROWS = 2000, K = 50, STEPS = 9, OPENED = 0 };

static float gradient_at(int rank, uint64_t step, uint64_t row) { /* no two magnitudes of a step are the same */
  uint64_t x = ((uint64_t)rank * STEPS + step) * ROWS + row + 1;
  for (unsigned i = 0; i < 3; i++) x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  const double u = ((double)(x >> 12) + 1) / (1ull << 52);
  return (float)((x & 1 ? -1 : 1) * log(u) * (1 + (double)row / 1e6));
}

static int descending(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

static float kth(const float *values) {
  float order[ROWS];
  for (unsigned row = 0; row < ROWS; row++) order[row] = fabsf(values[row]);
  qsort(order, ROWS, sizeof order[0], descending);
  return order[K - 1];
}

/* Lines 4 to 6 for all ranks: `u`, and each rank's residual. */
static void reference_step(uint64_t step, float alpha, float (*eps)[ROWS], float *u) {
  float local[N_RANKS];
  memset(u, 0, ROWS * sizeof *u);
  for (int r = 0; r < N_RANKS; r++) {
    for (unsigned row = 0; row < ROWS; row++) eps[r][row] += alpha * gradient_at(r, step, row);
    local[r] = kth(eps[r]);
    for (unsigned row = 0; row < ROWS; row++)
      if (fabsf(eps[r][row]) >= local[r]) u[row] += eps[r][row];
  }
  const float global = kth(u);
  for (unsigned row = 0; row < ROWS; row++) {
    if (fabsf(u[row]) < global) u[row] = 0;
    for (int r = 0; r < N_RANKS; r++)
      if (u[row] != 0 && fabsf(eps[r][row]) >= local[r]) eps[r][row] = 0;
  }
}

static void open_oktopk(const struct rank *rank, const char *name, zenps_tensor_t **tensor) {
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = "oktopk:k=50,tau=4,tau_threshold=1,contributed=1"; /* K */
  CHECK_OK(zenps_tensor_open(rank->zenps, name, ROWS, 1, ZENPS_F32, &options, tensor));
}

static void sgd_rank(struct rank *rank) {
  static float eps[N_RANKS][ROWS], u[ROWS], gradient[ROWS], sum[ROWS];
  zenps_tensor_t *tensor;
  zenps_sparsifier_t *sparsifier;
  zenps_sparsifier_options_t options;
  rank_open(rank);
  open_oktopk(rank, "w", &tensor);
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  options.kind = ZENPS_SPARSIFY_SCHEME;
  CHECK_OK(zenps_sparsifier_create(&options, ROWS, ZENPS_F32, &sparsifier));
  for (uint64_t step = 0; step < STEPS; step++) {
    const float alpha = 1 / (float)(step + 1);
    zenps_grad_t in, out, contributed;
    zenps_request_t *request;
    ZENPS_GRAD_INIT(&in);
    ZENPS_GRAD_INIT(&out);
    ZENPS_GRAD_INIT(&contributed);
    for (unsigned row = 0; row < ROWS; row++) gradient[row] = alpha * gradient_at(rank->rank, step, row);
    CHECK_OK(zenps_sparsifier_select(sparsifier, gradient, &in));
    CHECK(in.layout == ZENPS_DENSE && in.values == zenps_sparsifier_residual(sparsifier));
    out.layout = step % 2 ? ZENPS_ROWS : ZENPS_DENSE;
    if (out.layout == ZENPS_DENSE) out.values = sum;
    CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
    CHECK_OK(zenps_wait(request, -1));
    CHECK_OK(zenps_request_contributed(request, &contributed));
    CHECK(contributed.layout == ZENPS_ROWS && contributed.nnz <= K);
    CHECK_OK(zenps_sparsifier_commit(sparsifier, &contributed));
    reference_step(step, alpha, eps, u);
    if (out.layout == ZENPS_ROWS) {
      memset(sum, 0, sizeof sum);
      for (uint64_t i = 0; i < out.nnz; i++) sum[out.row_ids[i]] = ((const float *)out.values)[i];
    }
    CHECK(memcmp(sum, u, sizeof u) == 0);
    CHECK(memcmp(zenps_sparsifier_residual(sparsifier), eps[rank->rank], sizeof u) == 0);
    zenps_request_free(request);
  }
  zenps_sparsifier_destroy(sparsifier);
  rank_close(rank);
}

static void test_algorithm_2(void **state) {
  (void)state;
  ranks_run(cluster_shared(), N_RANKS, sgd_rank, NULL, 0);
}

/* Under a scheme that keeps all, and before the request is done or when it has failed, there is nothing to tell. */
static void untold_rank(struct rank *rank) {
  static float gradient[ROWS], sum[ROWS];
  zenps_tensor_t *balanced, *lossy;
  zenps_grad_t in, out, rows;
  zenps_request_t *request;
  rank_open(rank);
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = "balanced:contributed=1";
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "all", ROWS, 1, ZENPS_F32, &options, &balanced), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text,
             "contributed is for oktopk, gtopk, topka, topkdsa, gaussiank, not for scheme balanced");
  options.scheme = "balanced";
  CHECK_OK(zenps_tensor_open(rank->zenps, "all", ROWS, 1, ZENPS_F32, &options, &balanced));
  open_oktopk(rank, "some", &lossy);
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  ZENPS_GRAD_INIT(&rows);
  in.layout = out.layout = ZENPS_DENSE;
  in.values = gradient;
  out.values = sum;
  gradient[rank->rank] = 1;
  CHECK_OK(zenps_allreduce(balanced, 0, &in, &out, &request));
  CHECK_OK(zenps_wait(request, -1));
  CHECK_STATUS(zenps_request_contributed(request, &rows), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "its scheme balanced keeps all rows");
  CHECK_STATUS(zenps_request_contributed(request, NULL), ZENPS_ERR_INVALID);
  zenps_request_free(request);
  CHECK_OK(zenps_allreduce(lossy, 0, &in, &out, &request));
  CHECK_OK(zenps_cancel(request));
  if (zenps_wait(request, -1) == ZENPS_OK) { /* it was done already */
    CHECK_OK(zenps_request_contributed(request, &rows));
    CHECK(rows.nnz == 1 && rows.row_ids[0] == rank->rank);
  } else {
    CHECK(zenps_request_contributed(request, &rows) == zenps_request_error(request)->status);
  }
  zenps_request_free(request);
  rank_close(rank);
}

static void test_nothing_to_tell(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, untold_rank, NULL, 0);
}

/* Periods and parts are the same on all ranks; defaults are, whether they are said or not. */
static void disagreeing_rank(struct rank *rank) {
  zenps_tensor_t *tensor;
  zenps_tensor_options_t options;
  rank_open(rank);
  open_oktopk(rank, "first", &tensor); /* links the ranks */
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  if (rank->rank == 0) {
    options.scheme = "oktopk:k=50,without=balancing,tau=64,tau_threshold=32";
    CHECK_OK(zenps_tensor_open(rank->zenps, "t", ROWS, 1, ZENPS_F32, &options, &tensor));
    atomic_store(&rank->words[OPENED], 1);
  } else {
    rank_await(rank, OPENED, 1);
    options.scheme = "oktopk:k=50,without=steering+balancing";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", ROWS, 1, ZENPS_F32, &options, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "oktopk:k=50,without=balancing");
    CHECK_SAYS(zenps_last_error()->text, "without=balancing+steering");
    options.scheme = "oktopk:k=50,without=balancing,tau_threshold=128";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", ROWS, 1, ZENPS_F32, &options, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "tau_threshold=128");
    options.scheme = "oktopk:k=50,without=balancing";
    CHECK_OK(zenps_tensor_open(rank->zenps, "t", ROWS, 1, ZENPS_F32, &options, &tensor));
    options.scheme = "oktopk:k=50,without=balancing,contributed=1";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", ROWS, 1, ZENPS_F32, &options, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "contributed 0");
    options.scheme = "oktopk:k=50,without=correction";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", ROWS, 1, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "rotation+bucketing+repartition+balancing+steering");
    options.scheme = "gtopk:tau=5";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", ROWS, 1, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "tau is for oktopk, not for scheme gtopk");
  }
  rank_close(rank);
}

static void test_options_differ(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, disagreeing_rank, NULL, 0);
}

const struct CMUnitTest api_residual_tests[] = {
    cmocka_unit_test(test_algorithm_2),
    cmocka_unit_test(test_nothing_to_tell),
    cmocka_unit_test(test_options_differ),
};
const size_t n_api_residual_tests = sizeof api_residual_tests / sizeof api_residual_tests[0];
