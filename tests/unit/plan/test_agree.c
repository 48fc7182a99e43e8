/* Ranks agree on the schemes of steps, with a coordinator and without one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/plan/agree.h"

static bool runs_are(const struct zps_plan_schedule *schedule, const struct zps_plan_run *runs, unsigned n) {
  if (schedule->n != n) return false;
  for (unsigned i = 0; i < n; i++)
    if (schedule->runs[i].from != runs[i].from || schedule->runs[i].until != runs[i].until ||
        schedule->runs[i].scheme != runs[i].scheme)
      return false;
  return true;
}

static void test_words(void **state) {
  (void)state;
  struct zps_plan_schedule schedule = {.n = 0}, learned = {.n = 0};
  struct zps_plan_agreement agreement = {.n_ranks = 1, .is_under_way = true};
  struct zps_plan_run run;
  unsigned char word[ZPS_PLAN_ROUND_BYTES(1)];
  for (unsigned i = 0; i < ZPS_PLAN_RUNS + 9; i++)
    zps_plan_schedule_extend(&schedule, i * 1000, UINT64_C(1) << 40, i & 1 ? ZPS_PLAN_RING : ZPS_PLAN_DSAR, &run);
  assert_int_equal(schedule.n, ZPS_PLAN_RUNS);
  agreement.decided = schedule;
  zps_plan_agreement_give(&agreement, &schedule, word);
  assert_true(zps_plan_agreement_end(&agreement, &learned, word));
  assert_true(runs_are(&learned, schedule.runs, schedule.n));
  assert_true(!agreement.is_under_way && !agreement.is_due && !agreement.is_owed && agreement.number == 1);
  /* None at all, too many, a run without steps, a scheme that there is not, and another one for a step that is known.
   */
  static const struct {
    unsigned at;
    unsigned char byte;
  } bad[] = {{0, 0}, {0, ZPS_PLAN_RUNS + 1}, {9, 0xff}, {17, 250}, {17, ZPS_PLAN_BALANCED}};
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    unsigned char other[ZPS_PLAN_ROUND_BYTES(1)];
    memcpy(other, word, sizeof other);
    other[bad[i].at] = bad[i].byte;
    assert_false(zps_plan_agreement_end(&agreement, &learned, other));
    assert_true(runs_are(&learned, schedule.runs, schedule.n));
    assert_true(agreement.is_owed);
  }
}

/* The decider asks for a step, and the round begins, or does not. */
static bool begins(struct zps_plan_agreement *agreement, uint64_t step, bool is_alone) {
  zps_plan_agreement_want(agreement, step, is_alone);
  return zps_plan_agreement_begin(agreement);
}

/* The round ends well. Another one is owed if the schedule was new. */
static void ends(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule) {
  unsigned char round[ZPS_PLAN_ROUND_BYTES(1)];
  const bool is_news = zps_plan_schedule_until(schedule) < zps_plan_schedule_until(&agreement->decided);
  zps_plan_agreement_give(agreement, schedule, round);
  assert_true(zps_plan_agreement_end(agreement, schedule, round));
  assert_int_equal(agreement->is_owed, is_news);
  assert_true(runs_are(schedule, agreement->decided.runs, agreement->decided.n));
}

/* And so does the round that is owed then. */
static void settles(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule) {
  ends(agreement, schedule);
  assert_true(zps_plan_agreement_begin(agreement));
  ends(agreement, schedule);
}

