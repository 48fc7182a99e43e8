/* The cost of rounds: its arithmetic, and its way over the control plane. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/control_stats.h"

static const struct zps_tally a_round = {.rounds = 1,
                                         .bytes_out = 100,
                                         .bytes_in = 200,
                                         .push_rows = 7,
                                         .union_rows = 9,
                                         .total_ns = 5,
                                         .step = 41,
                                         .scheme = "ring"};

static void test_rounds_are_added_up(void **state) {
  (void)state;
  struct zps_tally sum = {0};
  zps_tally_add(&sum, &a_round);
  struct zps_tally other = a_round;
  other.step = 42;
  strcpy(other.scheme, "balanced");
  zps_tally_add(&sum, &other);
  assert_int_equal(sum.rounds, 2);
  assert_int_equal(sum.bytes_out, 200);
  assert_int_equal(sum.bytes_in, 400);
  assert_int_equal(sum.push_rows, 14);
  assert_int_equal(sum.total_ns, 10);
  assert_int_equal(sum.step, 42);
  assert_string_equal(sum.scheme, "balanced");
}

static void test_a_failed_round_leaves_step_and_scheme(void **state) {
  (void)state;
  struct zps_tally sum = a_round;
  zps_tally_add(&sum, &(struct zps_tally){.failed = 1, .step = 99, .scheme = "x"});
  assert_int_equal(sum.failed, 1);
  assert_int_equal(sum.rounds, 1);
  assert_int_equal(sum.step, 41);
  assert_string_equal(sum.scheme, "ring");
}

static void test_growth_is_what_came_since(void **state) {
  (void)state;
  struct zps_tally before = a_round, now = a_round;
  assert_true(zps_tally_same(&now, &before));
  zps_tally_add(&now, &a_round);
  assert_false(zps_tally_same(&now, &before));
  const struct zps_tally growth = zps_tally_growth(&now, &before);
  assert_int_equal(growth.rounds, 1);
  assert_int_equal(growth.bytes_in, 200);
  zps_tally_add(&before, &growth);
  assert_memory_equal(&before, &now, sizeof now);
  zps_tally_add(&now, &(struct zps_tally){.failed = 1});
  assert_false(zps_tally_same(&now, &before));
}

static void test_times_are_counted(void **state) {
  (void)state;
  struct zps_tally tally = {0};
  static const uint64_t ns[] = {0, 1000000, 1000001, 2000000, 65536000000, 65536000001, UINT64_MAX};
  for (unsigned i = 0; i < sizeof ns / sizeof ns[0]; i++) zps_tally_time(&tally, ns[i]);
  assert_int_equal(tally.took_1ms, 2);
  assert_int_equal(tally.took_2ms, 2);
  assert_int_equal(tally.took_4ms, 0);
  assert_int_equal(tally.took_65536ms, 1);
  assert_int_equal(tally.took_longer, 2);
  const struct zps_tally before = tally;
  zps_tally_add(&tally, &before);
  assert_int_equal(tally.took_longer, 4);
  assert_int_equal(zps_tally_growth(&tally, &before).took_2ms, 2);
}

static zps_err_t read(const char *text, struct zps_tally *tally, struct zps_error *error) {
  zps_json *value = NULL;
  assert_int_equal(zps_json_parse(text, strlen(text), &value, NULL), ZPS_OK);
  const zps_err_t err = zps_control_tally_read(value, tally, error);
  zps_json_unref(value);
  return err;
}

static void test_every_counter_travels(void **state) {
  (void)state;
  struct zps_tally sent = {.step = 12, .scheme = "recursive-doubling"}, got;
  uint64_t n = 1;
#define FILL(name, ...) sent.name = n++ << 20;
  ZPS_TALLY_COUNTERS(FILL)
  ZPS_TALLY_TIMES(FILL)
#undef FILL
  zps_json *object = zps_control_tally_write(zps_json_object(), &sent);
  assert_non_null(object);
  char *text = zps_json_dump(object);
  assert_int_equal(read(text, &got, NULL), ZPS_OK);
  assert_memory_equal(&got, &sent, sizeof got);
  free(text);
  zps_json_unref(object);
}

static void test_what_makes_no_sense_is_refused(void **state) {
  (void)state;
  struct zps_tally tally;
  struct zps_error error;
  assert_int_equal(read("{}", &tally, &error), ZPS_OK);
  assert_int_equal(tally.rounds, 0);
  static const char *const wrong[] = {"{\"rounds\": -1}", "{\"bytes_in\": \"many\"}", "{\"wait_ns\": 1.5}",
                                      "{\"total_ns\": 9007199254740993}",
                                      "{\"scheme\": \"a-name-that-is-longer-than-any-scheme\"}"};
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(read(wrong[i], &tally, &error), ZPS_ERR_PROTOCOL);
    assert_non_null(
        strstr(error.text, i == 4 ? "scheme" : (const char *[]){"rounds", "bytes_in", "wait_ns", "total_ns"}[i]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rounds_are_added_up),       cmocka_unit_test(test_a_failed_round_leaves_step_and_scheme),
      cmocka_unit_test(test_growth_is_what_came_since), cmocka_unit_test(test_times_are_counted),
      cmocka_unit_test(test_every_counter_travels),     cmocka_unit_test(test_what_makes_no_sense_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
