/* Levels, formats, limits and the sink of the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/base/rng.h"

#define ZPS_LOG_COMPONENT "test"
#include "tests/support/logs.h"

static void note_fields(void *ctx, const struct zps_log_line *line) {
  *(struct zps_log_fields *)ctx = line->fields;
}

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

enum stream { NOT_NAMED, NAMED, ANOTHER_NAMED }; /* by JOURNAL_STREAM */

/* The bytes that the default sink writes to stderr, a socket as the journal's is, for one warning. */
static void capture(enum zps_log_format format, enum stream stream, const char *text, char *line, size_t size) {
  int ends[2];
  char name[50];
  struct stat stat;
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  assert_int_equal(fstat(ends[1], &stat), 0);
  snprintf(name, sizeof name, "%llu:%llu", (unsigned long long)stat.st_dev,
           (unsigned long long)stat.st_ino + (stream == ANOTHER_NAMED));
  const int saved = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  if (stream != NOT_NAMED) setenv("JOURNAL_STREAM", name, 1);
  zps_log_set_format(format);
  zps_log_warn("%s", text);
  zps_log_set_format(ZPS_LOG_TEXT);
  unsetenv("JOURNAL_STREAM");
  fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(ends[1]);
  size_t len = 0;
  for (ssize_t n; (n = read(ends[0], line + len, size - 1 - len)) > 0;) len += (size_t)n;
  line[len] = '\0';
  close(ends[0]);
}

static void text_has_time_level_component(void **state) {
  (void)state;
  char line[2048];
  unsigned year, ms;
  int used = 0;
  capture(ZPS_LOG_TEXT, NOT_NAMED, "peer 3 is silent", line, sizeof line);
  assert_int_equal(sscanf(line, "%4u-%*2u-%*2uT%*2u:%*2u:%*2u.%3uZ%n", &year, &ms, &used), 2);
  assert_int_equal(used, 24);
  assert_string_equal(line + used, " warn  test: peer 3 is silent\n");
}

static void the_journal_gets_priorities(void **state) {
  (void)state;
  char line[2048];
  capture(ZPS_LOG_TEXT, NAMED, "x", line, sizeof line);
  assert_string_equal(line, "<4>test: x\n");
  capture(ZPS_LOG_JSON, NAMED, "x", line, sizeof line);
  assert_memory_equal(line, "<4>{\"time\":\"", 12);
}

static void a_log_that_was_redirected_is_not_the_journal(void **state) {
  (void)state;
  static const char *const not_names[] = {"", ":", "8", "8:", "x:1", "8:1"};
  char line[2048];
  capture(ZPS_LOG_TEXT, ANOTHER_NAMED, "x", line, sizeof line);
  assert_string_equal(line + 24, " warn  test: x\n");
  capture(ZPS_LOG_JSON, ANOTHER_NAMED, "x", line, sizeof line);
  assert_int_equal(line[0], '{');
  for (size_t i = 0; i < sizeof not_names / sizeof not_names[0]; i++) {
    setenv("JOURNAL_STREAM", not_names[i], 1);
    assert_false(zps_log_is_journal());
  }
  unsetenv("JOURNAL_STREAM");
}

static void json_escapes_what_json_must(void **state) {
  (void)state;
  char line[2048];
  capture(ZPS_LOG_JSON, NOT_NAMED, "a \"b\" \\ \n\x01 \xc3\xa9 \xff\xc3", line, sizeof line);
  const char *rest = strstr(line, "\"level\"");
  assert_non_null(rest);
  assert_string_equal(rest,
                      "\"level\":\"warn\",\"component\":\"test\",\"text\":\"a \\\"b\\\" \\\\ \\u000a\\u0001 \xc3\xa9 "
                      "\\ufffd\\ufffd\"}\n");
}

/* ---- Fields ---- */

