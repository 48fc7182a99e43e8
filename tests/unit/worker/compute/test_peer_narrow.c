/* Rank-to-rank schemes whose ranks round what they give: every rank adds the same rounded gradients, the result is as
 * close to the sum as the rounding of each, and of QSGD levels the expected one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/values.h"
#include "tests/support/sim.h"
#include "tests/support/sim_grads.h"
#include "tests/support/threadless.h"

enum { ROWS = 2520 };

static const char *const names[] = {
    "recursive-doubling", "split-allgather", "dsar", "agsparse", "topka", "topkdsa", "gaussiank", "gtopk"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static struct sim sim_of(const char *name, uint32_t n, enum zps_value_codec values) {
  struct sim sim = {
      .scheme = zps_peer_scheme_find(name),
      .plan = {.n = n, .rows = ROWS, .width = 1, .chunks = 1, .values = values},
      .compute =
          {.dtype = ZPS_DTYPE_F32, .width = 1, .op = ZPS_OP_SUM, .policy = ZPS_CODEC_AUTO, .origin = {.seed = 3}},
      .seed = n,
  };
  assert_non_null(sim.scheme);
  if (sim.scheme->lossy) sim.plan.k = ROWS; /* lossy schemes lose nothing then, either */
  return sim;
}

/* Magnitudes of 1, of which every list of values has some: all scales are 1. */
static struct sim_grads draw(uint32_t n, uint64_t seed, double density) {
  struct zps_rng rng = {seed};
  struct sim_grads grads = sim_grads_draw(&rng, n, ROWS, 1, ZPS_DTYPE_F32, density, 0, SIM_RANDOM, false);
  for (uint32_t i = 0; i < n; i++) {
    float *const values = (float *)(uintptr_t)grads.inputs[i].values;
    for (uint32_t row = 0; row < ROWS; row++)
      if (values[row] != 0) values[row] = row % 5 == 0 ? 1 : (float)(1 + row % 7) / 8;
  }
  return grads;
}

/* Each rank's value becomes one of the two levels next to it, so the sum is off by less than a level of each, and is a
 * sum of levels. */
static void test_sums_of_levels(void **state) {
  (void)state;
  for (unsigned s = 0; s < N_NAMES; s++) {
    for (uint32_t n = 1; n <= 9; n++) {
      for (uint32_t bits = 2; bits <= 8; bits *= 2) {
        struct sim sim = sim_of(names[s], n, zps_values_of_bits(bits));
        struct sim_grads grads = draw(n, s + n, 0.3);
        sim_open(&sim);
        sim_run(&sim, grads.inputs); /* all ranks have the same bits */
        uint64_t n_union;
        double *const sum = sim_grads_sum(&grads, &n_union);
        const double level = 1.0 / ((1 << (bits - 1)) - 1);
        bool rounded = false;
        for (uint32_t row = 0; row < ROWS; row++) {
          const double got = sim_load(ZPS_DTYPE_F32, sim_result(&sim, 0), row), n_levels = got / level;
          if (fabs(got - sum[row]) >= n * level + 1e-5)
            fail_msg("%s, n = %u, %u bits, row %u: %g, not %g", names[s], n, bits, row, got, sum[row]);
          if (fabs(n_levels - round(n_levels)) > 1e-3) fail_msg("%s: %g is no sum of levels", names[s], got);
          rounded |= got != sum[row];
        }
        assert_true(rounded);
        free(sum);
        sim_grads_free(&grads);
        sim_close(&sim);
      }
    }
  }
}

/* Over many steps the mean is the sum. */
static void test_expectation(void **state) {
  (void)state;
  enum { STEPS = 400, N = 4 };
  for (unsigned s = 0; s < 4; s++) { /* those that keep every row */
    struct sim sim = sim_of(names[s], N, ZPS_VALUES_QSGD2);
    struct sim_grads grads = draw(N, 7, 0.02);
    double mean[ROWS] = {0};
    sim_open(&sim);
    for (unsigned step = 0; step < STEPS; step++) {
      sim_run(&sim, grads.inputs);
      for (uint32_t row = 0; row < ROWS; row++) mean[row] += sim_load(ZPS_DTYPE_F32, sim_result(&sim, 0), row) / STEPS;
    }
    uint64_t n_union;
    double *const sum = sim_grads_sum(&grads, &n_union);
    double off = 0;
    for (uint32_t row = 0; row < ROWS; row++) { /* a draw's deviation is 0.5 at most */
      assert_true(fabs(mean[row] - sum[row]) < 5 * 0.5 * sqrt(N) / sqrt(STEPS));
      off += mean[row] - sum[row];
    }
    assert_true(fabs(off) < 5 * 0.5 * sqrt(N * 0.02 * ROWS) / sqrt(STEPS)); /* errors are not all to one side */
    free(sum);
    sim_grads_free(&grads);
    sim_close(&sim);
  }
}

/* The sums of a half that is rounded as well (`bits`) are drawn apart from the gradients. */
static void test_rounded_twice(void **state) {
  (void)state;
  enum { STEPS = 400, N = 3 };
  struct sim sim = sim_of("dsar", N, ZPS_VALUES_QSGD2);
  struct sim_grads grads = draw(N, 9, 1);
  double off = 0;
  sim.plan.bits = 2;
  sim_open(&sim);
  uint64_t n_union;
  double *const sum = sim_grads_sum(&grads, &n_union);
  for (unsigned step = 0; step < STEPS; step++) {
    sim_run(&sim, grads.inputs);
    for (uint32_t row = 0; row < ROWS; row++) off += sim_load(ZPS_DTYPE_F32, sim_result(&sim, 0), row) - sum[row];
  }
  assert_true(fabs(off) / STEPS / ROWS < 0.01);
  free(sum);
  sim_grads_free(&grads);
  sim_close(&sim);
}

/* A value takes its bits, a list of 1024 its scale; indices take what they took. */
static void test_bytes(void **state) {
  (void)state;
  for (uint32_t codec = ZPS_VALUES_BF16; codec <= ZPS_VALUES_QSGD8; codec++) {
    struct sim sim = sim_of("agsparse", 5, (enum zps_value_codec)codec), raw = sim_of("agsparse", 5, 0);
    struct sim_grads grads = draw(5, 2, 0.3);
    sim_open(&sim);
    sim_open(&raw);
    sim_run(&sim, grads.inputs);
    sim_run(&raw, grads.inputs);
    for (uint32_t i = 0; i < 5; i++) {
      const uint64_t z = sim_grads_nnz(&grads, i);
      const uint64_t saved = 4 * z - zps_values_bytes((enum zps_value_codec)codec, ZPS_DTYPE_F32, z);
      assert_int_equal(sim_out(&raw, i).row_bytes - sim_out(&sim, i).row_bytes, 4 * saved);
    }
    sim_grads_free(&grads);
    sim_close(&sim);
    sim_close(&raw);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sums_of_levels),
      cmocka_unit_test(test_expectation),
      cmocka_unit_test(test_rounded_twice),
      cmocka_unit_test(test_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
