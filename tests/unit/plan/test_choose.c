/* The cases in which the planner switches, and those in which it does not. */
#include "common/plan/choose.h"

#include <math.h>

#include "common/base/rng.h"
#include "tests/unit/plan/plan_rig.h"

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
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
}

static struct zps_plan_chooser prober_of(unsigned allowed) {
  struct zps_plan_chooser chooser = chooser_of(allowed);
  chooser.policy.doubt = 3;
  chooser.policy.profile_rounds = 1;
  return chooser;
}

static const unsigned five = 1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_RECURSIVE_DOUBLING | 1u << ZPS_PLAN_AGSPARSE |
                             1u << ZPS_PLAN_DSAR | 1u << ZPS_PLAN_RING;

/* A machine on which schemes take so long, give or take `noise` of it a look, and everything takes up to three times as
 * long while something else runs: a tenth of the time, for some looks on end. */
struct machine {
  double time_s[ZPS_PLAN_SCHEMES], noise;
  struct zps_rng rng;
  unsigned busy, tried[ZPS_PLAN_SCHEMES], rounds;
};

static double look(struct machine *machine, enum zps_plan_scheme scheme) {
  double factor = exp(machine->noise *
                      (zps_rng_unit(&machine->rng) + zps_rng_unit(&machine->rng) + zps_rng_unit(&machine->rng) +
                       zps_rng_unit(&machine->rng) - 2) *
                      sqrt(3));
  if (machine->noise > 0 && machine->busy == 0 && zps_rng_below(&machine->rng, 60) == 0)
    machine->busy = 1 + (unsigned)zps_rng_below(&machine->rng, 12);
  if (machine->busy > 0) {
    machine->busy--;
    factor *= 1 + 2 * zps_rng_unit(&machine->rng);
  }
  machine->tried[scheme]++;
  machine->rounds++;
  return machine->time_s[scheme] * factor;
}

/* Until one is held. */
static void try_all(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, struct machine *machine) {
  do {
    assert_true(machine->rounds < 70);
    (void)zps_plan_choose(chooser, input, look(machine, chooser->scheme));
  } while (chooser->state != ZPS_PLAN_HOLDING);
}

/* The measured time of rounds decides: the scheme that is measured best is taken, for any predictions. */
static void test_probing_finds_the_fastest(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  static const enum zps_plan_scheme fast[] = {ZPS_PLAN_BALANCED, ZPS_PLAN_RECURSIVE_DOUBLING, ZPS_PLAN_AGSPARSE};
  for (unsigned f = 0; f < 3; f++) {
    struct zps_plan_chooser chooser = prober_of(five);
    struct machine machine = {.noise = 0};
    for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
      machine.time_s[i] = 10 * plan_time(&input, (enum zps_plan_scheme)i) * (i == fast[f] ? 0.6 : 1);
    try_all(&chooser, &input, &machine);
    assert_int_equal(chooser.scheme, fast[f]);
    for (unsigned i = 0; i < 20; i++) assert_false(zps_plan_choose(&chooser, &input, machine.time_s[chooser.scheme]));
    /* Dense ones cost hundreds of times as much at this density: no doubt about that. */
    assert_true(machine.tried[ZPS_PLAN_RING] == 0 && machine.tried[ZPS_PLAN_DSAR] == 0);
  }
}

/* Predictions may be far too low for some kinds of schemes and right for others. Where overhead explains the time of
 * the former, a scheme that would be next to the best if its own prediction held is tried. */
static void test_probing_where_some_predictions_hold(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  input.profile.density = 0.022;
  input.calibration.encode_row_ns = 1;
  const struct zps_plan_cost one = plan_cost(&input, ZPS_PLAN_BALANCED);
  input.calibration.encode_row_ns = 2 * one.wire_s / one.compute_s;
  struct zps_plan_chooser chooser =
      prober_of(1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_DSAR | 1u << ZPS_PLAN_DENSE_SPLIT);
  const double balanced_s = one.wire_s + 3 * 2 * one.wire_s;
  struct machine machine = {
      .time_s = {
          [ZPS_PLAN_BALANCED] = balanced_s, [ZPS_PLAN_DSAR] = balanced_s, [ZPS_PLAN_DENSE_SPLIT] = balanced_s / 2}};
  try_all(&chooser, &input, &machine);
  assert_int_equal(chooser.scheme, ZPS_PLAN_DENSE_SPLIT);
}

