/* Schemes that keep only the greatest, in the simulator, against what their papers define; and Ok-Topk's words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/sim.h"
#include "tests/support/sim_grads.h"

enum { ROWS = 4000, K = 200, N_MAX = 16, WORD = 4 };

static struct sim sim_of(const char *name, uint32_t n) {
  struct sim sim = {
      .scheme = zps_peer_scheme_find(name),
      .plan = {.n = n, .rows = ROWS, .width = 1, .k = K, .chunks = 1},
      .compute = {.dtype = ZPS_DTYPE_F32, .width = 1, .op = ZPS_OP_SUM, .policy = ZPS_CODEC_PAPER},
      .seed = n,
  };
  assert_non_null(sim.scheme);
  assert_true(sim.scheme->lossy);
  return sim;
}

static struct sim_grads draw(uint32_t n, int overlap, uint64_t seed) {
  struct zps_rng rng = {seed};
  return sim_grads_draw(&rng, n, ROWS, 1, ZPS_DTYPE_F32, 0.5, overlap, SIM_RANDOM, false);
}

static int descending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

/* Clears all but the K greatest magnitudes; no two are equal. */
static void keep_top(double *values) {
  double *const sorted = malloc(ROWS * sizeof *sorted);
  for (uint32_t i = 0; i < ROWS; i++) sorted[i] = fabs(values[i]);
  qsort(sorted, ROWS, sizeof *sorted, descending);
  for (uint32_t i = 0; i < ROWS; i++) {
    if (fabs(values[i]) < sorted[K - 1]) values[i] = 0;
  }
  free(sorted);
}

static void add(double *sum, const double *values) {
  for (uint32_t i = 0; i < ROWS; i++) sum[i] = (double)((float)sum[i] + (float)values[i]);
}

/* The sum of all ranks' K greatest, in rank order. */
static double *sum_of_tops(const struct sim_grads *grads) {
  double *const sum = calloc(ROWS, sizeof *sum);
  for (uint32_t i = 0; i < grads->n; i++) {
    double *const dense = sim_grads_dense(grads, i);
    keep_top(dense);
    add(sum, dense);
    free(dense);
  }
  return sum;
}

static void check_result(const struct sim *sim, const double *expected) {
  for (uint32_t i = 0; i < ROWS; i++) {
    const double got = sim_load(ZPS_DTYPE_F32, sim_result(sim, 0), i);
    if (got != expected[i])
      fail_msg("%s, n = %u: row %u is %.9g instead of %.9g", sim->scheme->name, sim->plan.n, i, got, expected[i]);
  }
}

static void check_sum_of_tops(const char *name) {
  for (uint32_t n = 1; n <= N_MAX; n++) {
    struct sim sim = sim_of(name, n);
    struct sim_grads grads = draw(n, 0, n);
    double *const expected = sum_of_tops(&grads);
    sim_open(&sim);
    sim_run(&sim, grads.inputs);
    check_result(&sim, expected);
    sim_close(&sim);
    free(expected);
    sim_grads_free(&grads);
  }
}

static void test_topka(void **state) {
  (void)state;
  check_sum_of_tops("topka");
}

static void test_topkdsa(void **state) {
  (void)state;
  check_sum_of_tops("topkdsa");
}

/* No two ranks have a row in common: what is kept of each shows in the result. */
static void test_gaussiank(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= N_MAX; n++) {
    struct sim sim = sim_of("gaussiank", n);
    struct sim_grads grads = draw(n, -1, n);
    sim_open(&sim);
    sim_run(&sim, grads.inputs);
    for (uint32_t i = 0; i < n; i++) {
      const float *const own = grads.inputs[i].values;
      double least_kept = INFINITY, greatest_dropped = 0;
      uint32_t n_kept = 0, n_own = 0;
      for (uint32_t row = i; row < ROWS; row += n) {
        const double value = (double)own[row], got = sim_load(ZPS_DTYPE_F32, sim_result(&sim, 0), row);
        assert_true(got == 0 || got == value);
        n_own += value != 0;
        n_kept += got != 0;
        if (got != 0)
          least_kept = fmin(least_kept, fabs(value));
        else
          greatest_dropped = fmax(greatest_dropped, fabs(value));
      }
      assert_true(least_kept > greatest_dropped);
      assert_true(n_own <= K ? n_kept == n_own : n_kept >= K * 3 / 4 && n_kept <= 2 * K);
      if (n > 1) assert_int_equal(sim_out(&sim, i).row_bytes, (n - 1) * n_kept * 2 * WORD);
    }
    sim_close(&sim);
    sim_grads_free(&grads);
  }
}

