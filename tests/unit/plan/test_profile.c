/* Curves, profiles, and how training refines them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/plan/profile.h"
#include "common/plan/sketch.h"

static void near(double got, double want, double part, const char *what) {
  if (!(fabs(got - want) <= part * fabs(want))) fail_msg("%s: %.9g, not %.9g", what, got, want);
}

static void test_curve(void **state) {
  (void)state;
  struct zps_plan_curve curve = {.n = 0};
  assert_true(zps_plan_curve_at(&curve, 9) == 1);
  assert_true(zps_plan_curve_set(&curve, 4, 4));
  assert_true(zps_plan_curve_at(&curve, 9) == 4);
  assert_true(zps_plan_curve_set(&curve, 1, 1));
  near(zps_plan_curve_at(&curve, 2), 2, 1e-12, "between");
  near(zps_plan_curve_at(&curve, 16), 16, 1e-12, "beyond");
  assert_true(zps_plan_curve_set(&curve, 16, 8)); /* slope 1/2 */
  near(zps_plan_curve_at(&curve, 64), 16, 1e-12, "beyond the last line");
  assert_true(zps_plan_curve_set(&curve, 4, 5));
  near(zps_plan_curve_at(&curve, 4), 5, 1e-12, "replaced");
  assert_int_equal(curve.n, 3);
  assert_false(zps_plan_curve_set(&curve, 0, 1) || zps_plan_curve_set(&curve, 1, NAN));
  for (unsigned i = 0; i < ZPS_PLAN_CURVE_MAX; i++) (void)zps_plan_curve_set(&curve, 100 + i, 9);
  assert_false(zps_plan_curve_set(&curve, 1000, 9));
}

static void test_curve_from_text(void **state) {
  (void)state;
  static const char *const bad[] = {"", "2", "2:", ":2", "2:1.5,", "2:x", "0:1", "2:-1", "2:1.5;4:2", "nan:1"};
  struct zps_plan_curve curve = {.n = 0};
  struct zps_error error;
  assert_int_equal(zps_plan_curve_parse("16:6.2,2:1.6", &curve, &error), ZPS_OK);
  assert_int_equal(curve.n, 3);
  near(zps_plan_curve_at(&curve, 1), 1, 1e-12, "the first point");
  near(zps_plan_curve_at(&curve, 2), 1.6, 1e-12, "the second");
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (zps_plan_curve_parse(bad[i], &curve, &error) != ZPS_ERR_INVALID) fail_msg("'%s' was taken", bad[i]);
    assert_int_equal(curve.n, 3);
  }
}

static void test_gamma(void **state) {
  (void)state;
  struct zps_plan_profile profile = {.density = 0.1, .overlap = ZPS_PLAN_INDEPENDENT};
  near(zps_plan_gamma(&profile, 2), 1.9, 1e-12, "independent: 1 - 0.81 over 0.1");
  near(zps_plan_gamma(&profile, 1e6), 10, 1e-9, "all rows");
  near(zps_plan_union(&profile, 2), 0.19, 1e-12, "union");
  profile.overlap = ZPS_PLAN_DISJOINT;
  near(zps_plan_gamma(&profile, 4), 4, 1e-12, "disjoint");
  near(zps_plan_gamma(&profile, 40), 10, 1e-12, "no more than all rows");
  profile.overlap = ZPS_PLAN_MEASURED;
  assert_true(zps_plan_gamma(&profile, 7) == 1);
  zps_plan_curve_set(&profile.gamma, 1, 1);
  zps_plan_curve_set(&profile.gamma, 2, 3); /* no such thing */
  assert_true(zps_plan_gamma(&profile, 2) == 2);
  profile.density = 0;
  assert_true(zps_plan_gamma(&profile, 8) == 1);
  profile = (struct zps_plan_profile){.density = 1, .overlap = ZPS_PLAN_INDEPENDENT};
  assert_true(zps_plan_gamma(&profile, 8) == 1);
}

static void test_skew(void **state) {
  (void)state;
  struct zps_plan_profile profile = {.density = 0.05};
  assert_true(zps_plan_skew(&profile, 8) == 1);
  zps_plan_curve_set(&profile.skew, 1, 1);
  zps_plan_curve_set(&profile.skew, 8, 4);
  near(zps_plan_skew(&profile, 64), 16, 1e-12, "beyond");
  near(zps_plan_skew(&profile, 512), 20, 1e-12, "a part is full");
}

static void test_blocks(void **state) {
  (void)state;
  struct zps_plan_profile profile = {.density = 0.5};
  near(zps_plan_blocks(&profile, 128, 0.5), 0.75, 1e-12, "two rows a block");
  near(zps_plan_blocks(&profile, 512, 0.5), 0.5, 1e-12, "a row is more than a block");
  profile.run = 128;
  near(zps_plan_blocks(&profile, 1, 0.5), 0.75, 1e-12, "runs");
  profile.block_density = 0.875; /* three rows in a block give this */
  near(zps_plan_blocks(&profile, 1, 0.5), 0.875, 1e-12, "measured");
  near(zps_plan_blocks(&profile, 1, 0.75), 1 - 1.0 / 64, 1e-12, "and elsewhere");
  assert_true(zps_plan_blocks(&profile, 1, 1) == 1);
}