/* Noise of a tenth, and others' work at times: the pick is within 5% of the fastest nine times out of ten, and next to
 * never a fifth behind it. How far predictions were off, each on its own, is not to matter. */
static void test_probing_on_a_busy_machine(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  struct zps_rng rng = {.state = 7};
  const unsigned allowed = 1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_RECURSIVE_DOUBLING |
                           1u << ZPS_PLAN_SPLIT_ALLGATHER | 1u << ZPS_PLAN_AGSPARSE | 1u << ZPS_PLAN_HIERARCHICAL;
  enum { TRIALS = 1000 };
  unsigned near = 0, far = 0, looks = 0;
  for (unsigned trial = 0; trial < TRIALS; trial++) {
    struct machine machine = {.noise = 0.1, .rng = {.state = trial}};
    double best_s = INFINITY;
    for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
      const double off = 1 + (double)zps_rng_below(&rng, 1000) / 1000; /* predictions are too low */
      machine.time_s[i] =
          1e-3 * off * plan_time(&input, (enum zps_plan_scheme)i) / plan_time(&input, ZPS_PLAN_BALANCED);
      if (allowed >> i & 1) best_s = fmin(best_s, machine.time_s[i]);
    }
    struct zps_plan_chooser chooser = prober_of(allowed);
    try_all(&chooser, &input, &machine);
    const double over = machine.time_s[chooser.scheme] / best_s;
    near += over <= 1.05;
    far += over > 1.2;
    looks += machine.rounds;
  }
  print_message("# of %u, %u within 5%%, %u more than 20%% behind; %.1f looks each\n", TRIALS, near, far,
                (double)looks / TRIALS);
  assert_true(near >= TRIALS * 9 / 10);
  assert_true(far <= TRIALS / 200);
}

/* Two that are close run in turns until it is clear, so that a slow look does not decide; a scheme that is far behind
 * has one look. */
static void test_close_ones_have_several_looks(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  struct zps_plan_chooser chooser = prober_of(zen | 1u << ZPS_PLAN_AGSPARSE);
  unsigned tried[ZPS_PLAN_SCHEMES] = {0}, rounds = 0;
  do {
    const unsigned first = tried[chooser.scheme]++ <= 1; /* the first of all is its profile */
    const double took_s = chooser.scheme == ZPS_PLAN_BALANCED   ? (first ? 1.04e-3 : 0.95e-3)
                          : chooser.scheme == ZPS_PLAN_AGSPARSE ? 5e-3
                                                                : 1e-3;
    assert_true(rounds++ < 30);
    (void)zps_plan_choose(&chooser, &input, took_s);
  } while (chooser.state != ZPS_PLAN_HOLDING);
  assert_int_equal(chooser.scheme, ZPS_PLAN_BALANCED);
  assert_true(tried[ZPS_PLAN_BALANCED] >= 5 && tried[ZPS_PLAN_RECURSIVE_DOUBLING] >= 5);
  assert_int_equal(tried[ZPS_PLAN_AGSPARSE], 1);
}

/* Long rounds are not run for nothing, very long ones less still. */
static void test_long_rounds_have_fewer_looks(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  static const double time_s[] = {1e-3, 50e-3, 1};
  unsigned looks[3];
  for (unsigned length = 0; length < 3; length++) {
    struct zps_plan_chooser chooser = prober_of(zen);
    struct machine machine = {.noise = 0};
    machine.time_s[ZPS_PLAN_BALANCED] = time_s[length];
    machine.time_s[ZPS_PLAN_RECURSIVE_DOUBLING] = 1.01 * machine.time_s[ZPS_PLAN_BALANCED];
    try_all(&chooser, &input, &machine);
    assert_int_equal(chooser.scheme, ZPS_PLAN_BALANCED);
    looks[length] = machine.rounds;
  }
  assert_true(looks[0] == 1 + 2 * ZPS_PLAN_RUNGS && looks[1] < looks[0] && looks[2] < looks[1]);
}

/* After a drift all are tried again, but for those that were measured to be far behind. */
static void test_probing_again(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  struct zps_plan_chooser chooser =
      prober_of(1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_RECURSIVE_DOUBLING | 1u << ZPS_PLAN_AGSPARSE);
  unsigned tried[ZPS_PLAN_SCHEMES] = {0};
  for (unsigned i = 0; i < 40; i++) {
    if (i == 20) input.profile.density *= 1.5;
    if (i >= 20) tried[chooser.scheme]++;
    const double predicted = plan_time(&input, chooser.scheme);
    (void)zps_plan_choose(&chooser, &input, predicted * (chooser.scheme == ZPS_PLAN_AGSPARSE ? 4 : 1));
  }
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  assert_int_equal(chooser.scheme, ZPS_PLAN_BALANCED);
  assert_int_equal(tried[ZPS_PLAN_AGSPARSE], 0);
  assert_true(tried[ZPS_PLAN_RECURSIVE_DOUBLING] > 0);
}