static void members_of(const char *line, char *members, size_t size) {
  json_t *const read = json_loads(line, 0, NULL);
  const char *key;
  json_t *value;
  assert_non_null(read);
  members[0] = '\0';
  json_object_foreach(read, key, value) {
    char text[300];
    if (strcmp(key, "time") == 0 || strcmp(key, "level") == 0 || strcmp(key, "component") == 0) continue;
    if (json_is_integer(value))
      snprintf(text, sizeof text, "%s=%lld ", key, (long long)json_integer_value(value));
    else
      snprintf(text, sizeof text, "%s='%s' ", key, json_string_value(value));
    strncat(members, text, size - strlen(members) - 1);
  }
  json_decref(read);
}

static void has_members(const char *expected) {
  char line[2048], members[1024];
  capture(ZPS_LOG_JSON, NOT_NAMED, "x", line, sizeof line);
  members_of(line, members, sizeof members);
  assert_string_equal(members, expected);
  capture(ZPS_LOG_TEXT, NOT_NAMED, "x", line, sizeof line);
  assert_string_equal(line + 24, " warn  test: x\n");
}

static void about_a_rank(void) {
  zps_log_about(ZPS_LOG_RANK(0), .code = ZPS_ERR_PEER_LOST);
  has_members("job='a' rank=0 code='ERR_PEER_LOST' peer='h:1' text='x' ");
}

static void a_line_has_the_fields_of_its_scopes(void **state) {
  (void)state;
  has_members("text='x' ");
  {
    zps_log_about(.peer = "h:1");
    has_members("peer='h:1' text='x' ");
    {
      zps_log_about(.job = "a");
      about_a_rank();
      zps_log_about(.server = "s \"1\"", .tensor = "t", ZPS_LOG_STEP(UINT64_MAX / 2));
      has_members("job='a' server='s \"1\"' tensor='t' step=9223372036854775807 peer='h:1' text='x' ");
      {
        zps_log_about(.job = "b"); /* Server, tensor and step are job a's. */
        has_members("job='b' peer='h:1' text='x' ");
        zps_log_about(.job = NULL, .server = "");
        has_members("job='b' peer='h:1' text='x' ");
      }
      {
        zps_log_about_else();
        has_members("text='x' ");
      }
    }
    has_members("peer='h:1' text='x' ");
  }
  has_members("text='x' ");
}

static void a_failure_has_its_code(void **state) {
  (void)state;
  struct zps_log_fields fields = {.job = "?"};
  const struct zps_error error = {.code = ZPS_ERR_NOMEM, .text = "no memory"};
  zps_log_set_sink(note_fields, &fields);
  zps_log_about(.job = "a");
  zps_log_failure(ZPS_LOG_WARN, &error);
  zps_log_set_sink(NULL, NULL);
  assert_string_equal(fields.job, "a");
  assert_int_equal(fields.code, ZPS_ERR_NOMEM);
}

/* A name of any length and any bytes: the line stays JSON, and its sentence is whole. */
static void long_fields_are_cut(void **state) {
  (void)state;
  char name[3000], text[1024], line[16384];
  memset(name, 0xff, sizeof name);
  memset(text, '\x01', sizeof text);
  name[sizeof name - 1] = text[sizeof text - 1] = '\0';
  zps_log_about(.job = name, .server = name, .tensor = name, .peer = name, ZPS_LOG_RANK(1), ZPS_LOG_STEP(1),
                .code = ZPS_ERR_RANK_TAKEN);
  capture(ZPS_LOG_JSON, NOT_NAMED, text, line, sizeof line);
  json_t *const read = json_loads(line, 0, NULL);
  assert_non_null(read);
  assert_int_equal(strlen(json_string_value(json_object_get(read, "job"))), 3 * ZPS_LOG_FIELD_MAX);
  assert_int_equal(strlen(json_string_value(json_object_get(read, "text"))), sizeof text - 1);
  json_decref(read);
}