/* The decider without a coordinator: what runs goes on. */
static void test_alone(void **state) {
  (void)state;
  struct zps_plan_schedule schedule = {.n = 0};
  struct zps_plan_agreement agreement = {.n_ranks = 1, .first = ZPS_PLAN_RING};
  assert_false(zps_plan_agreement_begin(&agreement)); /* nobody wants to know */
  assert_false(begins(&agreement, 0, false));         /* the coordinator is awaited */
  zps_plan_agreement_unheard(&agreement);             /* in vain */
  assert_true(zps_plan_agreement_begin(&agreement));
  assert_true(runs_are(&agreement.decided, (struct zps_plan_run[]){{0, 16, ZPS_PLAN_RING}}, 1));
  /* One round at a time. */
  assert_false(begins(&agreement, 16, true));
  ends(&agreement, &schedule);
  assert_true(zps_plan_agreement_begin(&agreement));
  assert_true(runs_are(&agreement.decided, (struct zps_plan_run[]){{0, 32, ZPS_PLAN_RING}}, 1));
  /* Who has asked once more for the same has its answer. */
  assert_false(begins(&agreement, 31, true));
  settles(&agreement, &schedule);
  assert_false(zps_plan_agreement_begin(&agreement));
  /* Steps in strides; and a round that has failed is repeated as it was, as one that could not be begun. */
  assert_true(begins(&agreement, 1032, true));
  assert_int_equal(zps_plan_schedule_until(&agreement.decided), 2032);
  zps_plan_agreement_unbegun(&agreement);
  assert_int_equal(agreement.number, 3);
  assert_true(zps_plan_agreement_begin(&agreement));
  assert_true(zps_plan_agreement_end(&agreement, &schedule, NULL));
  assert_true(zps_plan_agreement_begin(&agreement));
  assert_true(runs_are(&agreement.decided, (struct zps_plan_run[]){{0, 2032, ZPS_PLAN_RING}}, 1));
  assert_int_equal(agreement.number, 4);
  /* There are no steps beyond the last one. */
  agreement.decided.runs[0].until = UINT64_MAX;
  settles(&agreement, &schedule);
  assert_false(begins(&agreement, UINT64_MAX, true));
}

/* A scheme on trial is not what goes on without a coordinator: the latest run does that was held, or was no first
 * round.
 */
static void test_alone_in_a_trial(void **state) {
  (void)state;
  static const struct {
    unsigned n;
    struct zps_plan_run runs[4], goes_on;
  } cases[] = {
      {2, {{0, 6, ZPS_PLAN_BALANCED}, {6, 7, ZPS_PLAN_DSAR}}, {7, 23, ZPS_PLAN_BALANCED}},
      {3,
       {{0, 6, ZPS_PLAN_BALANCED}, {6, 11, ZPS_PLAN_AGSPARSE}, {11, 12, ZPS_PLAN_DSAR}},
       {12, 28, ZPS_PLAN_AGSPARSE}},
      {4,
       {{0, 900, ZPS_PLAN_RING},
        {900, 990, ZPS_PLAN_BALANCED},
        {990, 995, ZPS_PLAN_AGSPARSE},
        {995, 996, ZPS_PLAN_DSAR}},
       {996, 1012, ZPS_PLAN_BALANCED}},
      {1, {{0, 1, ZPS_PLAN_RING}}, {0, 17, ZPS_PLAN_RING}}, /* there is nothing else */
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_plan_agreement agreement = {.n_ranks = 1, .first = ZPS_PLAN_BALANCED};
    struct zps_plan_schedule *const decided = &agreement.decided;
    decided->n = cases[i].n;
    memcpy(decided->runs, cases[i].runs, sizeof cases[i].runs);
    assert_true(begins(&agreement, zps_plan_schedule_until(decided), true));
    assert_true(
        runs_are(&(struct zps_plan_schedule){.n = 1, .runs = {decided->runs[decided->n - 1]}}, &cases[i].goes_on, 1));
  }
}

static void propose(struct zps_plan_agreement *agreement, uint64_t from, uint64_t until, enum zps_plan_scheme scheme) {
  zps_plan_agreement_propose(agreement, &(struct zps_plan_run){from, until, scheme}, 1, false);
}

