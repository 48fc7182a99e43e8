/* Which servers a rank says are out of reach, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "worker/plane/watch.h"

enum { N = 4, DEAD_MS = 5000 };
#define PERIOD (500 * ZPS_NS_PER_MS)

static struct zps_watched servers[N];
static struct zps_watch watch;
static uint64_t now_ns;
static unsigned alive; /* a bit for each server: it answers */

static int setup(void **state) {
  (void)state;
  memset(servers, 0, sizeof servers);
  now_ns = 77 * ZPS_NS_PER_S;
  alive = (1 << N) - 1;
  zps_watch_init(&watch, servers, N, DEAD_MS, now_ns);
  return 0;
}

static unsigned suspects(void) {
  unsigned set = 0;
  for (unsigned i = 0; i < N; i++) set |= servers[i].is_suspect ? 1u << i : 0;
  return set;
}

static bool look(bool waits) {
  const bool says = zps_watch_look(&watch, waits, now_ns);
  for (unsigned i = 0; i < N; i++)
    if (servers[i].must_ask && alive & 1u << i) servers[i].is_heard = true; /* well before the next look */
  return says;
}

static bool next_look(void) {
  assert_false(zps_watch_is_due(&watch, now_ns));
  now_ns = watch.due_ns;
  assert_true(zps_watch_is_due(&watch, now_ns));
  return look(true);
}

/* How many looks it takes until something is said; at most `most`. */
static unsigned looks_until_said(unsigned most) {
  for (unsigned i = 1; i <= most; i++)
    if (next_look()) return i;
  return 0;
}

static void lose(unsigned server) {
  servers[server].is_lost = watch.is_news = true;
  assert_true(zps_watch_is_due(&watch, now_ns));
}

static void test_silence(void **state) {
  (void)state;
  assert_int_equal(watch.due_ns, now_ns + PERIOD);
  assert_int_equal(looks_until_said(100), 0);
  alive &= ~4u;
  servers[2].is_heard = true; /* just before */
  const uint64_t cut_ns = now_ns;
  assert_int_equal(looks_until_said(100), 12);
  assert_int_equal(now_ns - cut_ns, 12 * PERIOD); /* control.dead, and the time until it was asked */
  assert_int_equal(suspects(), 4);
  assert_int_equal(looks_until_said(4), 0);
  assert_int_equal(looks_until_said(1), 1); /* again */
  assert_int_equal(suspects(), 4);
  servers[2].is_heard = true;
  assert_int_equal(looks_until_said(1), 1); /* it is back */
  assert_int_equal(suspects(), 0);
}

/* One question, until there is an answer; frames that come by themselves need none. */
static void test_who_is_asked(void **state) {
  (void)state;
  unsigned n_asked[N] = {0};
  alive &= ~1u;
  for (unsigned i = 0; i < 6; i++) {
    servers[3].is_heard = true;
    next_look();
    for (unsigned s = 0; s < N; s++) n_asked[s] += servers[s].must_ask;
  }
  assert_int_equal(n_asked[0], 1);
  assert_int_equal(n_asked[1], 3); /* every other look finds the answer to the last one */
  assert_int_equal(n_asked[3], 0);
  watch.is_news = true;
  assert_false(look(true)); /* between two looks nothing is counted or asked */
  for (unsigned s = 0; s < N; s++) assert_false(servers[s].must_ask);
  assert_int_equal(servers[0].n_silent, 5);
}

static void test_nothing_is_awaited(void **state) {
  (void)state;
  alive = 0;
  for (unsigned i = 0; i < 30; i++) {
    now_ns = watch.due_ns;
    assert_false(look(false));
    for (unsigned s = 0; s < N; s++) assert_false(servers[s].must_ask);
  }
  assert_int_equal(looks_until_said(100), 11); /* from here on it counts */
  assert_int_equal(suspects(), 15);
  now_ns = watch.due_ns;
  assert_true(look(false)); /* the round has failed; what is there to wait for */
  assert_int_equal(suspects(), 0);
}

/* All at once, though some had answered a little later. */
static void test_a_rank_that_is_cut_off(void **state) {
  (void)state;
  next_look();
  next_look();
  alive = 0;
  servers[1].is_heard = servers[3].is_heard = true;
  for (unsigned s = 0; s < N; s++) assert_true(s % 2 || !servers[s].n_silent);
  assert_true(looks_until_said(20) > 0);
  assert_int_equal(suspects(), 15);
}

static void test_the_fabric_says_so(void **state) {
  (void)state;
  next_look();
  lose(1);
  assert_true(look(true));
  assert_int_equal(suspects(), 2);
  assert_false(zps_watch_is_due(&watch, now_ns));
  lose(0);
  assert_true(look(false)); /* whether a round waits or not */
  assert_int_equal(suspects(), 3);
  servers[1].is_off = watch.is_news = true; /* the coordinator has decided */
  assert_true(look(true));
  assert_int_equal(suspects(), 1);
  servers[0].is_off = watch.is_news = true;
  assert_true(look(true));
  assert_int_equal(suspects(), 0);
  assert_int_equal(looks_until_said(100), 0); /* of these nothing is to come */
}

/* This process was stopped; what has come meanwhile is read after the look. */
static void test_a_late_look(void **state) {
  (void)state;
  alive &= ~8u;
  for (unsigned i = 0; i < 10; i++) assert_false(next_look());
  now_ns = watch.due_ns + PERIOD + 1;
  assert_false(look(true));
  assert_int_equal(suspects(), 0);
  assert_int_equal(looks_until_said(100), 10); /* the question is out already */
  assert_int_equal(suspects(), 8);
}

static void test_no_limit(void **state) {
  (void)state;
  zps_watch_init(&watch, servers, N, 0, now_ns);
  alive = 0;
  assert_int_equal(watch.due_ns, ZPS_NEVER);
  assert_false(zps_watch_is_due(&watch, now_ns + 1000 * ZPS_NS_PER_S));
  lose(3);
  assert_true(look(true));
  assert_int_equal(suspects(), 8);
  assert_int_equal(servers[0].n_silent, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_silence, setup),
      cmocka_unit_test_setup(test_who_is_asked, setup),
      cmocka_unit_test_setup(test_nothing_is_awaited, setup),
      cmocka_unit_test_setup(test_a_rank_that_is_cut_off, setup),
      cmocka_unit_test_setup(test_the_fabric_says_so, setup),
      cmocka_unit_test_setup(test_a_late_look, setup),
      cmocka_unit_test_setup(test_no_limit, setup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
