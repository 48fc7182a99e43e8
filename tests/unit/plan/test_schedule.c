/* No two ranks ever differ about a step's scheme, in any order of messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/plan/schedule.h"

static void test_a_schedule(void **state) {
  (void)state;
  struct zps_plan_schedule schedule = {.n = 0};
  struct zps_plan_run run;
  assert_null(zps_plan_schedule_find(&schedule, 0));
  zps_plan_schedule_extend(&schedule, 0, 16, ZPS_PLAN_BALANCED, &run);
  assert_true(run.from == 0 && run.until == 16 && run.scheme == ZPS_PLAN_BALANCED);
  zps_plan_schedule_extend(&schedule, 16, 16, ZPS_PLAN_BALANCED, &run);
  assert_true(run.from == 16 && run.until == 32 && schedule.n == 1);
  zps_plan_schedule_extend(&schedule, 32, 16, ZPS_PLAN_RING, &run);
  assert_true(schedule.n == 2 && zps_plan_schedule_until(&schedule) == 48);
  assert_int_equal(zps_plan_schedule_find(&schedule, 31)->scheme, ZPS_PLAN_BALANCED);
  assert_int_equal(zps_plan_schedule_find(&schedule, 32)->scheme, ZPS_PLAN_RING);
  assert_null(zps_plan_schedule_find(&schedule, 48));
  /* Steps in strides: the answers reach further and further. */
  zps_plan_schedule_extend(&schedule, 1048, 16, ZPS_PLAN_RING, &run);
  assert_true(run.from == 48 && run.until == 2048);
  zps_plan_schedule_extend(&schedule, 1000000, 16, ZPS_PLAN_RING, &run);
  assert_true(run.from == 2048 && run.until == 1000000 + 1024); /* at most 1024 steps ahead */
  zps_plan_schedule_extend(&schedule, UINT64_MAX - 1, 16, ZPS_PLAN_RING, &run);
  assert_true(run.until == UINT64_MAX);
  schedule.n = 0; /* a run that starts in the middle has windows as any */
  zps_plan_schedule_extend(&schedule, 100000, 16, ZPS_PLAN_RING, &run);
  assert_true(run.from == 0 && run.until == 100016);
}

static void test_the_oldest_runs_are_forgotten(void **state) {
  (void)state;
  struct zps_plan_schedule schedule = {.n = 0};
  struct zps_plan_follower follower = {.asked = 0};
  struct zps_plan_run run;
  for (unsigned i = 0; i < ZPS_PLAN_RUNS + 1; i++) {
    zps_plan_schedule_extend(&schedule, i, 1, i & 1 ? ZPS_PLAN_RING : ZPS_PLAN_BALANCED, &run);
    assert_true(zps_plan_schedule_learn(&follower.schedule, &run));
  }
  assert_null(zps_plan_schedule_find(&schedule, 0));
  assert_non_null(zps_plan_schedule_find(&schedule, 1));
  enum zps_plan_scheme scheme;
  struct zps_plan_report report;
  bool ask;
  assert_int_equal(zps_plan_follower_begin(&follower, 0, &scheme, &ask, &report), ZPS_PLAN_FORGOTTEN);
  assert_int_equal(zps_plan_follower_begin(&follower, 1, &scheme, &ask, &report), ZPS_PLAN_BEGIN);
}

