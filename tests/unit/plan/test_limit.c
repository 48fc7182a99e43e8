/* What a trial may cost where links are slower than they look. */
#include "common/plan/limit.h"

#include "common/plan/choose.h"
#include "tests/unit/plan/plan_rig.h"

/* A cluster whose links carry `mbit`, and a tensor of which every rank has `density`. */
struct shape {
  uint32_t n;
  double mbit, latency_s;
  uint64_t rows;
  uint32_t width;
  double density;
};

static const struct shape reuse_low = {16, 25, 100e-6, 500000, 16, 0.001};
static const struct shape shapes[] = {
    {16, 25, 100e-6, 500000, 16, 0.001}, {16, 1, 100e-6, 500000, 16, 0.001}, {16, 25, 50e-3, 500000, 16, 0.001},
    {8, 100, 100e-6, 1 << 22, 1, 0.01},  {2, 25, 100e-6, 500000, 16, 0.001}, {3, 1, 100e-6, 1 << 20, 1, 0.0001},
    {16, 25, 100e-6, 1 << 20, 1, 0.3},   {16, 25, 100e-6, 1 << 20, 1, 1},    {16, 25, 100e-6, 1000, 1, 0.01},
    {16, 1, 50e-3, 1000, 1, 0.5},
};
/* A probe may find a rate that is higher by this. 1: the true rate. */
static const double errors[] = {1, 4, 40, 1000};

static struct zps_plan_input input_of(const struct shape *shape, double error) {
  struct zps_plan_input input = {.cluster = {.n = shape->n,
                                             .ranks_per_host = 1,
                                             .cores = 1,
                                             .servers = shape->n,
                                             .net = {shape->mbit * 1e6 / 8 * error, shape->latency_s},
                                             .host = {8e9, 5e-6}},
                                 .tensor = {.rows = shape->rows, .width = shape->width, .value_bytes = 4},
                                 .profile = {.density = shape->density}};
  zps_plan_calibration_default(&input.calibration);
  return input;
}

/* "auto", "auto:any", and that with schemes that send all values. */
static unsigned allowed_of(unsigned kind) {
  unsigned allowed = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    const bool is_in = kind == 0   ? zps_plan_scheme_alike(scheme)
                       : kind == 1 ? zps_plan_scheme_same_rows(scheme) && zps_plan_scheme_shows_union(scheme)
                                   : zps_plan_scheme_same_rows(scheme);
    allowed |= is_in ? 1u << i : 0;
  }
  return allowed;
}

static struct zps_plan_chooser chooser_of(unsigned allowed, double first_s) {
  struct zps_plan_policy policy;
  struct zps_plan_chooser chooser;
  zps_plan_policy_default(&policy);
  policy.allowed = allowed;
  policy.doubt = 3;
  policy.profile_rounds = 1;
  policy.patience = 4;
  policy.first_s = first_s;
  zps_plan_chooser_init(&chooser, &policy, ZPS_PLAN_BALANCED);
  return chooser;
}

/* Windows under the choice. A round takes what is predicted at the true rate. */
struct run {
  double longest_s, sum_s; /* of a window */
  unsigned tried[ZPS_PLAN_SCHEMES];
};

static void play(struct zps_plan_chooser *chooser, const struct zps_plan_input *seen, const struct zps_plan_input *is,
                 unsigned windows, struct run *run) {
  for (unsigned i = 0; i < windows; i++) {
    const double round_s = plan_time(is, chooser->scheme);
    run->longest_s = fmax(run->longest_s, round_s);
    run->sum_s += round_s;
    run->tried[chooser->scheme]++;
    (void)zps_plan_choose(chooser, seen, round_s);
  }
}

static void assert_no_disaster(const struct run *run, const struct zps_plan_input *is, const char *when, double error) {
  const double balanced_s = plan_time(is, ZPS_PLAN_BALANCED);
  if (run->longest_s > 3.01 * balanced_s)
    fail_msg(
        "%s, n = %u, %g MB/s, %lu rows, density %g, rate %g times too high: a scheme was tried that takes %.1f times "
        "as "
        "long as balanced",
        when, is->cluster.n, is->cluster.net.bandwidth / 1e6, (unsigned long)is->tensor.rows, is->profile.density,
        error, run->longest_s / balanced_s);
}