static void test_proposals(void **state) {
  (void)state;
  struct zps_plan_schedule schedule = {.n = 0};
  struct zps_plan_agreement agreement = {.n_ranks = 1};
  propose(&agreement, 0, 6, ZPS_PLAN_DSAR);
  assert_true(begins(&agreement, 0, false));
  assert_true(runs_are(&agreement.decided, (struct zps_plan_run[]){{0, 6, ZPS_PLAN_DSAR}}, 1));
  settles(&agreement, &schedule);
  /* One that comes too late for its steps is none, and what is known never changes. */
  assert_true(begins(&agreement, 6, true));
  propose(&agreement, 6, 12, ZPS_PLAN_RING);
  settles(&agreement, &schedule);
  assert_true(runs_are(&agreement.decided, (struct zps_plan_run[]){{0, 22, ZPS_PLAN_DSAR}}, 1));
  assert_false(begins(&agreement, 22, false));
  /* A coordinator that knows less than ranks: of its run only what is not decided counts. */
  propose(&agreement, 12, 38, ZPS_PLAN_RING);
  assert_true(zps_plan_agreement_begin(&agreement));
  assert_true(
      runs_are(&agreement.decided, (struct zps_plan_run[]){{0, 22, ZPS_PLAN_DSAR}, {22, 38, ZPS_PLAN_RING}}, 2));
  settles(&agreement, &schedule);
  /* One that has begun anew; runs that make no sense change nothing; one that says all that it remembers. */
  assert_false(begins(&agreement, 38, false));
  propose(&agreement, 0, 50, ZPS_PLAN_BALANCED);
  propose(&agreement, 40, 38, ZPS_PLAN_BALANCED);
  assert_true(zps_plan_agreement_begin(&agreement));
  settles(&agreement, &schedule);
  assert_false(begins(&agreement, 50, false));
  zps_plan_agreement_propose(&agreement, (struct zps_plan_run[]){{7, 50, ZPS_PLAN_RING}, {50, 60, ZPS_PLAN_DSAR}}, 2,
                             true);
  assert_true(zps_plan_agreement_begin(&agreement));
  assert_true(runs_are(
      &agreement.decided,
      (struct zps_plan_run[]){
          {0, 22, ZPS_PLAN_DSAR}, {22, 38, ZPS_PLAN_RING}, {38, 50, ZPS_PLAN_BALANCED}, {50, 60, ZPS_PLAN_DSAR}},
      4));
  /* Other ranks go by nothing but the decider's word. */
  struct zps_plan_agreement follows = {.index = 1, .n_ranks = 2};
  struct zps_plan_schedule nothing = {.n = 0};
  propose(&follows, 0, 6, ZPS_PLAN_DSAR);
  assert_true(begins(&follows, 0, true));
  assert_int_equal(nothing.n, 0);
}

/* A round that failed on one rank alone is followed by others at once, on all, until all have the schedule. */
static void test_failed_on_one(void **state) {
  (void)state;
  enum { N = 3 };
  struct zps_plan_agreement ranks[N];
  struct zps_plan_schedule schedules[N] = {{.n = 0}};
  for (uint32_t r = 0; r < N; r++) {
    ranks[r] = (struct zps_plan_agreement){.index = r, .n_ranks = N, .first = ZPS_PLAN_RING};
    zps_plan_agreement_want(&ranks[r], 0, true);
  }
  static const unsigned failed[][N] = {{0, 0, 1}, {0, 0, 1}, {1, 0, 0}, {0, 1, 0}, {0, 0, 0}, {0, 0, 0}};
  for (unsigned n = 0; n < sizeof failed / sizeof failed[0]; n++) {
    unsigned char round[ZPS_PLAN_ROUND_BYTES(N)] = {0}, given[sizeof round];
    for (uint32_t r = 0; r < N; r++) {
      assert_true(zps_plan_agreement_begin(&ranks[r]));
      assert_int_equal(ranks[r].number, n);
      zps_plan_agreement_give(&ranks[r], &schedules[r], given);
      for (unsigned i = 0; i < sizeof round; i++) {
        assert_true(!given[i] || !round[i]); /* two ranks must not give the same byte */
        round[i] |= given[i];
      }
    }
    for (uint32_t r = 0; r < N; r++)
      assert_true(zps_plan_agreement_end(&ranks[r], &schedules[r], failed[n][r] ? NULL : round));
  }
  for (uint32_t r = 0; r < N; r++) {
    assert_true(runs_are(&schedules[r], (struct zps_plan_run[]){{0, ZPS_PLAN_ALONE, ZPS_PLAN_RING}}, 1));
    assert_false(zps_plan_agreement_begin(&ranks[r]));
  }
}