static void test_what_is_refused(void **state) {
  (void)state;
  struct zps_plan_schedule schedule = {.n = 0};
  assert_false(zps_plan_schedule_learn(&schedule, &(struct zps_plan_run){32, 48, ZPS_PLAN_RING})); /* a gap */
  assert_true(zps_plan_schedule_learn_all(&schedule, (struct zps_plan_run[]){{32, 48, ZPS_PLAN_RING}}, 1));
  static const struct zps_plan_run bad[] = {
      {64, 80, ZPS_PLAN_RING},
      {48, 48, ZPS_PLAN_RING},
      {60, 50, ZPS_PLAN_RING},
      {40, 64, ZPS_PLAN_DSAR},
      {0, 33, ZPS_PLAN_BALANCED},
      {48, 64, ZPS_PLAN_AUTO},
      {48, 64, (enum zps_plan_scheme)99},
  };
  static const struct zps_plan_run bad_whole[][2] = {{{0, 32, ZPS_PLAN_RING}, {33, 48, ZPS_PLAN_RING}},
                                                     {{0, 33, ZPS_PLAN_DSAR}, {33, 48, ZPS_PLAN_RING}},
                                                     {{0, 32, ZPS_PLAN_DSAR}, {32, 47, ZPS_PLAN_RING}}};
  for (unsigned i = 0; i < 3; i++) assert_false(zps_plan_schedule_learn_all(&schedule, bad_whole[i], 2));
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_false(zps_plan_schedule_learn(&schedule, &bad[i]));
  assert_true(zps_plan_schedule_until(&schedule) == 48);
  assert_true(zps_plan_schedule_learn(&schedule, &(struct zps_plan_run){32, 48, ZPS_PLAN_RING}));
  assert_true(zps_plan_schedule_learn(&schedule, &(struct zps_plan_run){40, 64, ZPS_PLAN_RING}));
  assert_true(zps_plan_schedule_until(&schedule) == 64 && schedule.n == 1);
}

static void test_asking_ahead(void **state) {
  (void)state;
  struct zps_plan_follower follower = {.asked = 0};
  enum zps_plan_scheme scheme;
  struct zps_plan_report report;
  bool ask;
  assert_int_equal(zps_plan_follower_begin(&follower, 0, &scheme, &ask, &report), ZPS_PLAN_WAIT);
  assert_true(ask && report.waits && report.step == 0 && report.rounds == 0);
  assert_int_equal(zps_plan_follower_begin(&follower, 1, &scheme, &ask, &report), ZPS_PLAN_WAIT);
  assert_false(ask); /* the question is on its way */
  assert_true(zps_plan_schedule_learn(&follower.schedule, &(struct zps_plan_run){0, 16, ZPS_PLAN_BALANCED}));
  for (uint64_t step = 0; step < 16; step++) {
    assert_int_equal(zps_plan_follower_begin(&follower, step, &scheme, &ask, &report), ZPS_PLAN_BEGIN);
    assert_int_equal(scheme, ZPS_PLAN_BALANCED);
    if (ask != (step == 12)) fail_msg("step %u", (unsigned)step);
    /* The first rounds are not timed, and one that took long does not move the median. */
    if (ask) assert_true(report.step == 16 && report.rounds == 12 && report.rows == 120 && report.round_s == 0.5);
    if (ask) assert_false(report.waits);
    zps_plan_follower_round(&follower, scheme, 10, 25, step % 5 == 0 ? 10 : 0.5);
  }
  /* The rank asked already, but now it waits, which may hurry the authority; it says so once. */
  assert_int_equal(zps_plan_follower_begin(&follower, 16, &scheme, &ask, &report), ZPS_PLAN_WAIT);
  assert_true(ask && report.waits && report.step == 16 && report.rounds == 4);
  assert_int_equal(zps_plan_follower_begin(&follower, 17, &scheme, &ask, &report), ZPS_PLAN_WAIT);
  assert_false(ask);
  assert_true(zps_plan_schedule_learn(&follower.schedule, &(struct zps_plan_run){16, 32, ZPS_PLAN_RING}));
  assert_int_equal(zps_plan_follower_begin(&follower, 16, &scheme, &ask, &report), ZPS_PLAN_BEGIN);
  assert_int_equal(scheme, ZPS_PLAN_RING);
  /* Rounds of two schemes are not mixed. */
  for (unsigned i = 0; i < 3; i++) zps_plan_follower_round(&follower, scheme, 10, 25, i == 0 ? 9 : 0.25);
  assert_int_equal(zps_plan_follower_begin(&follower, 28, &scheme, &ask, &report), ZPS_PLAN_BEGIN);
  assert_true(ask && report.scheme == ZPS_PLAN_RING && report.rounds == 3 && report.round_s == 0.25);
  assert_true(report.union_rows == 75);
  /* Where the report cannot be sent, the next step tries again. */
  zps_plan_follower_retry(&follower);
  assert_int_equal(zps_plan_follower_begin(&follower, 29, &scheme, &ask, &report), ZPS_PLAN_BEGIN);
  assert_true(ask && report.rounds == 0 && report.round_s == 0);
}

