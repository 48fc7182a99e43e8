/* Schemes that keep only the greatest, in the simulator, against the definitions of their papers; and Ok-Topk's words.
 * */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "tests/support/sim.h"
#include "tests/support/sim_grads.h"
#include "tests/support/threadless.h"
#include "worker/tools/lossy.h"

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

static struct lossy *reference_of(const struct sim *sim) {
  const struct lossy_config config = {.scheme = sim->scheme->name,
                                      .n = sim->plan.n,
                                      .rows = ROWS,
                                      .k = K,
                                      .width = sim->plan.width,
                                      .period = sim->plan.threshold_period ? sim->plan.threshold_period : 32,
                                      .without = sim->plan.without,
                                      .f32 = true};
  struct lossy *lossy;
  assert_int_equal(lossy_create(&config, &lossy), ZPS_OK);
  return lossy;
}

static void load(void *ctx, uint32_t rank, double *values) {
  const struct sim_grads *const grads = ctx;
  double *const dense = sim_grads_dense(grads, rank);
  memcpy(values, dense, ROWS * grads->width * sizeof *values);
  free(dense);
}

/* A round, and that its result is the reference's next. */
static void check_round(struct sim *sim, struct lossy *lossy, struct sim_grads *grads) {
  const double *const expected = lossy_next(lossy, load, grads);
  sim_run(sim, grads->inputs);
  for (uint64_t i = 0; i < ROWS * (uint64_t)grads->width; i++) {
    const double got = sim_load(ZPS_DTYPE_F32, sim_result(sim, 0), i);
    if (got != expected[i])
      fail_msg("%s, n = %u, round %u: value %u is %.9g instead of %.9g", sim->scheme->name, sim->plan.n,
               (unsigned)sim->round - 1, (unsigned)i, got, expected[i]);
  }
}

/* Rounds of ever other gradients, for every number of ranks. */
static void check_definition(const char *name, uint32_t width, unsigned n_rounds) {
  for (uint32_t n = 1; n <= N_MAX; n++) {
    struct sim sim = sim_of(name, n);
    sim.plan.width = sim.compute.width = width;
    sim.plan.boundary_period = 2;
    sim.plan.threshold_period = 3;
    sim_open(&sim);
    struct lossy *const lossy = reference_of(&sim);
    struct zps_rng rng = {n};
    for (unsigned round = 0; round < n_rounds; round++) { /* dyadic ones have many equals */
      struct sim_grads grads = sim_grads_draw(&rng, n, ROWS, width, ZPS_DTYPE_F32, round % 4 == 3 ? 0.02 : 0.5,
                                              (int)(round % 3) - 1, round % 2 ? SIM_DYADIC : SIM_RANDOM, round % 2);
      check_round(&sim, lossy, &grads);
      sim_grads_free(&grads);
    }
    lossy_destroy(lossy);
    sim_close(&sim);
  }
}

static void test_topka(void **state) {
  (void)state;
  check_definition("topka", 1, 2);
  check_definition("topka", 3, 2);
}

static void test_topkdsa(void **state) {
  (void)state;
  check_definition("topkdsa", 1, 2);
  check_definition("topkdsa", 3, 2);
}

static void test_gtopk(void **state) {
  (void)state;
  check_definition("gtopk", 1, 2);
  check_definition("gtopk", 3, 2);
}

/* Thresholds are renewed in rounds 0, 3 and 6, and reused between. */
static void test_oktopk(void **state) {
  (void)state;
  check_definition("oktopk", 1, 8);
  check_definition("oktopk", 3, 5);
}

static void test_gaussiank(void **state) {
  (void)state;
  check_definition("gaussiank", 1, 4);
  check_definition("gaussiank", 3, 2);
}

/* No two ranks have a row in common: the rows kept of each rank show in the result. */
static void test_gaussiank_counts(void **state) {
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
      assert_true(n_own <= K ? n_kept == n_own : n_kept >= K * 3 / 4 && n_kept <= K * 5 / 4);
      if (n > 1) assert_int_equal(sim_out(&sim, i).row_bytes, (n - 1) * n_kept * 2 * WORD);
    }
    sim_close(&sim);
    sim_grads_free(&grads);
  }
}

