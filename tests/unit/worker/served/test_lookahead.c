/* The lookahead: how far ahead of the sums a round looks for rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/served/lookahead.h"

enum { STEPS = 16, STEP_BYTES = 1000 };

static unsigned begin(struct zps_lookahead *lookahead) {
  unsigned n = 0;
  while (zps_lookahead_next(lookahead)) n++;
  return n;
}

/* Links that carry `bytes` in the time that counts. */
static struct zps_lookahead over(double bytes) {
  struct zps_lookahead lookahead;
  zps_lookahead_init(&lookahead, STEPS, STEPS * STEP_BYTES, bytes * ZPS_NS_PER_S / ZPS_LOOKAHEAD_NS);
  return lookahead;
}

static void test_unknown(void **state) {
  (void)state;
  struct zps_lookahead lookahead = over(0);
  assert_int_equal(begin(&lookahead), STEPS);
  assert_false(zps_lookahead_is_left(&lookahead));
  zps_lookahead_init(&lookahead, STEPS, 0, 1); /* of a tensor that had no round yet */
  assert_int_equal(begin(&lookahead), STEPS);
  zps_lookahead_init(&lookahead, 0, 0, 0);
  assert_int_equal(begin(&lookahead), 0);
  zps_lookahead_init(&lookahead, 1, STEP_BYTES, 1);
  assert_int_equal(begin(&lookahead), 1);
}

static void test_fast(void **state) {
  (void)state;
  struct zps_lookahead lookahead = over(STEPS * STEP_BYTES);
  assert_int_equal(begin(&lookahead), STEPS);
}

/* Finished sums make room, step for step. */
static void test_slow(void **state) {
  (void)state;
  struct zps_lookahead lookahead = over(4 * STEP_BYTES + 1);
  assert_int_equal(begin(&lookahead), 5);
  lookahead.summed_bytes += STEP_BYTES / 2;
  assert_int_equal(begin(&lookahead), 0);
  lookahead.summed_bytes += STEP_BYTES / 2;
  assert_int_equal(begin(&lookahead), 1);
  lookahead.summed_bytes += 3 * STEP_BYTES;
  assert_int_equal(begin(&lookahead), 3);
  assert_true(zps_lookahead_is_left(&lookahead));
  lookahead.summed_bytes = STEPS * STEP_BYTES;
  assert_int_equal(begin(&lookahead), STEPS - 9);
}

static void test_least(void **state) {
  (void)state;
  struct zps_lookahead lookahead = over(1);
  assert_int_equal(begin(&lookahead), ZPS_LOOKAHEAD_STEPS);
}

static void test_hurry(void **state) {
  (void)state;
  struct zps_lookahead lookahead = over(1);
  begin(&lookahead);
  zps_lookahead_flush(&lookahead);
  assert_int_equal(begin(&lookahead), STEPS - ZPS_LOOKAHEAD_STEPS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_unknown), cmocka_unit_test(test_fast),  cmocka_unit_test(test_slow),
      cmocka_unit_test(test_least),   cmocka_unit_test(test_hurry),
  };
  cmocka_set_message_output(CM_OUTPUT_TAP);
  return cmocka_run_group_tests_name("how far ahead rows are looked for", tests, NULL, NULL);
}
