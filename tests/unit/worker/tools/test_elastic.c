/* What zenpsrun's options say of an elastic run, and how often it fills a place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "worker/tools/elastic.h"

static void check(struct zps_elastic_options options, unsigned min, unsigned max, enum zps_rank_loss loss) {
  struct zps_elastic elastic;
  struct zps_error error;
  assert_int_equal(zps_elastic_find(&options, &elastic, &error), ZPS_OK);
  assert_int_equal(elastic.min, min);
  assert_int_equal(elastic.max, max);
  assert_int_equal(elastic.loss, loss);
}

static void check_refused(struct zps_elastic_options options, const char *text) {
  struct zps_elastic elastic;
  struct zps_error error;
  assert_int_equal(zps_elastic_find(&options, &elastic, &error), ZPS_ERR_INVALID);
  if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
}

#define OPTIONS(...) ((struct zps_elastic_options){__VA_ARGS__})

static void test_what_is_accepted(void **state) {
  (void)state;
  check(OPTIONS(.ranks = 4), 0, 0, ZPS_RANK_LOSS_FAIL);
  check(OPTIONS(.ranks = 0, .loss = ZPS_RANK_LOSS_FAIL), 0, 0, ZPS_RANK_LOSS_FAIL);
  check(OPTIONS(.range = "2:4", .ranks = 2), 2, 4, ZPS_RANK_LOSS_CONTINUE);
  check(OPTIONS(.range = "2:4", .ranks = 4, .join_wait_ms = 7), 2, 4, ZPS_RANK_LOSS_CONTINUE);
  check(OPTIONS(.range = "3:3", .ranks = 3, .loss = ZPS_RANK_LOSS_RESTART), 3, 3, ZPS_RANK_LOSS_RESTART);
  check(OPTIONS(.range = "1:4096", .ranks = 3, .loss = ZPS_RANK_LOSS_FAIL), 1, 4096, ZPS_RANK_LOSS_FAIL);
}

static void test_what_is_refused(void **state) {
  (void)state;
  static const char *const ranges[] = {
      "",    "2",    ":",    "2:",   ":4",   "0:4", "2:0",    "2:4:",
      "2:x", "-1:4", "+1:4", " 1:4", "1: 4", "2,4", "1:4097", "18446744073709551617:4"};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
    check_refused(OPTIONS(.range = ranges[i], .ranks = 2), "is not MIN:MAX");
  check_refused(OPTIONS(.range = "4:2", .ranks = 3), "4 ranks at least are more than 2 at most");
  check_refused(OPTIONS(.range = "2:4", .ranks = 1), "-n 1 is not within --elastic 2:4: give -n from 2 to 4");
  check_refused(OPTIONS(.range = "2:4", .ranks = 5), "give -n from 2 to 4");
  check_refused(OPTIONS(.range = "2:4"), "give -n N");
  check_refused(OPTIONS(.ranks = 2, .loss = ZPS_RANK_LOSS_CONTINUE), "--on-rank-loss=continue needs an elastic job");
  check_refused(OPTIONS(.ranks = 2, .loss = ZPS_RANK_LOSS_RESTART), "--on-rank-loss=restart needs an elastic job");
  check_refused(OPTIONS(.ranks = 2, .join_wait_ms = 1), "--join-wait");
}

#define SOON (ZPS_TRIES_SOON_S * ZPS_NS_PER_S - 1)

static void test_a_place_is_not_filled_for_ever(void **state) {
  (void)state;
  struct zps_tries tries = {0};
  for (int i = 1; i < ZPS_TRIES_MAX; i++) assert_true(zps_tries_again(&tries, 0));
  assert_false(zps_tries_again(&tries, SOON));
}

static void test_one_that_lives_begins_the_count_anew(void **state) {
  (void)state;
  struct zps_tries tries = {0};
  for (int round = 0; round < 100; round++) {
    for (int i = 1; i < ZPS_TRIES_MAX; i++) assert_true(zps_tries_again(&tries, SOON));
    assert_true(zps_tries_again(&tries, SOON + 1));
  }
  for (int i = 1; i < ZPS_TRIES_MAX; i++) assert_true(zps_tries_again(&tries, SOON));
  assert_false(zps_tries_again(&tries, SOON));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_accepted),
      cmocka_unit_test(test_what_is_refused),
      cmocka_unit_test(test_a_place_is_not_filled_for_ever),
      cmocka_unit_test(test_one_that_lives_begins_the_count_anew),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
