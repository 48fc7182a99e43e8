#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/meter.h"

#define MS ZPS_NS_PER_MS

static void period(struct zps_meter *meter, uint64_t bytes, uint64_t took_ns) {
  zps_meter_start(meter, 1000 * MS);
  zps_meter_add(meter, bytes / 2);
  zps_meter_add(meter, bytes - bytes / 2);
  zps_meter_stop(meter, 1000 * MS + took_ns);
}

static void test_rate_is_that_of_busy_periods(void **state) {
  (void)state;
  struct zps_meter meter = {0};
  assert_true(zps_meter_rate(&meter) == 0);
  period(&meter, 32000, 1); /* too short to say anything */
  assert_true(zps_meter_rate(&meter) == 0);
  for (unsigned i = 0; i < 10; i++) period(&meter, 100000, 10 * MS);
  assert_true(zps_meter_rate(&meter) == 1e7);
}

/* A trip belongs to no byte, unless the period is hardly longer. */
static void test_the_trip_is_taken_off(void **state) {
  (void)state;
  struct zps_meter meter = {0};
  zps_meter_trip(&meter, 2 * MS);
  zps_meter_trip(&meter, 3 * MS);
  assert_true(zps_meter_latency_s(&meter) == 1e-3);
  period(&meter, 1000000, 12 * MS);
  assert_true(zps_meter_rate(&meter) == 1e8);
  period(&meter, 1000000, 4 * MS);
  assert_true(zps_meter_rate(&meter) == 2e6 / 12e-3);
}

static void test_what_was_long_ago_counts_for_less(void **state) {
  (void)state;
  struct zps_meter meter = {0};
  for (unsigned i = 0; i < 100; i++) period(&meter, 1 << 20, 100 * MS);
  for (unsigned i = 0; i < 300; i++) period(&meter, 1 << 20, 10 * MS);
  const double rate = zps_meter_rate(&meter), wanted = (1 << 20) / 10e-3;
  assert_true(rate > 0.99 * wanted && rate < 1.01 * wanted);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rate_is_that_of_busy_periods),
      cmocka_unit_test(test_the_trip_is_taken_off),
      cmocka_unit_test(test_what_was_long_ago_counts_for_less),
  };
  return cmocka_run_group_tests_name("net meter", tests, NULL, NULL);
}
