/* Weights of jobs by their names: which count, what is refused, and that a job keeps its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/membership/weights.h"
#include "tests/unit/server/membership/members_rig.h"

static void test_the_first_that_fits(void **state) {
  (void)state;
  static const char list[] = "train-[ab]:2,train*:40,x?z:1000,a:b:7,*.test:3";
  struct zps_error error;
  assert_int_equal(zps_weights_check(list, &error), ZPS_OK);
  assert_int_equal(zps_weight_of(list, "train-a"), 2);
  assert_int_equal(zps_weight_of(list, "train-c"), 40);
  assert_int_equal(zps_weight_of(list, "train"), 40);
  assert_int_equal(zps_weight_of(list, "xyz"), 1000);
  assert_int_equal(zps_weight_of(list, "xyzz"), 1);
  assert_int_equal(zps_weight_of(list, "a:b"), 7);
  assert_int_equal(zps_weight_of(list, ".test"), 3);
  assert_int_equal(zps_weight_of(list, ""), 1);
  assert_int_equal(zps_weight_of(NULL, "train"), 1);
  assert_int_equal(zps_weight_of("", "train"), 1);
  assert_int_equal(zps_weight_of("*:9", "train"), 9);
  assert_int_equal(zps_weights_check(" a*:2, b:3\t,c:4 ", NULL), ZPS_OK);
  assert_int_equal(zps_weight_of(" a*:2, b:3\t,c:4 ", "abc"), 2);
  assert_int_equal(zps_weight_of(" a*:2, b:3\t,c:4 ", "b"), 3);
  assert_int_equal(zps_weight_of(" a*:2, b:3\t,c:4 ", "c"), 4);
}

static void test_what_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *list, *text;
  } wrong[] = {
      {"a:0", "the weight in 'a:0' is no number from 1 to 1000"},
      {"a:-1", "the weight in 'a:-1' is no number from 1 to 1000"},
      {"a:1001", "the weight in 'a:1001' is no number from 1 to 1000"},
      {"a:99999999999999999999", "is no number from 1 to 1000"},
      {"a:3.5", "is no number"},
      {"a:", "the weight in 'a:' is no number"},
      {"a: 3", "is no number"},
      {"a:+3", "is no number"},
      {"a:0x3", "is no number"},
      {"b:2,a:many", "the weight in 'a:many' is no number"},
      {"a", "'a' is no PATTERN:WEIGHT, such as 'train*:4'"},
      {":3", "':3' is no PATTERN:WEIGHT"},
      {"a:3,,b:4", "'' is no PATTERN:WEIGHT"},
      {",a:3", "'' is no PATTERN:WEIGHT"},
      {"a:3,b", "'b' is no PATTERN:WEIGHT"},
  };
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct zps_error error = {.text = ""};
    assert_int_equal(zps_weights_check(wrong[i].list, &error), ZPS_ERR_INVALID);
    if (!strstr(error.text, wrong[i].text)) fail_msg("%s: '%s'", wrong[i].list, error.text);
    assert_non_null(strstr(error.text, "job.weights: "));
  }
  char list[ZPS_NAME_MAX + 8];
  struct zps_error error;
  memset(list, 'x', sizeof list);
  strcpy(list + ZPS_NAME_MAX + 1, ":3");
  assert_int_equal(zps_weights_check(list, &error), ZPS_ERR_INVALID);
  assert_int_equal(zps_weights_check(list + 1, &error), ZPS_OK);
}

/* Of those that begin from then on. */
static void test_a_job_keeps_its_own(void **state) {
  (void)state;
  assert_int_equal(zps_members_set_weights(rig.members, "x:5,*:2"), ZPS_OK);
  members_running_job();
  const struct zps_member_job *const job = zps_members_job_first(rig.members);
  assert_int_equal(job->weight, 5);
  assert_int_equal(zps_members_set_weights(rig.members, NULL), ZPS_OK);
  assert_int_equal(job->weight, 5);
  assert_int_equal(members_join(4, "y", 0, 2, &members_tcp), ZPS_OK);
  assert_int_equal(job->next->weight, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_first_that_fits),
      cmocka_unit_test(test_what_is_refused),
      MEMBERS_CASE(test_a_job_keeps_its_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