/* However far the measured rate is off, no scheme is tried that takes more than three times as long as the present one.
 */
static void test_no_disaster_is_tried(void **state) {
  (void)state;
  for (unsigned s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
    for (unsigned e = 0; e < sizeof errors / sizeof errors[0]; e++) {
      for (unsigned kind = 0; kind < 3; kind++) {
        const struct zps_plan_input is = input_of(&shapes[s], 1), seen = input_of(&shapes[s], errors[e]);
        struct zps_plan_chooser chooser = chooser_of(allowed_of(kind), 0);
        struct run run = {.sum_s = 0};
        play(&chooser, &seen, &is, 40, &run);
        assert_no_disaster(&run, &is, "at first", errors[e]);
      }
    }
  }
}

/* Nor when all are tried again: after a drift, also one in the middle of a trial, and when rounds take longer. */
static void test_no_disaster_is_tried_again(void **state) {
  (void)state;
  for (unsigned early = 1; early < 12; early++) {
    struct zps_plan_input is = input_of(&reuse_low, 1), seen = input_of(&reuse_low, 40);
    struct zps_plan_chooser chooser = chooser_of(allowed_of(2), 0);
    struct run run = {.sum_s = 0};
    play(&chooser, &seen, &is, early, &run);
    is.profile.density = seen.profile.density = 0.002;
    play(&chooser, &seen, &is, 60, &run);
    assert_no_disaster(&run, &is, "after a drift", 40);
    assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
    /* Half of the servers are lost: what remains takes longer. */
    is.cluster.servers = 4;
    play(&chooser, &seen, &is, 200, &run);
    assert_no_disaster(&run, &is, "after a loss", 40);
  }
}

/* The state says which schemes were left out. */
static void test_what_is_left_out_is_known(void **state) {
  (void)state;
  const struct zps_plan_input is = input_of(&reuse_low, 1), seen = input_of(&reuse_low, 40);
  struct zps_plan_chooser chooser = chooser_of(allowed_of(0), 0);
  struct run run = {.sum_s = 0};
  play(&chooser, &seen, &is, 40, &run);
  assert_true(chooser.too_slow >> ZPS_PLAN_DSAR & 1 && chooser.too_slow >> ZPS_PLAN_DENSE_PS & 1);
  assert_false(chooser.too_slow >> ZPS_PLAN_BALANCED & 1);
  assert_int_equal(run.tried[ZPS_PLAN_DSAR], 0);
}

/* A scheme whose own rounds take far longer than predicted has one round, not a window of them. */
static void test_a_failed_trial_is_one_round(void **state) {
  (void)state;
  const struct zps_plan_input is = input_of(&reuse_low, 1);
  struct zps_plan_chooser chooser = chooser_of(allowed_of(0), 50e-3);
  unsigned alone = 0, windows = 0;
  for (unsigned i = 0; i < 60; i++) {
    const bool on_trial = chooser.scheme == ZPS_PLAN_AGSPARSE;
    alone += on_trial && chooser.is_first;
    windows += on_trial && !chooser.is_first;
    (void)zps_plan_choose(&chooser, &is, plan_time(&is, chooser.scheme) * (on_trial ? 10 : 1));
  }
  assert_int_equal(chooser.state, ZPS_PLAN_HOLDING);
  assert_int_equal(alone, 1);
  assert_int_equal(windows, 0);
  assert_true(chooser.failed >> ZPS_PLAN_AGSPARSE & 1);
}

