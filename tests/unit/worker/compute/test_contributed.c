/* What schemes that keep only some rows say of a rank's gradient: the rows that it selected and that are in the result.
 * And what that is for: Ok-Topk's algorithm 2, step by step, against the plain one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/sim.h"
#include "tests/support/sim_grads.h"
#include "tests/support/threadless.h"

enum { ROWS = 1500, K = 60, N_MAX = 9 };

static struct sim sim_of(const char *name, uint32_t n) {
  return (struct sim){
      .scheme = zps_peer_scheme_find(name),
      .plan = {.n = n, .rows = ROWS, .width = 1, .k = K, .chunks = 2, .contributed = true},
      .compute = {.dtype = ZPS_DTYPE_F32, .width = 1, .op = ZPS_OP_SUM, .policy = ZPS_CODEC_AUTO},
      .seed = n,
  };
}

/* ------------------------------------------------------------ the plain way */

static int descending(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y);
}

/* The k-th greatest magnitude. */
static float kth(const float *values, uint32_t k) {
  float order[ROWS];
  for (uint32_t row = 0; row < ROWS; row++) order[row] = fabsf(values[row]);
  qsort(order, ROWS, sizeof order[0], descending);
  return order[k - 1];
}

static void fill(struct zps_rng *rng, float *values) { /* a Laplace distribution; no two are alike */
  for (uint32_t row = 0; row < ROWS; row++) {
    const double value = -log(((double)zps_rng_below(rng, 1 << 30) + 1) / (1 << 30));
    values[row] = (float)(zps_rng_below(rng, 2) ? value : -value);
  }
}

/* `sum` = that of all ranks' values from their thresholds on, of which those below `global` are dropped. */
static void reduce(float (*acc)[ROWS], uint32_t n, const float *local, float *sum) {
  memset(sum, 0, ROWS * sizeof *sum);
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t row = 0; row < ROWS; row++)
      if (fabsf(acc[i][row]) >= local[i]) sum[row] += acc[i][row];
}

static void check_contributed(const struct sim *sim, uint32_t i, const float *acc, float local, const float *sum) {
  uint32_t n, at = 0;
  const int64_t *const rows = sim_contributed(sim, i, &n);
  for (uint32_t row = 0; row < ROWS; row++) {
    if (fabsf(acc[row]) < local || sum[row] == 0) continue;
    if (at == n || rows[at] != row)
      fail_msg("%s, n = %u, position %u: row %u is not among those that contributed", sim->scheme->name, sim->plan.n, i,
               row);
    at++;
  }
  assert_int_equal(at, n);
}

/* ------------------------------------------------------------ one round of each */

/* Those that select exactly k: what of them is in the result. */
static void test_each_scheme(void **state) {
  (void)state;
  static const char *const names[] = {"topka", "topkdsa", "gtopk", "oktopk"};
  static float acc[N_MAX][ROWS];
  for (unsigned s = 0; s < 4; s++) {
    for (uint32_t n = 1; n <= N_MAX; n++) {
      struct sim sim = sim_of(names[s], n);
      struct zps_own_input inputs[N_MAX];
      struct zps_rng rng = {n};
      for (unsigned policy = ZPS_CODEC_AUTO; policy <= ZPS_CODEC_COO_ONLY; policy++) {
        sim.compute.policy = (enum zps_codec_policy)policy;
        for (uint32_t i = 0; i < n; i++) {
          fill(&rng, acc[i]);
          inputs[i] = (struct zps_own_input){
              .values = acc[i], .n_rows = ROWS, .width = 1, .dtype = ZPS_DTYPE_F32, .n_entries = 0};
        }
        sim_open(&sim);
        sim_run(&sim, inputs);
        for (uint32_t i = 0; i < n; i++) check_contributed(&sim, i, acc[i], kth(acc[i], K), sim_result(&sim, i));
        sim_close(&sim);
      }
    }
  }
}

