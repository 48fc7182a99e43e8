/* The offset of a member's calendar, by its heartbeats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "server/coordinator/clocks.h"

#define UTC_US 1800000000000000ull

/* The coordinator's heartbeat left at `sent_ms`, stayed at the member for `held_ms`, and is answered at `now_ms`, at
 * which the member's clock is ahead by `ahead_ms`. The answer took no time. */
static void beat(struct zps_clock_offset *offset, double ahead_ms, uint64_t sent_ms, uint64_t held_ms,
                 uint64_t now_ms) {
  const struct zps_beat said = {
      .clock_us = UTC_US + (uint64_t)(int64_t)(ahead_ms * 1000), .echo_us = sent_ms * 1000, .held_us = held_ms * 1000};
  zps_clock_offset_take(offset, &said, now_ms * ZPS_NS_PER_MS, UTC_US);
}

static void holds(const struct zps_clock_offset *offset, double ms, double error_ms) {
  assert_float_equal(offset->ms, ms, 1e-6);
  assert_float_equal(offset->error_ms, error_ms, 1e-6);
}

static void test_half_of_the_way_is_the_error(void **state) {
  (void)state;
  struct zps_clock_offset offset = {.at_ns = 0};
  beat(&offset, 90000, 1000, 500, 1502); /* 2 ms under way */
  holds(&offset, 90001, 1);
  beat(&offset, 90000, 2000, 500, 2520); /* worse: passed over */
  holds(&offset, 90001, 1);
  beat(&offset, 90000, 3000, 500, 3501); /* better */
  holds(&offset, 90000.5, 0.5);
  beat(&offset, -20, 4000, 500, 4540); /* the clock was set */
  holds(&offset, 0, 20);
  beat(&offset, -25, 65000, 500, 65600); /* what was known is too old */
  holds(&offset, 25, 50);
}

static void test_heartbeats_without_sense(void **state) {
  (void)state;
  struct zps_clock_offset offset = {.at_ns = 0};
  beat(&offset, 5, 1000, 0, 900);     /* an answer to a later heartbeat */
  beat(&offset, 5, 1000, 2000, 2000); /* held for longer than there was time */
  beat(&offset, 5, 0, 0, 2000);       /* without an echo, as of an older release */
  assert_int_equal(offset.at_ns, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_half_of_the_way_is_the_error),
      cmocka_unit_test(test_heartbeats_without_sense),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
