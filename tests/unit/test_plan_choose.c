/* When the planner switches, and when it does not. */
#include "common/plan/choose.h"

#include <math.h>

#include "tests/unit/plan_rig.h"

/* Eight ranks on a link without latency, COO: balanced costs 7/8 (gamma_8 + 1), recursive doubling 1 + gamma_2 +
 * gamma_4. With gamma_k = k^x: x = 0.66 gives 4.35 and 5.08, x = 1 gives 7.9 and 7. */
static struct zps_plan_input eight(double exponent) {
  struct zps_plan_input input = plan_nmt(8);
  input.profile.density = 0.001;
  input.profile.gamma.n = 0;
  zps_plan_curve_set(&input.profile.gamma, 1, 1);
  zps_plan_curve_set(&input.profile.gamma, 8, pow(8, exponent));
  return input;
}

static struct zps_plan_chooser chooser_of(unsigned allowed) {
  struct zps_plan_policy policy;
  struct zps_plan_chooser chooser;
  zps_plan_policy_default(&policy);
  policy.allowed = allowed;
  zps_plan_chooser_init(&chooser, &policy, ZPS_PLAN_BALANCED);
  return chooser;
}

static const unsigned zen = 1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_RECURSIVE_DOUBLING;

/* Rounds until it switches, at most 100. */
static unsigned rounds_to_switch(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  for (unsigned i = 1; i <= 100; i++) {
    if (zps_plan_choose(chooser, input, 0)) return i;
  }
  return 0;
}

static void test_zens_choice(void **state) {
  (void)state;
  struct zps_plan_input overlapping = eight(0.66), disjoint = eight(1);
  struct zps_plan_chooser chooser = chooser_of(zen);
  assert_int_equal(rounds_to_switch(&chooser, &overlapping), 0);
  assert_int_equal(chooser.scheme, ZPS_PLAN_BALANCED);
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  chooser = chooser_of(zen);
  assert_int_equal(rounds_to_switch(&chooser, &disjoint), 4); /* once the profile is there */
  assert_int_equal(chooser.scheme, ZPS_PLAN_RECURSIVE_DOUBLING);
}

/* 9% is not worth a switch: x = 0.962, Zen's own case. */
static void test_small_gains_change_nothing(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.962);
  struct zps_plan_chooser chooser = chooser_of(zen);
  assert_true(plan_time(&input, ZPS_PLAN_RECURSIVE_DOUBLING) < plan_time(&input, ZPS_PLAN_BALANCED));
  assert_int_equal(rounds_to_switch(&chooser, &input), 0);
}

static struct zps_plan_chooser holding(void) {
  struct zps_plan_input input = eight(0.9);
  struct zps_plan_chooser chooser = chooser_of(zen);
  chooser.policy.drift = 9; /* another test's matter */
  for (unsigned i = 0; i < 10; i++) assert_false(zps_plan_choose(&chooser, &input, 0));
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  return chooser;
}

static void test_a_gain_must_last(void **state) {
  (void)state;
  struct zps_plan_input input = eight(1), before = eight(0.9);
  struct zps_plan_chooser chooser = holding();
  for (unsigned spell = 0; spell < 5; spell++) {
    for (unsigned i = 0; i < 7; i++) assert_false(zps_plan_choose(&chooser, &input, 0));
    assert_int_equal(chooser.state, ZPS_PLAN_WAVERING);
    assert_false(zps_plan_choose(&chooser, &before, 0));
    assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  }
  assert_int_equal(rounds_to_switch(&chooser, &input), 8);
  assert_int_equal(chooser.scheme, ZPS_PLAN_RECURSIVE_DOUBLING);
}