/* What position `me` has once it has taken in those up to 2^stages after it. */
static double *tree(const struct sim_grads *grads, uint32_t me, uint32_t stages) {
  if (stages == 0) {
    double *const dense = sim_grads_dense(grads, me);
    keep_top(dense);
    return dense;
  }
  double *const lower = tree(grads, me, stages - 1);
  const uint32_t other = me + (1u << (stages - 1));
  if (other >= grads->n) return lower;
  double *const upper = tree(grads, other, stages - 1);
  add(lower, upper);
  keep_top(lower);
  free(upper);
  return lower;
}

static void test_gtopk(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= N_MAX; n++) {
    struct sim sim = sim_of("gtopk", n);
    struct sim_grads grads = draw(n, 0, n);
    double *const expected = tree(&grads, 0, 4);
    sim_open(&sim);
    sim_run(&sim, grads.inputs);
    check_result(&sim, expected);
    sim_close(&sim);
    free(expected);
    sim_grads_free(&grads);
  }
}

/* With thresholds that are always new: the K greatest of the sum of all ranks' K greatest. */
static void test_oktopk_is_exact(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= N_MAX; n++) {
    struct sim sim = sim_of("oktopk", n);
    sim.plan.period = 2;
    sim.plan.threshold_period = 1;
    sim_open(&sim);
    for (unsigned round = 0; round < 4; round++) {
      struct sim_grads grads = draw(n, (int)(round % 3) - 1, n * 10 + round);
      double *const expected = sum_of_tops(&grads);
      keep_top(expected);
      sim_run(&sim, grads.inputs);
      check_result(&sim, expected);
      free(expected);
      sim_grads_free(&grads);
    }
    sim_close(&sim);
  }
}

/* Between renewals: 2k(P-1)/P to 6k(P-1)/P words in, for gradients like those that the thresholds are of. */
static void test_oktopk_words(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= N_MAX; n++) {
    for (int overlap = 0; overlap <= 1; overlap++) {
      struct sim sim = sim_of("oktopk", n);
      struct sim_grads grads = draw(n, overlap, n);
      double *const expected = sum_of_tops(&grads);
      keep_top(expected);
      sim_open(&sim);
      for (unsigned round = 0; round < 4; round++) {
        sim_run(&sim, grads.inputs);
        check_result(&sim, expected);
        if (round == 0) continue; /* renews all */
        const double unit = (double)K * (n - 1) / n;
        double words = 0;
        for (uint32_t i = 0; i < n; i++) {
          const double in = (double)sim_in(&sim, i).row_bytes / WORD;
          if (in > 6 * unit) fail_msg("n = %u: %.0f words to position %u, over 6k(P-1)/P = %.0f", n, in, i, 6 * unit);
          assert_int_equal(sim_in(&sim, i).vector_bytes, (n - 1) * sizeof(double)); /* the counts */
          words += in / n;
        }
        if (words < 2 * unit) fail_msg("n = %u: %.1f words each, under 2k(P-1)/P = %.1f", n, words, 2 * unit);
      }
      sim_close(&sim);
      free(expected);
      sim_grads_free(&grads);
    }
  }
}

static int by_magnitude(const void *a, const void *b) {
  const double x = fabs((double)*(const float *)a), y = fabs((double)*(const float *)b);
  return (x < y) - (x > y);
}

/* All that is great moves into the first position's region: its share is n times the mean, and goes to the others. */
static void test_oktopk_balances(void **state) {
  (void)state;
  for (uint32_t n = 5; n <= 12; n++) {
    struct sim sim = sim_of("oktopk", n);
    struct sim_grads grads = draw(n, -1, n);
    sim_open(&sim);
    sim_run(&sim, grads.inputs);
    for (uint32_t i = 0; i < n; i++) { /* in the rows that are this rank's alone */
      float *const values = (float *)(uintptr_t)grads.inputs[i].values;
      float own[ROWS] = {0};
      uint32_t n_own = 0;
      for (uint32_t row = i; row < ROWS; row += n) own[n_own++] = values[row];
      qsort(own, n_own, sizeof own[0], by_magnitude);
      for (uint32_t row = i; row < ROWS; row += n) values[row] = own[row / n];
    }
    double *const expected = sum_of_tops(&grads);
    keep_top(expected);
    sim_run(&sim, grads.inputs);
    check_result(&sim, expected);
    /* What the first region's owner sends: all shares but its own away, and its own to all; far from all of it to all.
     */
    const uint64_t unbalanced = (uint64_t)K * (n - 1) * 2 * WORD;
    assert_true(2 * sim_out(&sim, 0).row_bytes < unbalanced + 2 * sim.plan.k * 2 * WORD);
    sim_close(&sim);
    free(expected);
    sim_grads_free(&grads);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_topka),           cmocka_unit_test(test_topkdsa),
      cmocka_unit_test(test_gaussiank),       cmocka_unit_test(test_gtopk),
      cmocka_unit_test(test_oktopk_is_exact), cmocka_unit_test(test_oktopk_words),
      cmocka_unit_test(test_oktopk_balances),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
