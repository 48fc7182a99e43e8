/* What zenpsrun says of its job when a server has ended, by what the coordinator answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/tools/job_outcome.h"

static struct zps_fate read_fate(const char *text) {
  struct zps_error error;
  struct zps_fate fate;
  zps_json *jobs;
  assert_int_equal(zps_json_parse(text, strlen(text), &jobs, &error), ZPS_OK);
  zps_fate_read(jobs, &fate);
  zps_json_unref(jobs);
  return fate;
}

#define CLOSING "{\"job\": \"k\", \"state\": \"closing\", \"servers\": 1, \"servers_lost\": 1, \"failure\": \"why\"}"
#define ENDED(code) "{\"job\": \"l\", \"state\": \"failed\", \"code\": \"" code "\", \"failure\": \"it was lost\"}"
#define WELL "{\"job\": \"m\", \"state\": \"closed\", \"code\": \"\", \"failure\": \"\"}"

static void check(const char *jobs, bool has_failed, const char *text) {
  const struct zps_fate fate = read_fate(jobs);
  assert_string_equal(fate.text, text);
  assert_int_equal(fate.has_failed, has_failed);
}

static void test_a_job_that_goes_on(void **state) {
  (void)state;
  const char *one = "{\"job\": \"j\", \"state\": \"running\", \"servers\": 3, \"servers_lost\": 1}";
  const char *two = "{\"job\": \"j\", \"state\": \"running\", \"servers\": 3, \"servers_lost\": 2}";
  char text[400];
  snprintf(text, sizeof text, "{\"jobs\": [%s], \"ended\": []}", one);
  check(text, false, "job 'j' goes on with 2 servers");
  snprintf(text, sizeof text, "{\"jobs\": [%s, %s], \"ended\": [" ENDED("ERR_SERVER_LOST") "]}", CLOSING, two);
  check(text, false, "job 'j' goes on with 1 server");
}

static void test_a_job_that_has_failed(void **state) {
  (void)state;
  check("{\"jobs\": [" CLOSING "], \"ended\": []}", true, "why");
  check("{\"jobs\": [], \"ended\": [" WELL ", " ENDED("ERR_SERVER_LOST") "]}", true, "it was lost");
}

static void test_no_job(void **state) {
  (void)state;
  check("{\"jobs\": [], \"ended\": []}", false, "no job is running");
  check("{\"jobs\": [{\"job\": \"j\", \"state\": \"joining\"}], \"ended\": [" ENDED("ERR_SERVER_LOST") "]}", false,
        "no job is running");
  check("{\"jobs\": [], \"ended\": [" ENDED("ERR_SERVER_LOST") ", " WELL "]}", false, "no job is running");
  check("{\"jobs\": [], \"ended\": [" ENDED("ERR_PEER_LOST") "]}", false, "no job is running");
  check("{}", false, "no job is running");
}

static void test_nobody_answers(void **state) {
  (void)state;
  struct zps_fate fate;
  zps_fate_ask("nowhere", NULL, &fate);
  assert_false(fate.has_failed);
  assert_non_null(strstr(fate.text, "the coordinator does not say what becomes of the job (address 'nowhere'"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_job_that_goes_on),
      cmocka_unit_test(test_a_job_that_has_failed),
      cmocka_unit_test(test_no_job),
      cmocka_unit_test(test_nobody_answers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