/* Between renewals: 2k(P-1)/P to 6k(P-1)/P words in, for gradients like those that the thresholds are of. */
static void test_oktopk_words(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= N_MAX; n++) {
    for (int overlap = 0; overlap <= 1; overlap++) {
      struct sim sim = sim_of("oktopk", n);
      struct sim_grads grads = draw(n, overlap, n);
      struct lossy *const lossy = reference_of(&sim);
      sim_open(&sim);
      for (unsigned round = 0; round < 4; round++) {
        check_round(&sim, lossy, &grads);
        const double unit = (double)K * (n - 1) / n;
        double words = 0;
        if (round == 0) { /* renews all: boundaries, and thresholds from every region's k greatest sums */
          for (uint32_t i = 0; i < n; i++) words += (double)sim_in(&sim, i).row_bytes / WORD / n;
          assert_true(words >= 2 * unit && words <= 6 * unit + 2.0 * K * (n - 1));
          continue;
        }
        for (uint32_t i = 0; i < n; i++) {
          const double in = (double)sim_in(&sim, i).row_bytes / WORD;
          if (in > 6 * unit) fail_msg("n = %u: %.0f words to position %u, over 6k(P-1)/P = %.0f", n, in, i, 6 * unit);
          assert_int_equal(sim_in(&sim, i).vector_bytes, (n - 1) * 3 * sizeof(double)); /* agreed, and the counts */
          words += in / n;
        }
        if (words < 2 * unit) fail_msg("n = %u: %.1f words each, under 2k(P-1)/P = %.1f", n, words, 2 * unit);
      }
      sim_close(&sim);
      lossy_destroy(lossy);
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
    struct lossy *const lossy = reference_of(&sim);
    sim_open(&sim);
    check_round(&sim, lossy, &grads);
    for (uint32_t i = 0; i < n; i++) { /* in the rows that are this rank's alone */
      float *const values = (float *)(uintptr_t)grads.inputs[i].values;
      float own[ROWS] = {0};
      uint32_t n_own = 0;
      for (uint32_t row = i; row < ROWS; row += n) own[n_own++] = values[row];
      qsort(own, n_own, sizeof own[0], by_magnitude);
      for (uint32_t row = i; row < ROWS; row += n) values[row] = own[row / n];
    }
    check_round(&sim, lossy, &grads);
    /* The words that the first region's owner sends: all shares but its own away, and its own to all; far from
     * all of it to all. */
    const uint64_t unbalanced = (uint64_t)K * (n - 1) * 2 * WORD;
    assert_true(2 * sim_out(&sim, 0).row_bytes < unbalanced + 2 * sim.plan.k * 2 * WORD);
    sim_close(&sim);
    lossy_destroy(lossy);
    sim_grads_free(&grads);
  }
}

/* Rounds fail at any point, for some ranks or all, on some of which they never began. The next that does not is as the
 * first of all. */
static void test_oktopk_after_failures(void **state) {
  (void)state;
  struct zps_rng rng = {1};
  unsigned n_partly = 0;
  for (uint32_t n = 2; n <= N_MAX; n++) {
    struct sim sim = sim_of("oktopk", n);
    sim.compute.policy = ZPS_CODEC_AUTO;
    sim.plan.chunks = 1 + n % 3;
    sim.plan.boundary_period = 3;
    sim.plan.threshold_period = 4;
    sim_open(&sim);
    struct lossy *lossy = reference_of(&sim);
    uint64_t n_events = 0; /* of a whole round */
    for (unsigned round = 0; round < 60; round++) {
      struct sim_grads grads = draw(n, (int)(round % 3) - 1, 100 * n + round);
      if (zps_rng_below(&rng, 3) > 0) {
        check_round(&sim, lossy, &grads);
        n_events = sim.n_events;
      } else {
        const uint32_t n_done = (uint32_t)zps_rng_below(&rng, n + 1ull);
        const uint32_t n_failed = zps_rng_below(&rng, 2)
                                      ? sim_run_failing(&sim, grads.inputs, n_done, UINT64_MAX)
                                      : sim_run_failing(&sim, grads.inputs, n, zps_rng_below(&rng, n_events + 1));
        if (n_failed > 0) {
          lossy_destroy(lossy);
          lossy = reference_of(&sim);
          n_partly += n_failed < n;
        } else {
          lossy_next(lossy, load, &grads);
        }
      }
      sim_grads_free(&grads);
    }
    lossy_destroy(lossy);
    sim_close(&sim);
  }
  assert_true(n_partly > 30); /* done on some ranks alone */
}

static zps_err_t create_reference(void *ctx) {
  const struct lossy_config config = {.scheme = "gtopk", .n = 5, .rows = 10, .k = 2, .width = 2, .period = 32};
  return lossy_create(&config, ctx);
}

static void destroy_reference(void *ctx) {
  lossy_destroy(*(struct lossy **)ctx);
}

static void test_reference_without_memory(void **state) {
  (void)state;
  struct lossy *lossy;
  oom_sweep(create_reference, destroy_reference, &lossy, 8);
  const struct lossy_config other = {.scheme = "ring", .n = 5, .rows = 10, .k = 2, .width = 2, .period = 32};
  assert_int_equal(lossy_create(&other, &lossy), ZPS_ERR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_topka),
      cmocka_unit_test(test_topkdsa),
      cmocka_unit_test(test_gaussiank),
      cmocka_unit_test(test_gaussiank_counts),
      cmocka_unit_test(test_gtopk),
      cmocka_unit_test(test_oktopk),
      cmocka_unit_test(test_oktopk_words),
      cmocka_unit_test(test_oktopk_balances),
      cmocka_unit_test(test_oktopk_after_failures),
      cmocka_unit_test(test_reference_without_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