/* Four ranks of 100 rows, 250 in the sum: known without a look at the rows. */
static void test_observer(void **state) {
  (void)state;
  struct zps_plan_observer observer = {.rounds = 0};
  struct zps_plan_profile profile = {.density = 0.7, .run = 9};
  zps_plan_observed(&observer, &profile);
  assert_true(profile.density == 0.7); /* nothing seen */
  for (unsigned i = 0; i < 3; i++) zps_plan_observe(&observer, 4, 10000, 400, 250);
  zps_plan_observe_gamma(&observer, 2, 1.5);
  zps_plan_observe_gamma(&observer, 4, 99); /* known better */
  zps_plan_observed(&observer, &profile);
  near(profile.density, 0.01, 1e-12, "density");
  near(zps_plan_gamma(&profile, 4), 2.5, 1e-12, "gamma_4");
  near(zps_plan_gamma(&profile, 2), 1.5, 1e-12, "gamma_2");
  assert_true(profile.run == 9);
  /* The profile follows changes. */
  for (unsigned i = 0; i < 40; i++) zps_plan_observe(&observer, 4, 10000, 4000, 4000);
  zps_plan_observed(&observer, &profile);
  near(profile.density, 0.1, 0.01, "denser");
  near(zps_plan_gamma(&profile, 4), 4, 0.01, "no overlap any more");
  /* Another world is another start; nothing pushed is no overlap to speak of. */
  zps_plan_observe(&observer, 2, 10000, 0, 0);
  assert_int_equal(observer.rounds, 1);
  assert_true(observer.gamma_n == 1 && observer.density == 0);
  zps_plan_observe(&observer, 0, 10000, 1, 1);
  assert_int_equal(observer.rounds, 1);
}

/* Ranks draw their rows independently: 1 - (1 - d)^k of them in k ranks; from lists and from dense gradients alike. */
static void check_sketches(uint64_t n_rows, uint32_t width, double density) {
  enum { RANKS = 8 };
  static struct zps_plan_sketch sketches[2][RANKS];
  const struct zps_plan_sketch *all[RANKS];
  int64_t *const rows = calloc(n_rows, sizeof *rows);
  float *const values = calloc(n_rows * width, sizeof *values);
  assert_true(rows && values);
  for (unsigned r = 0; r < RANKS; r++) {
    struct zps_rng rng = {.state = r + 1};
    uint64_t n = 0;
    memset(values, 0, n_rows * width * sizeof *values);
    for (uint64_t row = 0; row < n_rows; row++) {
      if (zps_rng_unit(&rng) >= density) continue;
      rows[n++] = (int64_t)row;
      values[row * width + width - 1] = -1;
    }
    zps_plan_sketch_list(&sketches[0][r], n_rows, rows, n);
    zps_plan_sketch_dense(&sketches[1][r], n_rows, width, ZPS_DTYPE_F32, values);
    for (unsigned kind = 0; kind < 2; kind++) near(zps_plan_sketch_rows(&sketches[kind][r]), (double)n, 0.35, "rows");
  }
  for (unsigned kind = 0; kind < 2; kind++) {
    for (unsigned r = 0; r < RANKS; r++) all[r] = &sketches[(kind + r) % 2][r]; /* mixed, too */
    for (unsigned k = 1; k <= RANKS; k *= 2)
      near(zps_plan_sketch_gamma(all, RANKS, k), (1 - pow(1 - density, k)) / density, 0.12, "gamma");
  }
  free(rows);
  free(values);
}

static void test_sketch(void **state) {
  (void)state;
  check_sketches(1000, 1, 0.2);
  check_sketches(1000000, 1, 0.5);
  check_sketches(1000000, 1, 0.05);
  check_sketches(1000000, 1, 0.002);
  check_sketches(20000, 16, 0.1);
  /* Exact while all are kept; repeats count once, and invalid row numbers do not count. */
  static struct zps_plan_sketch sketch, read;
  const int64_t rows[] = {7, 3, 7, 999, 3, -1, 1000};
  zps_plan_sketch_list(&sketch, 1000, rows, 7);
  assert_true(zps_plan_sketch_rows(&sketch) == 3);
  const struct zps_plan_sketch *const one = &sketch;
  assert_true(zps_plan_sketch_gamma(&one, 1, 1) == 0); /* too little to tell */
  int64_t low[200];
  for (unsigned i = 0; i < 200; i++) low[i] = i;
  zps_plan_sketch_list(&sketch, 1000, low, 200);
  /* As text. */
  char text[ZPS_PLAN_SKETCH_TEXT + 1];
  zps_plan_sketch_print(&sketch, text);
  assert_true(zps_plan_sketch_parse(text, &read));
  assert_true(read.limit == sketch.limit && read.n == sketch.n);
  assert_memory_equal(read.hash, sketch.hash, sketch.n * sizeof sketch.hash[0]);
  static const char *const bad[] = {"",
                                    "12",
                                    "000000000000000g",
                                    "000000000000000000000000000000001",
                                    "00000000000000100000000000000010", /* not below the limit */
                                    "ffffffffffffffff00000000000000020000000000000001",
                                    "ffffffffffffffff00000000000000020000000000000002"};
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(zps_plan_sketch_parse(bad[i], &read));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_curve),  cmocka_unit_test(test_curve_from_text),
                                     cmocka_unit_test(test_gamma),  cmocka_unit_test(test_skew),
                                     cmocka_unit_test(test_blocks), cmocka_unit_test(test_observer),
                                     cmocka_unit_test(test_sketch)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
