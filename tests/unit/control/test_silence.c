/* Which silence of a peer is its death, and which is this process's own sleep: with a clock of the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/control/silence.h"

#define MS ZPS_NS_PER_MS
enum { HEARTBEAT = 1000, DEAD = 5000 };

static uint64_t now_ns, heard_ns;

static void begin(struct zps_silence *silence) {
  now_ns = heard_ns = 1000000 * MS;
  zps_silence_begin(silence, HEARTBEAT, DEAD, now_ns);
}

/* The silence that is found at a beat `ms` after the last one. */
static uint64_t beat_after(struct zps_silence *silence, uint64_t ms) {
  now_ns += ms * MS;
  zps_silence_beat(silence, now_ns);
  return zps_silence_of(silence, heard_ns, now_ns);
}

static void test_dead(void **state) {
  (void)state;
  struct zps_silence silence;
  begin(&silence);
  for (unsigned i = 0; i < 5; i++) assert_int_equal(beat_after(&silence, HEARTBEAT), 0);
  assert_int_equal(beat_after(&silence, HEARTBEAT), 6000 * MS);
}

static void test_alive(void **state) {
  (void)state;
  struct zps_silence silence;
  begin(&silence);
  for (unsigned i = 0; i < 100; i++) {
    if (i % 4 == 0) heard_ns = now_ns;
    assert_int_equal(beat_after(&silence, HEARTBEAT), 0);
  }
}

/* One silence is forgiven after a sleep, for as long as any peer may take; the peer that stays silent is dead. */
static void test_slept(void **state) {
  (void)state;
  struct zps_silence silence;
  begin(&silence);
  assert_int_equal(beat_after(&silence, HEARTBEAT), 0);
  assert_int_equal(beat_after(&silence, 60000), 0);
  for (unsigned i = 0; i < 5; i++) assert_int_equal(beat_after(&silence, HEARTBEAT), 0);
  assert_int_equal(beat_after(&silence, HEARTBEAT), 6000 * MS);
  begin(&silence);
  assert_int_equal(beat_after(&silence, 60000), 0);
  heard_ns = now_ns + 1;
  assert_int_equal(beat_after(&silence, HEARTBEAT), 0);
  assert_int_equal(beat_after(&silence, HEARTBEAT), 0);
}

/* A beat that is late, as on a busy machine, is no sleep: half of what a peer may take, and a beat. */
static void test_late(void **state) {
  (void)state;
  struct zps_silence silence;
  begin(&silence);
  assert_int_equal(beat_after(&silence, 3500), 0);
  assert_int_equal(beat_after(&silence, 3500), 7000 * MS);
  begin(&silence);
  assert_int_equal(beat_after(&silence, 3501), 0);
  assert_int_equal(beat_after(&silence, 3500), 0);
}

static void test_any_silence(void **state) {
  (void)state;
  struct zps_silence silence;
  begin(&silence);
  zps_silence_begin(&silence, HEARTBEAT, 0, now_ns);
  assert_int_equal(beat_after(&silence, 3600000), 0);
  zps_silence_begin(&silence, UINT64_MAX, UINT64_MAX, now_ns);
  assert_int_equal(beat_after(&silence, 3600000), 0);
}

/* A thread is stuck from the first beat on that finds something due and no turn since. */
static void test_stuck(void **state) {
  (void)state;
  struct zps_silence silence;
  struct zps_stuck stuck = {0};
  begin(&silence);
#define LOOK(turns, due) zps_stuck_look(&stuck, &silence, turns, due, now_ns)
  assert_int_equal(LOOK(7, true), 0);
  beat_after(&silence, HEARTBEAT);
  assert_int_equal(LOOK(8, true), 0);
  for (unsigned i = 1; i <= 9; i++) {
    beat_after(&silence, HEARTBEAT);
    assert_int_equal(LOOK(8, true), i * HEARTBEAT * MS);
  }
  beat_after(&silence, HEARTBEAT);
  assert_int_equal(LOOK(9, true), 0);
  for (unsigned i = 1; i <= 9; i++) {
    beat_after(&silence, HEARTBEAT);
    assert_int_equal(LOOK(9, false), 0); /* it sleeps */
  }
  beat_after(&silence, HEARTBEAT);
  assert_int_equal(LOOK(9, true), HEARTBEAT * MS);
  beat_after(&silence, 60000); /* the process slept, and the thread with it */
  assert_int_equal(LOOK(9, true), 0);
  beat_after(&silence, HEARTBEAT);
  assert_int_equal(LOOK(9, true), HEARTBEAT * MS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_dead), cmocka_unit_test(test_alive),       cmocka_unit_test(test_slept),
      cmocka_unit_test(test_late), cmocka_unit_test(test_any_silence), cmocka_unit_test(test_stuck),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
