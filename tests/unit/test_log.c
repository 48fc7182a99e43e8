/* Levels, formats, limits and the sink of the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define ZPS_LOG_COMPONENT "test"
#include "tests/support/logs.h"

static void levels_are_checked_before_arguments_are_evaluated(void **state) {
  (void)state;
  int evaluated = 0;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "number 1");
  zps_log_set_level(ZPS_LOG_WARN);
  zps_log_info("number %d", ++evaluated);
  assert_int_equal(evaluated, 0);
  zps_log_warn("number %d", ++evaluated);
  assert_int_equal(evaluated, 1);
  logs_finish();
}

/* What the default sink writes to stderr for one warning. */
static void capture(enum zps_log_format format, const char *journal, const char *text, char *line, size_t size) {
  FILE *file = tmpfile();
  assert_non_null(file);
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  if (journal) setenv("JOURNAL_STREAM", journal, 1);
  zps_log_set_format(format);
  zps_log_warn("%s", text);
  zps_log_set_format(ZPS_LOG_TEXT);
  unsetenv("JOURNAL_STREAM");
  fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  rewind(file);
  line[fread(line, 1, size - 1, file)] = '\0';
  fclose(file);
}

static void text_has_time_level_component(void **state) {
  (void)state;
  char line[2048];
  unsigned year, ms;
  int used = 0;
  capture(ZPS_LOG_TEXT, NULL, "peer 3 is silent", line, sizeof line);
  assert_int_equal(sscanf(line, "%4u-%*2u-%*2uT%*2u:%*2u:%*2u.%3uZ%n", &year, &ms, &used), 2);
  assert_int_equal(used, 24);
  assert_string_equal(line + used, " warn  test: peer 3 is silent\n");
}

static void the_journal_gets_priorities(void **state) {
  (void)state;
  char line[2048];
  capture(ZPS_LOG_TEXT, "8:1", "x", line, sizeof line);
  assert_string_equal(line, "<4>test: x\n");
}

static void json_escapes_what_json_must(void **state) {
  (void)state;
  char line[2048];
  capture(ZPS_LOG_JSON, NULL, "a \"b\" \\ \n\x01 \xc3\xa9", line, sizeof line);
  const char *rest = strstr(line, "\"level\"");
  assert_non_null(rest);
  assert_string_equal(
      rest, "\"level\":\"warn\",\"component\":\"test\",\"text\":\"a \\\"b\\\" \\\\ \\u000a\\u0001 \xc3\xa9\"}\n");
}

static void long_texts_are_cut(void **state) {
  (void)state;
  char text[3000], line[3000];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\0';
  capture(ZPS_LOG_TEXT, NULL, text, line, sizeof line);
  const size_t len = strlen(line);
  assert_true(len > 1000 && len < 1100);
  assert_int_equal(line[len - 1], '\n');
}

static void a_call_site_is_limited_to_one_line_a_second(void **state) {
  (void)state;
  struct zps_log_limit limit = {0};
  unsigned suppressed = 99;
  assert_true(zps_log_limit_pass(&limit, &suppressed));
  assert_int_equal(suppressed, 0);
  limit.last_ms += 100000; /* however slow the machine, the second is not over */
  for (int i = 0; i < 17; i++) assert_false(zps_log_limit_pass(&limit, &suppressed));
  limit.last_ms -= 101000;
  assert_true(zps_log_limit_pass(&limit, &suppressed));
  assert_int_equal(suppressed, 17);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(levels_are_checked_before_arguments_are_evaluated),
      cmocka_unit_test(text_has_time_level_component),
      cmocka_unit_test(the_journal_gets_priorities),
      cmocka_unit_test(json_escapes_what_json_must),
      cmocka_unit_test(long_texts_are_cut),
      cmocka_unit_test(a_call_site_is_limited_to_one_line_a_second),
  };
  unsetenv("JOURNAL_STREAM");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