/* A scheme's very first rounds make memory that later ones find: two of them are not timed, and one of each later run.
 * */
static void test_first_rounds_are_not_timed(void **state) {
  (void)state;
  struct zps_plan_follower follower = {.asked = 0};
  static const enum zps_plan_scheme runs[] = {ZPS_PLAN_BALANCED, ZPS_PLAN_RING, ZPS_PLAN_BALANCED, ZPS_PLAN_RING};
  for (unsigned i = 0; i < 4; i++) {
    for (unsigned k = 0; k < 5; k++) zps_plan_follower_round(&follower, runs[i], 1, 1, 1 + k);
    assert_int_equal(follower.n_times, i < 2 ? 3 : 4);
    assert_true(follower.times_s[0] == (i < 2 ? 3 : 2));
  }
}

/* A run of one step ends before a round is timed: the report has the time of the first one apart, and only then. */
static void test_a_first_round_is_told_apart(void **state) {
  (void)state;
  struct zps_plan_follower follower = {.asked = 0};
  enum zps_plan_scheme scheme;
  struct zps_plan_report report;
  bool ask;
  assert_true(zps_plan_schedule_learn(&follower.schedule, &(struct zps_plan_run){0, 6, ZPS_PLAN_BALANCED}));
  for (uint64_t step = 0; step < 6; step++) {
    (void)zps_plan_follower_begin(&follower, step, &scheme, &ask, &report);
    if (ask) assert_true(report.round_s == 1 && report.first_s == 0);
    zps_plan_follower_round(&follower, scheme, 1, 1, 1);
  }
  assert_true(zps_plan_schedule_learn(&follower.schedule, &(struct zps_plan_run){6, 7, ZPS_PLAN_DSAR}));
  assert_int_equal(zps_plan_follower_begin(&follower, 6, &scheme, &ask, &report), ZPS_PLAN_BEGIN);
  assert_false(ask); /* its round is not over */
  zps_plan_follower_round(&follower, scheme, 1, 1, 9);
  assert_int_equal(zps_plan_follower_begin(&follower, 7, &scheme, &ask, &report), ZPS_PLAN_WAIT);
  assert_true(ask && report.waits && report.scheme == ZPS_PLAN_DSAR && report.rounds == 1);
  assert_true(report.round_s == 0 && report.first_s == 9);
}

/* Ranks that run at their own pace, one step apart at most (a round needs all), an authority whose choice changes
 * every time, and messages that arrive in order per rank but late. */
enum { RANKS = 5, STEPS = 400, MAIL = 256 };

/* A new run, or, with n > 0, all of them. */
struct letter {
  unsigned n;
  struct zps_plan_run run, all[ZPS_PLAN_RUNS];
};

struct mail {
  struct letter letters[MAIL];
  unsigned sent, read;
};

struct world {
  struct zps_plan_schedule authority;
  struct zps_plan_follower ranks[RANKS];
  struct mail to[RANKS];
  struct zps_plan_report asked[RANKS][MAIL];
  unsigned n_asked[RANKS], n_heard[RANKS];
  uint64_t step[RANKS];
  bool told[RANKS]; /* since the last run */
  int ran[STEPS];
};