/* When rounds go on taking longer than they did, all are tried again; when that changes nothing, less and less often.
 */
static void test_slower_rounds_are_looked_into(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  struct zps_plan_chooser chooser = prober_of(zen);
  struct machine machine = {.time_s = {[ZPS_PLAN_BALANCED] = 1e-3, [ZPS_PLAN_RECURSIVE_DOUBLING] = 1.3e-3}};
  try_all(&chooser, &input, &machine);
  assert_int_equal(chooser.scheme, ZPS_PLAN_BALANCED);
  /* Now and then is not lasting. */
  for (unsigned i = 0; i < 200; i++) assert_false(zps_plan_choose(&chooser, &input, i % 8 ? 1e-3 : 5e-3));
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  /* Both are slower: balanced stays. */
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) machine.time_s[i] *= 2;
  unsigned probed = 0, runs = 0;
  for (unsigned i = 0; i < 2000; i++) {
    if (i % 100 == 99) machine.time_s[ZPS_PLAN_BALANCED] *= 1.2, machine.time_s[ZPS_PLAN_RECURSIVE_DOUBLING] *= 1.2;
    const bool was_probing = chooser.state == ZPS_PLAN_PROBING;
    (void)zps_plan_choose(&chooser, &input, machine.time_s[chooser.scheme]);
    probed += chooser.state == ZPS_PLAN_PROBING;
    runs += !was_probing && chooser.state == ZPS_PLAN_PROBING;
  }
  assert_true(runs >= 2 && runs <= 8 && probed < 200);
  /* Balanced alone is: the other one is taken. */
  machine.time_s[ZPS_PLAN_BALANCED] *= 4;
  for (unsigned i = 0; i < 2000; i++) (void)zps_plan_choose(&chooser, &input, machine.time_s[chooser.scheme]);
  assert_int_equal(chooser.scheme, ZPS_PLAN_RECURSIVE_DOUBLING);
}

/* Where no times are known, predictions decide. */
static void test_probing_blindly(void **state) {
  (void)state;
  struct zps_plan_input input = eight(1);
  struct zps_plan_chooser chooser = prober_of(zen);
  for (unsigned i = 0; i < 40; i++) (void)zps_plan_choose(&chooser, &input, i & 1 ? 0 : NAN);
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  assert_int_equal(chooser.scheme, ZPS_PLAN_RECURSIVE_DOUBLING);
}

/* A scheme that is no longer allowed is left at once. */
static void test_what_is_ruled_out_later(void **state) {
  (void)state;
  struct zps_plan_input input = eight(0.66);
  struct zps_plan_chooser chooser = prober_of(zen);
  for (unsigned i = 0; i < 40; i++) (void)zps_plan_choose(&chooser, &input, 1);
  chooser.policy.allowed &= ~(1u << chooser.scheme);
  const enum zps_plan_scheme before = chooser.scheme;
  assert_true(zps_plan_choose(&chooser, &input, 1));
  assert_int_not_equal(chooser.scheme, before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_zens_choice),
      cmocka_unit_test(test_small_gains_change_nothing),
      cmocka_unit_test(test_a_gain_must_last),
      cmocka_unit_test(test_candidates_do_not_share_patience),
      cmocka_unit_test(test_drift_profiles_again),
      cmocka_unit_test(test_measured_times_count),
      cmocka_unit_test(test_only_what_is_allowed),
      cmocka_unit_test(test_probing_finds_the_fastest),
      cmocka_unit_test(test_close_ones_have_several_looks),
      cmocka_unit_test(test_probing_where_some_predictions_hold),
      cmocka_unit_test(test_probing_on_a_busy_machine),
      cmocka_unit_test(test_long_rounds_have_fewer_looks),
      cmocka_unit_test(test_slower_rounds_are_looked_into),
      cmocka_unit_test(test_probing_blindly),
      cmocka_unit_test(test_probing_again),
      cmocka_unit_test(test_what_is_ruled_out_later),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
