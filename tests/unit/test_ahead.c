/* How far ahead of the sums a round looks for rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/ahead.h"

enum { STEPS = 16, STEP_BYTES = 1000 };

static unsigned begin(struct zps_ahead *ahead) {
  unsigned n = 0;
  while (zps_ahead_next(ahead)) n++;
  return n;
}

/* Links that carry `bytes` in the time that counts. */
static struct zps_ahead over(double bytes) {
  struct zps_ahead ahead;
  zps_ahead_init(&ahead, STEPS, STEPS * STEP_BYTES, bytes * ZPS_NS_PER_S / ZPS_AHEAD_NS);
  return ahead;
}

static void test_unknown(void **state) {
  (void)state;
  struct zps_ahead ahead = over(0);
  assert_int_equal(begin(&ahead), STEPS);
  assert_false(zps_ahead_is_left(&ahead));
  zps_ahead_init(&ahead, STEPS, 0, 1); /* of a tensor that had no round yet */
  assert_int_equal(begin(&ahead), STEPS);
  zps_ahead_init(&ahead, 0, 0, 0);
  assert_int_equal(begin(&ahead), 0);
  zps_ahead_init(&ahead, 1, STEP_BYTES, 1);
  assert_int_equal(begin(&ahead), 1);
}

static void test_fast(void **state) {
  (void)state;
  struct zps_ahead ahead = over(STEPS * STEP_BYTES);
  assert_int_equal(begin(&ahead), STEPS);
}

/* What is summed makes room, step for step. */
static void test_slow(void **state) {
  (void)state;
  struct zps_ahead ahead = over(4 * STEP_BYTES + 1);
  assert_int_equal(begin(&ahead), 5);
  ahead.summed_bytes += STEP_BYTES / 2;
  assert_int_equal(begin(&ahead), 0);
  ahead.summed_bytes += STEP_BYTES / 2;
  assert_int_equal(begin(&ahead), 1);
  ahead.summed_bytes += 3 * STEP_BYTES;
  assert_int_equal(begin(&ahead), 3);
  assert_true(zps_ahead_is_left(&ahead));
  ahead.summed_bytes = STEPS * STEP_BYTES;
  assert_int_equal(begin(&ahead), STEPS - 9);
}

static void test_least(void **state) {
  (void)state;
  struct zps_ahead ahead = over(1);
  assert_int_equal(begin(&ahead), ZPS_AHEAD_STEPS);
}

static void test_hurry(void **state) {
  (void)state;
  struct zps_ahead ahead = over(1);
  begin(&ahead);
  zps_ahead_hurry(&ahead);
  assert_int_equal(begin(&ahead), STEPS - ZPS_AHEAD_STEPS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unknown), cmocka_unit_test(test_fast),  cmocka_unit_test(test_slow),
      cmocka_unit_test(test_least),   cmocka_unit_test(test_hurry),
  };
  cmocka_set_message_output(CM_OUTPUT_TAP);
  return cmocka_run_group_tests_name("how far ahead rows are looked for", tests, NULL, NULL);
}