/* What others lack does not wait for the coordinator. */
static void test_owed_while_it_asks(void **state) {
  (void)state;
  struct zps_plan_schedule schedule = {.n = 0};
  struct zps_plan_agreement agreement = {.n_ranks = 2};
  unsigned char round[ZPS_PLAN_ROUND_BYTES(2)];
  propose(&agreement, 0, 6, ZPS_PLAN_DSAR);
  assert_true(begins(&agreement, 0, false));
  zps_plan_agreement_give(&agreement, &schedule, round);
  zps_plan_agreement_want(&agreement, 6, false);
  assert_true(zps_plan_agreement_end(&agreement, &schedule, round));
  for (unsigned n = 0; n < 2; n++) {
    assert_true(zps_plan_agreement_begin(&agreement));
    zps_plan_agreement_give(&agreement, &schedule, round);
    round[ZPS_PLAN_WORD_BYTES + 1] = n == 0; /* the other rank's */
    assert_true(zps_plan_agreement_end(&agreement, &schedule, round));
  }
  assert_false(zps_plan_agreement_begin(&agreement));
  propose(&agreement, 6, 9, ZPS_PLAN_RING);
  assert_true(zps_plan_agreement_begin(&agreement));
  assert_int_equal(zps_plan_schedule_until(&agreement.decided), 9);
  assert_int_equal(zps_plan_schedule_until(&schedule), 6); /* no step runs ahead of the round */
}

/* ------------------------------------------------------------ ranks at their own pace, coordinators that come and go
 */

enum { RANKS = 5, STEPS = 400, ROUNDS = 2048, MAIL = 64 };

struct rank {
  struct zps_plan_follower follower;
  struct zps_plan_agreement agreement;
  uint64_t step;
  bool is_away; /* from the coordinator */
};

struct round {
  unsigned n_in;
  bool fails; /* on some */
  unsigned char bytes[ZPS_PLAN_ROUND_BYTES(RANKS)];
};

struct world {
  struct zps_rng rng;
  struct rank ranks[RANKS];
  struct round rounds[ROUNDS];
  struct zps_plan_schedule coordinator; /* what it believes */
  struct zps_plan_run mail[MAIL];       /* to the decider */
  unsigned n_sent, n_read;
  uint64_t lead; /* how far ranks may be apart; beyond runs where steps may fail, since trainers go on behind them */
  int ran[STEPS];
  bool by_rule, by_choice;
};

static void proceed(struct world *world, unsigned r) {
  struct rank *const rank = &world->ranks[r];
  struct zps_plan_agreement *const agreement = &rank->agreement;
  const uint64_t until = zps_plan_schedule_until(&agreement->decided);
  if (!zps_plan_agreement_begin(agreement)) return;
  assert_true(agreement->number < ROUNDS);
  struct round *const round = &world->rounds[agreement->number];
  if (round->n_in++ == 0) round->fails = zps_rng_below(&world->rng, 10) == 0;
  unsigned char given[sizeof round->bytes];
  zps_plan_agreement_give(agreement, &rank->follower.schedule, given);
  for (unsigned i = 0; i < sizeof given; i++) round->bytes[i] |= given[i];
  if (zps_plan_schedule_until(&agreement->decided) > until)
    *(agreement->is_alone ? &world->by_rule : &world->by_choice) = true;
}

/* A round has ended, for one of its ranks. */
static void finish(struct world *world, unsigned r) {
  struct rank *const rank = &world->ranks[r];
  struct zps_plan_agreement *const agreement = &rank->agreement;
  const struct round *const round = &world->rounds[agreement->number];
  if (!agreement->is_under_way || round->n_in < RANKS) return;
  const bool fails = round->fails && zps_rng_below(&world->rng, 2);
  assert_true(zps_plan_agreement_end(agreement, &rank->follower.schedule, fails ? NULL : round->bytes));
  if (rank->follower.asked > zps_plan_schedule_until(&rank->follower.schedule))
    zps_plan_follower_retry(&rank->follower);
  if (!fails) proceed(world, r);
}

/* It proposes what it likes, to the decider, whose connection may end before it hears. */
static void report(struct world *world, const struct zps_plan_report *report) {
  struct zps_plan_run run;
  if (report->step < zps_plan_schedule_until(&world->coordinator)) {
    run = *zps_plan_schedule_find(&world->coordinator, report->step);
  } else {
    const uint64_t window = 4 + zps_rng_below(&world->rng, 13);
    zps_plan_schedule_extend(&world->coordinator, report->step, window,
                             (enum zps_plan_scheme)zps_rng_below(&world->rng, 3), &run);
  }
  world->mail[world->n_sent++ % MAIL] = run;
}