static void hear(struct world *world, unsigned rank, struct zps_rng *rng) {
  const struct zps_plan_report *report = &world->asked[rank][world->n_heard[rank]++];
  struct mail *mail = &world->to[rank];
  if (report->step < zps_plan_schedule_until(&world->authority)) {
    struct letter *letter = &mail->letters[mail->sent++ % MAIL];
    letter->n = world->authority.n;
    memcpy(letter->all, world->authority.runs, sizeof letter->all);
    return;
  }
  /* The authority waits for all ranks, unless one of them waits for it. */
  unsigned n_told = 0;
  world->told[rank] = true;
  for (unsigned r = 0; r < RANKS; r++) n_told += world->told[r];
  if (n_told < RANKS && !report->waits) return;
  memset(world->told, 0, sizeof world->told);
  struct zps_plan_run run;
  zps_plan_schedule_extend(&world->authority, report->step, 16, (enum zps_plan_scheme)zps_rng_below(rng, 3), &run);
  for (unsigned r = 0; r < RANKS; r++) {
    world->to[r].letters[world->to[r].sent++ % MAIL] = (struct letter){.run = run};
  }
}

/* A rank that has not opened the tensor yet loses the runs that it is told. */
static void receive(struct world *world, unsigned rank) {
  struct mail *mail = &world->to[rank];
  const struct letter *letter = &mail->letters[mail->read++ % MAIL];
  struct zps_plan_schedule *schedule = &world->ranks[rank].schedule;
  assert_true(mail->sent - mail->read < MAIL);
  if (world->n_asked[rank] == 0) return;
  if (letter->n > 0) {
    assert_true(zps_plan_schedule_learn_all(schedule, letter->all, letter->n));
  } else if (!zps_plan_schedule_learn(schedule, &letter->run)) {
    assert_int_equal(schedule->n, 0); /* it will hear all, as it has asked */
  }
}

static void advance(struct world *world, unsigned rank, uint64_t slowest) {
  enum zps_plan_scheme scheme;
  struct zps_plan_report report;
  bool ask;
  const uint64_t step = world->step[rank];
  if (step >= STEPS || step > slowest + (slowest == 0 ? 40 : 1)) return; /* some open late */
  const enum zps_plan_verdict verdict = zps_plan_follower_begin(&world->ranks[rank], step, &scheme, &ask, &report);
  if (ask) world->asked[rank][world->n_asked[rank]++] = report;
  assert_int_not_equal(verdict, ZPS_PLAN_FORGOTTEN);
  if (verdict != ZPS_PLAN_BEGIN) return;
  if (world->ran[step] >= 0) assert_int_equal(world->ran[step], scheme);
  world->ran[step] = (int)scheme;
  world->step[rank]++;
  zps_plan_follower_round(&world->ranks[rank], scheme, 1, 1, 1);
}

static void test_no_two_ranks_differ(void **state) {
  (void)state;
  static struct world world;
  unsigned changes = 0;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    struct zps_rng rng = {.state = seed};
    world = (struct world){.step = {0}};
    for (unsigned i = 0; i < STEPS; i++) world.ran[i] = -1;
    uint64_t slowest = 0;
    for (unsigned long turn = 0; slowest < STEPS; turn++) {
      assert_true(turn < 1000000); /* no rank waits for ever */
      const unsigned rank = (unsigned)zps_rng_below(&rng, RANKS);
      switch (zps_rng_below(&rng, 4)) {
        case 0:
          if (world.n_heard[rank] < world.n_asked[rank]) hear(&world, rank, &rng);
          break;
        case 1:
          if (world.to[rank].read < world.to[rank].sent) receive(&world, rank);
          break;
        default:
          advance(&world, rank, slowest);
      }
      slowest = UINT64_MAX;
      for (unsigned r = 0; r < RANKS; r++) slowest = world.step[r] < slowest ? world.step[r] : slowest;
    }
    for (unsigned i = 1; i < STEPS; i++) changes += world.ran[i] != world.ran[i - 1];
  }
  assert_true(changes > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_schedule),
      cmocka_unit_test(test_the_oldest_runs_are_forgotten),
      cmocka_unit_test(test_what_is_refused),
      cmocka_unit_test(test_asking_ahead),
      cmocka_unit_test(test_first_rounds_are_not_timed),
      cmocka_unit_test(test_a_first_round_is_told_apart),
      cmocka_unit_test(test_no_two_ranks_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
