/* Curves, profiles, and what is learnt of them while training. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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
  profile.block_density = 0.875; /* as three things */
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
  /* It follows what changes. */
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

static void test_sketch(void **state) {
  (void)state;
  static struct zps_plan_sketch all, one;
  static uint32_t rows[20000];
  zps_plan_sketch_clear(&all);
  for (uint32_t i = 0; i < 500; i++) rows[i] = 7 * i;
  zps_plan_sketch_add(&all, rows, 500);
  assert_true(zps_plan_sketch_rows(&all) == 500); /* exact while it keeps them all */
  zps_plan_sketch_clear(&one);
  for (uint32_t i = 0; i < 500; i++) rows[i] = 7 * (i + 250);
  zps_plan_sketch_add(&one, rows, 500);
  zps_plan_sketch_merge(&all, &one);
  assert_true(zps_plan_sketch_rows(&all) == 750);
  /* Eight ranks of 20000 out of 100000: 1 - 0.8^k of them in k ranks. */
  struct zps_rng rng = {.state = 5};
  zps_plan_sketch_clear(&all);
  for (unsigned k = 1; k <= 8; k++) {
    uint32_t n = 0;
    for (uint32_t row = 0; row < 100000 && n < 20000; row++) {
      if (zps_rng_below(&rng, 5) == 0) rows[n++] = row;
    }
    zps_plan_sketch_clear(&one);
    zps_plan_sketch_add(&one, rows, n);
    near(zps_plan_sketch_rows(&one), n, 0.1, "one rank");
    zps_plan_sketch_merge(&all, &one);
    near(zps_plan_sketch_rows(&all), 1e5 * (1 - pow(0.8, k)), 0.1, "union");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_curve),  cmocka_unit_test(test_curve_from_text),
                                     cmocka_unit_test(test_gamma),  cmocka_unit_test(test_skew),
                                     cmocka_unit_test(test_blocks), cmocka_unit_test(test_observer),
                                     cmocka_unit_test(test_sketch)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