static void deliver(struct world *world) {
  if (world->n_read == world->n_sent) return;
  zps_plan_agreement_propose(&world->ranks[0].agreement, &world->mail[world->n_read++ % MAIL], 1, false);
  proceed(world, 0);
}

/* The connection of a rank ends, or of all, and what is on its way with it; a coordinator may have forgotten all. */
static void part(struct world *world, unsigned r, bool all) {
  if (zps_rng_below(&world->rng, 2)) world->coordinator = (struct zps_plan_schedule){.n = 0};
  for (unsigned i = 0; i < RANKS; i++) {
    if (!all && i != r) continue;
    world->ranks[i].is_away = true;
    if (i == 0) world->n_read = world->n_sent;
    zps_plan_agreement_unheard(&world->ranks[i].agreement);
    proceed(world, i);
  }
}

static void advance(struct world *world, unsigned r, uint64_t slowest) {
  struct rank *const rank = &world->ranks[r];
  enum zps_plan_scheme scheme;
  struct zps_plan_report asks;
  bool ask;
  if (rank->step >= STEPS || rank->step > slowest + world->lead) return;
  proceed(world, r);
  const enum zps_plan_verdict verdict = zps_plan_follower_begin(&rank->follower, rank->step, &scheme, &ask, &asks);
  if (ask) {
    zps_plan_agreement_want(&rank->agreement, asks.step, rank->is_away);
    proceed(world, r);
    if (r == 0 && !rank->is_away) report(world, &asks);
  }
  assert_int_not_equal(verdict, ZPS_PLAN_FORGOTTEN);
  if (verdict == ZPS_PLAN_WAIT && world->lead == STEPS && zps_rng_below(&world->rng, 200) == 0) rank->step++; /* late */
  if (verdict != ZPS_PLAN_BEGIN) return;
  if (world->ran[rank->step] >= 0) assert_int_equal(world->ran[rank->step], scheme);
  world->ran[rank->step] = (int)scheme;
  rank->step++;
}

static void turn(struct world *world, uint64_t slowest) {
  const unsigned r = (unsigned)zps_rng_below(&world->rng, RANKS);
  switch (zps_rng_below(&world->rng, 40)) {
    case 0:
      part(world, r, zps_rng_below(&world->rng, 2));
      break;
    case 1:
    case 2:
      world->ranks[r].is_away = false;
      break;
    default:
      switch (zps_rng_below(&world->rng, 4)) {
        case 0:
          deliver(world);
          break;
        case 1:
          finish(world, r);
          break;
        default:
          advance(world, r, slowest);
      }
  }
}

static void test_no_two_ranks_differ(void **state) {
  (void)state;
  static struct world world;
  unsigned changes = 0, by_rule = 0, by_choice = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    memset(&world, 0, sizeof world);
    world.rng.state = seed;
    world.lead = seed % 3 == 0 ? STEPS : seed % 3;
    for (uint32_t r = 0; r < RANKS; r++)
      world.ranks[r].agreement = (struct zps_plan_agreement){.index = r, .n_ranks = RANKS};
    for (unsigned i = 0; i < STEPS; i++) world.ran[i] = -1;
    uint64_t slowest = 0;
    for (unsigned long n = 0; slowest < STEPS; n++) {
      assert_true(n < 1000000); /* no rank waits for ever */
      turn(&world, slowest);
      slowest = UINT64_MAX;
      for (unsigned r = 0; r < RANKS; r++) slowest = world.ranks[r].step < slowest ? world.ranks[r].step : slowest;
    }
    for (unsigned i = 1; i < STEPS; i++) changes += world.ran[i] != world.ran[i - 1];
    by_rule += world.by_rule;
    by_choice += world.by_choice;
  }
  assert_true(changes > 1000 && by_rule > 200 && by_choice > 200);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_words),
      cmocka_unit_test(test_alone),
      cmocka_unit_test(test_alone_in_a_trial),
      cmocka_unit_test(test_proposals),
      cmocka_unit_test(test_failed_on_one),
      cmocka_unit_test(test_owed_while_it_asks),
      cmocka_unit_test(test_no_two_ranks_differ),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