/* The first round makes connections and buffers: that it takes longer is no failure, nor that its time is not known. */
static void test_a_slow_first_round_is_no_failure(void **state) {
  (void)state;
  const struct zps_plan_input is = input_of(&reuse_low, 1);
  for (unsigned known = 0; known < 2; known++) {
    struct zps_plan_chooser chooser = chooser_of(allowed_of(0), 50e-3);
    struct run run = {.sum_s = 0};
    for (unsigned i = 0; i < 60; i++) {
      const double round_s = plan_time(&is, chooser.scheme);
      if (!chooser.is_first) run.tried[chooser.scheme]++;
      (void)zps_plan_choose(&chooser, &is, chooser.is_first ? known * (2 * round_s + 50e-3) : round_s);
    }
    assert_int_equal(chooser.failed, 0);
    assert_true(run.tried[ZPS_PLAN_AGSPARSE] > 0 && run.tried[ZPS_PLAN_SPLIT_ALLGATHER] > 0);
  }
}

/* Where rounds take long for computing, not for bytes, schemes that send more are tried. */
static void test_busy_machines_are_not_slow_links(void **state) {
  (void)state;
  const struct shape near = {4, 64000, 5e-6, 1 << 24, 1, 0.2};
  const struct zps_plan_input seen = input_of(&near, 1);
  struct zps_plan_chooser chooser = chooser_of(allowed_of(0), 0);
  for (unsigned i = 0; i < 60; i++) {
    const double balanced_s = 2.5 * plan_time(&seen, ZPS_PLAN_BALANCED);
    (void)zps_plan_choose(&chooser, &seen, chooser.scheme == ZPS_PLAN_DENSE_SPLIT ? balanced_s / 2 : balanced_s);
  }
  assert_int_equal(chooser.scheme, ZPS_PLAN_DENSE_SPLIT);
}

static void test_slowdown(void **state) {
  (void)state;
  const struct zps_plan_input is = input_of(&reuse_low, 1), seen = input_of(&reuse_low, 40);
  double time_s[ZPS_PLAN_SCHEMES] = {0};
  assert_true(zps_plan_slowdown(&seen, time_s) == 1);
  time_s[ZPS_PLAN_BALANCED] = plan_time(&is, ZPS_PLAN_BALANCED);
  plan_near(zps_plan_slowdown(&seen, time_s), 40, 0.2, "slowdown");
  plan_near(zps_plan_slowed(&seen, ZPS_PLAN_DSAR, zps_plan_slowdown(&seen, time_s)), plan_time(&is, ZPS_PLAN_DSAR), 0.2,
            "dsar");
  /* Rounds that are faster than predicted, or are not measured, slow nothing down. */
  time_s[ZPS_PLAN_BALANCED] = plan_time(&seen, ZPS_PLAN_BALANCED) / 2;
  assert_true(zps_plan_slowdown(&seen, time_s) == 1);
}

/* The first scheme has nothing to go by. */
static void test_the_first_scheme_is_safe(void **state) {
  (void)state;
  const struct zps_plan_tensor tensor = {.rows = 500000, .width = 16, .value_bytes = 4};
  static const uint32_t ns[] = {2, 4, 16, 64};
  for (unsigned i = 0; i < sizeof ns / sizeof ns[0]; i++) {
    for (unsigned kind = 0; kind < 3; kind++)
      assert_int_equal(zps_plan_safest(ns[i], &tensor, allowed_of(kind)), ZPS_PLAN_BALANCED);
  }
  const unsigned ring = 1u << ZPS_PLAN_RING, dsar = 1u << ZPS_PLAN_DSAR, gather = 1u << ZPS_PLAN_AGSPARSE;
  assert_int_equal(zps_plan_safest(16, &tensor, dsar | gather), ZPS_PLAN_AGSPARSE);
  assert_int_equal(zps_plan_safest(16, &tensor, ring | 1u << ZPS_PLAN_SPLIT_ALLGATHER), ZPS_PLAN_SPLIT_ALLGATHER);
  assert_int_equal(zps_plan_safest(16, &tensor, ring), ZPS_PLAN_RING);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_disaster_is_tried),
      cmocka_unit_test(test_no_disaster_is_tried_again),
      cmocka_unit_test(test_what_is_left_out_is_known),
      cmocka_unit_test(test_a_failed_trial_is_one_round),
      cmocka_unit_test(test_a_slow_first_round_is_no_failure),
      cmocka_unit_test(test_busy_machines_are_not_slow_links),
      cmocka_unit_test(test_slowdown),
      cmocka_unit_test(test_the_first_scheme_is_safe),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
