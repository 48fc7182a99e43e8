/*
 * Every short sequence of events, and many long random ones, against invariants of the membership module: no request is
 * answered twice or never, servers hear a consistent story of every job, each job's end is told once with the first
 * cause of its failure, servers take over before ranks are asked and all ranks answer before rounds are played again,
 * nothing is left over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "tests/support/thin.h"
#include "tests/unit/server/membership/explore.h"

/* Events to choose from: all, or those that are of interest where no server is lost, with two servers. */
enum { N_PLAIN = EVENT_MAPPED_0 - 1 };

static unsigned all_events(unsigned i) {
  return i;
}

static unsigned plain_events(unsigned i) {
  return i < 2 ? i : i + 1;
}

static void every_continuation(const unsigned *first, unsigned n_first, unsigned (*choice)(unsigned), unsigned n,
                               unsigned depth, bool replays) {
  unsigned long total = 1;
  for (unsigned i = 0; i < depth; i++) total *= n;
  static struct world world;
  for (unsigned long sequence = 0; sequence < total; sequence += THIN_STRIDE * THIN_STRIDE) {
    explore_init(&world, 1, replays);
    for (unsigned i = 0; i < n_first; i++) explore_event(&world, first[i]);
    for (unsigned long rest = sequence, i = 0; i < depth; i++, rest /= n)
      explore_event(&world, choice((unsigned)(rest % n)));
    explore_fini(&world);
  }
}

static void test_every_sequence(void **state) {
  (void)state;
  every_continuation(NULL, 0, plain_events, N_PLAIN, 5, false);
}

#define RUNNING_ON_TWO 0, 1, EVENT_WORKER_0, EVENT_WORKER_1, EVENT_ANSWER
#define RUNNING_ON_THREE 0, 1, 2, EVENT_WORKER_0, EVENT_WORKER_1, EVENT_ANSWER
#define EVERY_CONTINUATION(first, choice, n, depth, replays) \
  every_continuation(first, sizeof first / sizeof first[0], choice, n, depth, replays)

/* Once a job of two runs. */
static void test_every_sequence_of_a_running_job(void **state) {
  (void)state;
  static const unsigned on_two[] = {RUNNING_ON_TWO}, on_three[] = {RUNNING_ON_THREE};
  EVERY_CONTINUATION(on_two, plain_events, N_PLAIN, 5, false);
  EVERY_CONTINUATION(on_three, all_events, N_EVENTS, 4, true);
}

/* Once it has lost one: with a tensor that is open, or being opened; before servers have answered, and after. */
static void test_every_sequence_after_a_loss(void **state) {
  (void)state;
  static const unsigned open[] = {RUNNING_ON_THREE, EVENT_REGISTER_0, EVENT_ANSWER, 1};
  static const unsigned opening[] = {RUNNING_ON_THREE, EVENT_REGISTER_0, 1};
  static const unsigned asked[] = {RUNNING_ON_THREE, EVENT_REGISTER_0, EVENT_ANSWER, 1, EVENT_ANSWER};
  EVERY_CONTINUATION(open, all_events, N_EVENTS, 4, true);
  EVERY_CONTINUATION(opening, all_events, N_EVENTS, 4, true);
  EVERY_CONTINUATION(asked, all_events, N_EVENTS, 4, true);
}

static void test_random_sequences(void **state) {
  (void)state;
  static struct world world;
  for (uint64_t seed = 0; seed < 5000; seed += THIN_STRIDE) {
    struct zps_rng rng = {seed};
    explore_init(&world, seed, seed % 4 > 0);
    for (unsigned i = 0; i < 200; i++) explore_event(&world, (unsigned)zps_rng_below(&rng, N_EVENTS));
    explore_fini(&world);
  }
}

/* Connections end, also of those that have just come back, and not all come back in time. */
static void test_random_sequences_of_connections(void **state) {
  (void)state;
  static struct world world;
  for (uint64_t seed = 0; seed < 5000; seed += THIN_STRIDE) {
    struct zps_rng rng = {seed};
    explore_init(&world, seed, seed % 4 > 0);
    for (unsigned i = 0; i < N_SERVERS + 2; i++) explore_event(&world, i);
    explore_event(&world, EVENT_ANSWER);
    for (unsigned i = 0; i < 200; i++) {
      const unsigned who = (unsigned)zps_rng_below(&rng, 2 * (N_SERVERS + N_WORKERS));
      if (who < N_SERVERS + N_WORKERS && world.fakes[who].up && (who < N_SERVERS || world.fakes[who].in))
        explore_go_away(&world, who);
      explore_check(&world);
      explore_event(&world, (unsigned)zps_rng_below(&rng, N_EVENTS));
    }
    explore_fini(&world);
  }
}

/* Servers go, come and are taken in, and whatever else happens meanwhile. */
static void test_random_sequences_of_places(void **state) {
  (void)state;
  static struct world world;
  unsigned n_placements = 0;
  for (uint64_t seed = 0; seed < 5000; seed += THIN_STRIDE) {
    struct zps_rng rng = {seed};
    explore_init(&world, seed, true);
    for (unsigned i = 0; i < 150; i++) {
      const uint64_t what = zps_rng_below(&rng, 32);
      if (world.n_stories == 0 || !world.fakes[N_SERVERS].in || !world.fakes[N_SERVERS + 1].in) {
        for (unsigned w = N_SERVERS; w < N_SERVERS + 2; w++) /* from the beginning, with both ranks */
          if (world.fakes[w].up && !world.fakes[w].in) explore_event(&world, w);
        for (unsigned w = 0; w < N_SERVERS + 2; w++)
          if (!world.fakes[w].up) explore_event(&world, w);
        explore_event(&world, EVENT_ANSWER);
      } else if (what < 9) {
        explore_pass_time(&world);
      } else if (what < 16) {
        explore_event(&world, EVENT_ANSWER);
      } else if (what < 24) {
        explore_event(&world, EVENT_MAPPED_0);
        explore_event(&world, EVENT_MAPPED_1);
      } else if (what < 31) {
        const unsigned who = (unsigned)zps_rng_below(&rng, N_SERVERS);
        if (what == 24 && world.fakes[who].up)
          explore_go_away(&world, who);
        else
          explore_event(&world, who);
      } else {
        explore_event(&world, (unsigned)zps_rng_below(&rng, N_EVENTS));
      }
    }
    n_placements += world.n_placements;
    explore_fini(&world);
  }
  assert_true(n_placements > 500 / THIN_STRIDE);
}

static void sink(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  assert_true(line->level > ZPS_LOG_ERROR); /* losing peers is for warnings */
}

int main(void) {
  zps_log_set_sink(sink, NULL);
  zps_log_set_level(ZPS_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_sequence),
      cmocka_unit_test(test_every_sequence_of_a_running_job),
      cmocka_unit_test(test_every_sequence_after_a_loss),
      cmocka_unit_test(test_random_sequences),
      cmocka_unit_test(test_random_sequences_of_connections),
      cmocka_unit_test(test_random_sequences_of_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