/* jansson is a second judge: it takes no byte that is not UTF-8, and no control character. */
static void json_is_what_others_read(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 11};
  for (int i = 0; i < 2000; i++) {
    static const char likely[] = "\"\\\n\x7f\x80\xbf\xc2\xc3\xe2\x82\xac\xed\xa0\xf0\x9f\x98\x80\xf4\xf8\xff{}:,/";
    char text[64], line[2048];
    size_t len = zps_rng_below(&rng, sizeof text - 1);
    bool is_plain = true;
    for (size_t k = 0; k < len; k++) {
      text[k] = i % 2 ? (char)(1 + zps_rng_below(&rng, 255)) : likely[zps_rng_below(&rng, sizeof likely - 1)];
      is_plain = is_plain && (unsigned char)text[k] < 0x7f;
    }
    text[len] = '\0';
    capture(ZPS_LOG_JSON, NOT_NAMED, text, line, sizeof line);
    json_error_t why;
    json_t *const read = json_loads(line, 0, &why);
    if (!read) fail_msg("%s: %s", why.text, line);
    const char *const got = json_string_value(json_object_get(read, "text"));
    assert_non_null(got);
    if (is_plain) assert_string_equal(got, text);
    json_decref(read);
  }
}

static void long_texts_are_cut(void **state) {
  (void)state;
  char text[3000], line[3000];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = '\0';
  capture(ZPS_LOG_TEXT, NOT_NAMED, text, line, sizeof line);
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

static void note_line(void *ctx, const struct zps_log_line *line) {
  snprintf(ctx, 1024, "%s", line->text);
}

static void what_was_left_out_is_told_in_the_next_line(void **state) {
  (void)state;
  struct zps_log_limit limit = {.suppressed = 17};
  char line[1024], long_text[2000];
  zps_log_set_sink(note_line, line);
  zps_log_write_limited(&limit, ZPS_LOG_WARN, "rpc", "%s: odd", "peer");
  assert_string_equal(line, "peer: odd (17 similar lines left out before this one)");
  limit.last_ms -= 2000;
  zps_log_write_limited(&limit, ZPS_LOG_WARN, "rpc", "%s: odd", "peer");
  assert_string_equal(line, "peer: odd");
  limit.last_ms -= 2000;
  limit.suppressed = ~0u;
  memset(long_text, 'x', sizeof long_text - 1);
  long_text[sizeof long_text - 1] = '\0';
  zps_log_write_limited(&limit, ZPS_LOG_WARN, "rpc", "%s", long_text);
  assert_non_null(strstr(line, "x (4294967295 similar lines left out before this one)"));
  zps_log_set_sink(NULL, NULL);
}

static void count_line(void *ctx, const struct zps_log_line *line) {
  (void)line;
  ++*(unsigned *)ctx;
}

static void all_that_strangers_cause_is_one_line_a_second(void **state) {
  (void)state;
  unsigned n = 0;
  zps_log_set_sink(count_line, &n);
  zps_log_warn_of_strangers("first");
  assert_int_equal(n, 1);
  zps_log_strangers.last_ms += 100000;
  zps_log_warn_of_strangers("second");
  zps_log_warn_of_strangers("third");
  assert_int_equal(n, 1);
  zps_log_strangers.last_ms = 0;
  zps_log_warn_of_strangers("fourth");
  assert_int_equal(n, 2);
  zps_log_set_sink(NULL, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(levels_are_checked_before_arguments_are_evaluated),
      cmocka_unit_test(text_has_time_level_component),
      cmocka_unit_test(the_journal_gets_priorities),
      cmocka_unit_test(a_log_that_was_redirected_is_not_the_journal),
      cmocka_unit_test(json_escapes_what_json_must),
      cmocka_unit_test(json_is_what_others_read),
      cmocka_unit_test(a_line_has_the_fields_of_its_scopes),
      cmocka_unit_test(a_failure_has_its_code),
      cmocka_unit_test(long_fields_are_cut),
      cmocka_unit_test(long_texts_are_cut),
      cmocka_unit_test(a_call_site_is_limited_to_one_line_a_second),
      cmocka_unit_test(what_was_left_out_is_told_in_the_next_line),
      cmocka_unit_test(all_that_strangers_cause_is_one_line_a_second),
  };
  unsetenv("JOURNAL_STREAM");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
