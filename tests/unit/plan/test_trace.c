/* Profiles from traces. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/plan/trace.h"
#include "tests/support/oom.h"

static zps_err_t read_text(const char *text, struct zps_plan_trace *trace, struct zps_error *error) {
  FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
  assert_non_null(file);
  const zps_err_t err = zps_plan_trace_read(file, "trace", trace, error);
  fclose(file);
  return err;
}

static struct zps_plan_profile profile_of(const char *text, const struct zps_plan_sampling *sampling) {
  struct zps_plan_trace trace;
  struct zps_plan_profile profile = {.run = 7};
  struct zps_error error = {.text = ""};
  if (read_text(text, &trace, &error) || zps_plan_trace_profile(&trace, sampling, &profile, &error))
    fail_msg("%s", error.text);
  zps_plan_trace_fini(&trace);
  assert_true(profile.run == 7);
  return profile;
}

/* Every sample alike: four of 1024 rows, two in the first of eight parts. */
static void test_all_alike(void **state) {
  (void)state;
  const struct zps_plan_sampling sampling = {.rows = 1024, .width = 64, .batch = 2, .ranks = 4, .steps = 3, .seed = 1};
  struct zps_plan_profile profile = profile_of(
      "0 1 500 1000\n1000 0 1 500 500\n0 1 500 1000\n0 1 500 1000\n\n0 1 500 1000\n0 1 500 1000\n0 1 500 1000\n0 1 500 "
      "1000",
      &sampling);
  assert_true(fabs(profile.density - 4 / 1024.0) < 1e-12);
  assert_true(fabs(zps_plan_gamma(&profile, 4) - 1) < 1e-12);
  assert_true(fabs(zps_plan_skew(&profile, 8) - 4) < 1e-12);
  assert_true(fabs(zps_plan_skew(&profile, 128) - 64) < 1e-9);
  assert_true(fabs(profile.block_density - 3 / 256.0) < 1e-12); /* four rows a block: 0 and 1 share one */
}

/* No row twice, as libsvm: gamma_k = k, measured as far as the samples go. */
static void test_disjoint_libsvm(void **state) {
  (void)state;
  const struct zps_plan_sampling sampling = {.rows = 100, .width = 1, .batch = 1, .ranks = 64, .steps = 2, .seed = 1};
  struct zps_plan_profile profile =
      profile_of("1 1:0.5 2:1\n-1 3:0.5 4:1\n1 5:1 6:1\n1 7:1 8:1\n1 9:1 100:1\n", &sampling);
  assert_true(fabs(profile.density - 0.02) < 1e-12);
  assert_true(fabs(zps_plan_gamma(&profile, 4) - 4) < 1e-12);
  assert_int_equal(profile.gamma.n, 3); /* 1, 2, 4 of five samples */
}

static void test_what_is_no_trace(void **state) {
  (void)state;
  static const char *const bad[] = {"1 x 3", "\n\n", "-4", "99999999999", "1 0:5", "1 2:3 4", "\3757zXZ"};
  struct zps_plan_trace trace;
  struct zps_error error;
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (read_text(bad[i], &trace, &error) != ZPS_ERR_INVALID) fail_msg("'%s' was taken", bad[i]);
  }
  assert_int_equal(read_text("4 5\n6 oops\n", &trace, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "trace, line 2"));
  assert_int_equal(read_text("4 5\n18446744073709551616\n", &trace, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "trace, line 2: a row is too large: at most 4294967294, counted from 0");
  char text[] = "4 5\n6 \0 7\n";
  FILE *file = fmemopen(text, sizeof text - 1, "r");
  assert_non_null(file);
  assert_int_equal(zps_plan_trace_read(file, "trace", &trace, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "trace, line 2, column 3: a NUL byte; must be text (UTF-8) without any");
  fclose(file);
  struct zps_plan_profile profile = {.density = 0};
  struct zps_plan_sampling sampling = {.width = 1, .batch = 3, .ranks = 4, .steps = 1};
  assert_int_equal(read_text("4 5\n6\n", &trace, &error), ZPS_OK);
  assert_int_equal(trace.domain, 7);
  assert_int_equal(zps_plan_trace_profile(&trace, &sampling, &profile, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "from 1 to the trace's 2"));
  zps_plan_trace_fini(&trace);
}

static void test_queries_and_a_mark_are_no_rows(void **state) {
  (void)state;
  struct zps_plan_trace trace;
  assert_int_equal(read_text("\xef\xbb\xbf"
                             "1 qid:7 3:0.5 5:1\n2 qid:8 2:1\n",
                             &trace, NULL),
                   ZPS_OK);
  assert_int_equal(trace.n_samples, 2);
  assert_int_equal(trace.n_rows, 3);
  assert_int_equal(trace.domain, 5);
  zps_plan_trace_fini(&trace);
  assert_int_equal(read_text("\xef\xbb\xbf"
                             "4 9\n",
                             &trace, NULL),
                   ZPS_OK);
  assert_int_equal(trace.domain, 10);
  zps_plan_trace_fini(&trace);
}

static zps_err_t read_and_measure(void *ctx) {
  const struct zps_plan_sampling sampling = {.width = 1, .batch = 1, .ranks = 2, .steps = 1};
  struct zps_plan_trace trace;
  struct zps_plan_profile profile = {.density = 0};
  FILE *file = ctx;
  rewind(file);
  zps_err_t err = zps_plan_trace_read(file, "trace", &trace, NULL);
  if (err) return err;
  err = zps_plan_trace_profile(&trace, &sampling, &profile, NULL);
  zps_plan_trace_fini(&trace);
  return err;
}

static void nothing(void *ctx) {
  (void)ctx;
}

static void test_missing_memory(void **state) {
  (void)state;
  FILE *file = tmpfile();
  assert_non_null(file);
  fputs("1 2 3\n4 5\n", file);
  oom_sweep(read_and_measure, nothing, file, 5);
  fclose(file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_alike), cmocka_unit_test(test_disjoint_libsvm), cmocka_unit_test(test_what_is_no_trace),
      cmocka_unit_test(test_queries_and_a_mark_are_no_rows), cmocka_unit_test(test_missing_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