/* Whether a third scheme or the other is ahead changes every round: neither lasts. */
static void test_candidates_do_not_share_patience(void **state) {
  (void)state;
  struct zps_plan_input doubling = eight(1), dense = eight(1);
  struct zps_plan_chooser chooser = holding();
  chooser.policy.allowed |= 1u << ZPS_PLAN_RING;
  dense.profile.density = 1;
  dense.profile.gamma.n = 0;
  for (unsigned i = 0; i < 40; i++) assert_false(zps_plan_choose(&chooser, i & 1 ? &dense : &doubling, 0));
  assert_int_equal(rounds_to_switch(&chooser, &dense), 7); /* the last round was its first */
  assert_int_equal(chooser.scheme, ZPS_PLAN_RING);
}

static void test_drift_profiles_again(void **state) {
  (void)state;
  struct zps_plan_input before = eight(0.66), after = eight(1);
  struct zps_plan_chooser chooser = chooser_of(zen);
  assert_int_equal(rounds_to_switch(&chooser, &before), 0);
  assert_false(zps_plan_choose(&chooser, &after, 0));
  assert_int_equal(chooser.state, ZPS_PLAN_PROFILING);
  assert_int_equal(rounds_to_switch(&chooser, &after), 4);
  /* A change of density alone is one, too; a smaller one is not. */
  struct zps_plan_input denser = after;
  denser.profile.density *= 1.2;
  assert_false(zps_plan_choose(&chooser, &denser, 0));
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  denser.profile.density = 0.002;
  assert_false(zps_plan_choose(&chooser, &denser, 0));
  assert_int_equal(chooser.state, ZPS_PLAN_PROFILING);
}

/* Balanced is predicted to be ahead by a sixth, but takes three times what was predicted: recursive doubling gets a
 * try, and is left again when it is worse still. */
static void test_measured_times_count(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  struct zps_plan_chooser chooser = chooser_of(zen);
  const double balanced = plan_time(&input, ZPS_PLAN_BALANCED);
  const double doubling = plan_time(&input, ZPS_PLAN_RECURSIVE_DOUBLING);
  for (unsigned i = 0; i < 10; i++) assert_false(zps_plan_choose(&chooser, &input, 1.2 * balanced));
  bool switched = false;
  for (unsigned i = 0; i < 60 && !switched; i++) switched = zps_plan_choose(&chooser, &input, 3 * balanced);
  assert_true(switched);
  assert_int_equal(chooser.scheme, ZPS_PLAN_RECURSIVE_DOUBLING);
  switched = false;
  for (unsigned i = 0; i < 60 && !switched; i++) switched = zps_plan_choose(&chooser, &input, 4 * doubling);
  assert_true(switched);
  assert_int_equal(chooser.scheme, ZPS_PLAN_BALANCED);
  for (unsigned i = 0; i < 60; i++) assert_false(zps_plan_choose(&chooser, &input, 3 * balanced));
  /* Nonsense from a clock is no measurement. */
  for (unsigned i = 0; i < 60; i++) assert_false(zps_plan_choose(&chooser, &input, i & 1 ? NAN : -1));
}

static void test_only_what_is_allowed(void **state) {
  (void)state;
  struct zps_plan_input input = eight(1);
  input.k = 10; /* lossy schemes would cost next to nothing */
  struct zps_plan_chooser chooser = chooser_of(zps_plan_lossless());
  (void)rounds_to_switch(&chooser, &input);
  assert_false(zps_plan_scheme_lossy(chooser.scheme));
  chooser = chooser_of(zps_plan_lossless() | 1u << ZPS_PLAN_OKTOPK);
  (void)rounds_to_switch(&chooser, &input);
  assert_int_equal(chooser.scheme, ZPS_PLAN_OKTOPK);
  assert_string_equal(zps_plan_state_name(chooser.state), "holding");
  assert_string_equal(zps_plan_state_name((enum zps_plan_state)9), "?");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_zens_choice),          cmocka_unit_test(test_small_gains_change_nothing),
      cmocka_unit_test(test_a_gain_must_last),     cmocka_unit_test(test_candidates_do_not_share_patience),
      cmocka_unit_test(test_drift_profiles_again), cmocka_unit_test(test_measured_times_count),
      cmocka_unit_test(test_only_what_is_allowed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