/* What a threshold selects, not k: all of it is in a sum that drops nothing. */
static void test_gaussiank(void **state) {
  (void)state;
  static float acc[2][ROWS];
  struct sim sim = sim_of("gaussiank", 2);
  struct zps_rng rng = {1};
  struct zps_own_input inputs[2];
  for (uint32_t i = 0; i < 2; i++) {
    fill(&rng, acc[i]);
    inputs[i] = (struct zps_own_input){.values = acc[i], .n_rows = ROWS, .width = 1, .dtype = ZPS_DTYPE_F32};
  }
  sim_open(&sim);
  sim_run(&sim, inputs);
  float sum[ROWS] = {0};
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t n;
    const int64_t *const rows = sim_contributed(&sim, i, &n);
    assert_true(n >= K * 3 / 4 && n <= K * 5 / 4);
    for (uint32_t j = 0; j < n; j++) sum[rows[j]] += acc[i][rows[j]];
  }
  assert_memory_equal(sum, sim_result(&sim, 0), sizeof sum);
  sim_close(&sim);
}

/* ------------------------------------------------------------ algorithm 2 */

/* Steps of acc = eps + alpha * grad; u, indexes = allreduce(acc); eps = acc - acc(indexes), with dense accumulators in.
 * Thresholds are renewed every tau' steps and left alone between, boundaries every tau: so is the paper's. */
static void algorithm_2(uint32_t n, uint32_t tau, uint32_t tau_threshold) {
  enum { STEPS = 14 };
  static float eps[N_MAX][ROWS], acc[N_MAX][ROWS];
  float local[N_MAX], global = 0, grad[ROWS], sum[ROWS];
  struct sim sim = sim_of("oktopk", n);
  struct zps_own_input inputs[N_MAX];
  struct zps_rng rng = {17 * n};
  double given = 0, applied = 0;
  memset(eps, 0, sizeof eps);
  sim.plan.boundary_period = tau;
  sim.plan.threshold_period = tau_threshold;
  sim.plan.without = ZPS_WITHOUT_STEERING;
  sim_open(&sim);
  for (unsigned t = 0; t < STEPS; t++) {
    const float alpha = 0.5f / (float)(t + 1);
    for (uint32_t i = 0; i < n; i++) {
      fill(&rng, grad);
      for (uint32_t row = 0; row < ROWS; row++) {
        acc[i][row] = eps[i][row] + alpha * grad[row];
        given += (double)alpha * (double)grad[row];
      }
      if (t % tau_threshold == 0) local[i] = kth(acc[i], K);
      inputs[i] = (struct zps_own_input){.values = acc[i], .n_rows = ROWS, .width = 1, .dtype = ZPS_DTYPE_F32};
    }
    reduce(acc, n, local, sum);
    if (t % tau_threshold == 0) global = kth(sum, K);
    for (uint32_t row = 0; row < ROWS; row++)
      if (fabsf(sum[row]) < global) sum[row] = 0;
    sim_run(&sim, inputs);
    assert_memory_equal(sim_result(&sim, 0), sum, sizeof sum);
    for (uint32_t row = 0; row < ROWS; row++) applied += (double)sum[row];
    for (uint32_t i = 0; i < n; i++) {
      check_contributed(&sim, i, acc[i], local[i], sum);
      uint32_t n_rows;
      const int64_t *const rows = sim_contributed(&sim, i, &n_rows);
      memcpy(eps[i], acc[i], sizeof eps[i]);
      for (uint32_t j = 0; j < n_rows; j++) eps[i][rows[j]] = 0;
    }
  }
  double left = 0; /* nothing is lost: what was given is applied, or left */
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t row = 0; row < ROWS; row++) left += (double)eps[i][row];
  assert_true(fabs(given - applied - left) < 1e-2);
  sim_close(&sim);
}

static void test_algorithm_2(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= N_MAX; n++) {
    algorithm_2(n, 64, 1);
    algorithm_2(n, 2, 4);
    algorithm_2(n, 5, 128);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_scheme),
      cmocka_unit_test(test_gaussiank),
      cmocka_unit_test(test_algorithm_2),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
