/* The control plane's pure parts: JSON values, lines, messages, addresses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/control/address.h"
#include "common/control/lines.h"
#include "common/control/message.h"

static zps_json *parse(const char *text) {
  zps_json *value = NULL;
  assert_int_equal(zps_json_parse(text, strlen(text), &value, NULL), ZPS_OK);
  return value;
}

static void expect_dump(zps_json *value, const char *want) {
  assert_non_null(value);
  char *text = zps_json_dump(value);
  assert_string_equal(text, want);
  free(text);
  zps_json_unref(value);
}

/* ---- Values ---- */

/* Never less than the text has, and not much more. */
static void test_most_bytes(void **state) {
  (void)state;
  static const char *const texts[] = {
      "{\"name\":\"a\\\"b\\\\c\\n\\u0001\",\"list\":[1,-20000000000,0,1.2345678901234567,true,null]}",
      "[[],{},\"\",9223372036854775807,-9223372036854775807,-1.2345678901234567e-300]"};
  for (unsigned i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    zps_json *const value = parse(texts[i]);
    char *const text = zps_json_dump(value);
    assert_in_range(zps_json_most_bytes(value), strlen(text), strlen(text) + 200);
    free(text);
    zps_json_unref(value);
  }
  assert_int_equal(zps_json_most_bytes(NULL), 0);
}

static void test_builders(void **state) {
  (void)state;
  zps_json *o = zps_json_object();
  o = zps_json_set_str(o, "s", "a\nb");
  o = zps_json_set_str(o, "none", NULL);
  o = zps_json_set_u64(o, "u", 1ull << 53);
  o = zps_json_set_u64(o, "max", UINT64_MAX);
  o = zps_json_set_int(o, "i", -9);
  o = zps_json_set_hex(o, "h", 0xfedcba9876543210ull);
  o = zps_json_set(o, "b", zps_json_bytes("\x00\xff\x1a", 3));
  o = zps_json_set(o, "e", zps_json_bytes(NULL, 0));
  o = zps_json_set_real(o, "r", 0.5);
  o = zps_json_set_real(o, "nan", NAN);
  o = zps_json_set_bool(o, "t", true);
  o = zps_json_set(o, "a", zps_json_append(zps_json_append_u64(zps_json_array(), 7), zps_json_object()));
  o = zps_json_set_str(o, "bad", "caf\xc3\xa9 \xff");
  expect_dump(o,
              "{\"s\":\"a\\nb\",\"none\":null,\"u\":9007199254740992,\"max\":9223372036854775807,\"i\":-9,"
              "\"h\":\"0xfedcba9876543210\",\"b\":\"00ff1a\",\"e\":\"\",\"r\":0.5,\"nan\":null,\"t\":true,"
              "\"a\":[7,{}],\"bad\":\"caf\xc3\xa9 ?\"}");
}

static void test_null_children_spoil_the_chain(void **state) {
  (void)state;
  assert_null(zps_json_set(zps_json_object(), "x", NULL));
  assert_null(zps_json_set(NULL, "x", zps_json_object()));
  assert_null(zps_json_set_u64(NULL, "x", 1));
  assert_null(zps_json_append(zps_json_array(), NULL));
  assert_null(zps_json_append(NULL, zps_json_array()));
  assert_null(zps_json_append_u64(NULL, 1));
  zps_json_unref(NULL);
}

#define EXPECT(call, code_, text_)                                                 \
  do {                                                                             \
    struct zps_error error = {.text = ""};                                         \
    assert_int_equal((call), (code_));                                             \
    if (!strstr(error.text, (text_))) fail_msg("unexpected text: %s", error.text); \
  } while (0)

static void test_getters(void **state) {
  (void)state;
  zps_json *o = parse(
      "{\"u\":5,\"neg\":-1,\"r\":2.5,\"s\":\"x\",\"h\":\"0x00000000000000ff\",\"b\":\"00fF\",\"c\":\"00ff\","
      "\"odd\":\"abc\",\"a\":[1,\"2\"],\"o\":{},\"n\":null}");
  const char *s = NULL;
  uint64_t u = 0;
  const zps_json *child = NULL;
  uint8_t bytes[2];
  size_t len = 0;
  EXPECT(zps_json_get_u64(o, "u", 1, 5, &u, &error), ZPS_OK, "");
  assert_int_equal(u, 5);
  EXPECT(zps_json_get_u64(o, "u", 6, 9, &u, &error), ZPS_ERR_PROTOCOL, "member 'u' is 5, want 6 to 9");
  EXPECT(zps_json_get_u64(o, "neg", 0, 9, &u, &error), ZPS_ERR_PROTOCOL, "member 'neg' is -1, want 0 to 9");
  EXPECT(zps_json_get_u64(o, "r", 0, 9, &u, &error), ZPS_ERR_PROTOCOL, "'r' is a real number, want an integer");
  EXPECT(zps_json_get_u64(o, "z", 0, 9, &u, &error), ZPS_ERR_PROTOCOL, "'z' is missing, want an integer");
  EXPECT(zps_json_get_u64(NULL, "z", 0, 9, &u, &error), ZPS_ERR_PROTOCOL, "'z' is missing");
  EXPECT(zps_json_get_str(o, "s", &s, &error), ZPS_OK, "");
  assert_string_equal(s, "x");
  EXPECT(zps_json_get_str(o, "n", &s, &error), ZPS_ERR_PROTOCOL, "'n' is null, want a string");
  EXPECT(zps_json_get_hex(o, "h", &u, &error), ZPS_OK, "");
  assert_int_equal(u, 255);
  EXPECT(zps_json_get_hex(o, "s", &u, &error), ZPS_ERR_PROTOCOL, "'s' is \"x\", want \"0x\"");
  EXPECT(zps_json_read_bytes(zps_json_get(o, "c"), "c", bytes, sizeof bytes, &len, &error), ZPS_OK, "");
  assert_int_equal(len, 2);
  assert_int_equal(bytes[1], 0xff);
  EXPECT(zps_json_read_bytes(zps_json_get(o, "b"), "b", bytes, sizeof bytes, &len, &error), ZPS_ERR_PROTOCOL,
         "at position 3");
  EXPECT(zps_json_read_bytes(zps_json_get(o, "c"), "c", bytes, 1, &len, &error), ZPS_ERR_PROTOCOL,
         "4 hex digits, want an even number up to 2");
  EXPECT(zps_json_read_bytes(zps_json_get(o, "odd"), "odd", bytes, 2, &len, &error), ZPS_ERR_PROTOCOL, "3 hex digits");
  EXPECT(zps_json_get_array(o, "a", &child, &error), ZPS_OK, "");
  assert_int_equal(zps_json_array_len(child), 2);
  EXPECT(zps_json_at_u64(child, 0, 9, &u, &error), ZPS_OK, "");
  EXPECT(zps_json_at_u64(child, 1, 9, &u, &error), ZPS_ERR_PROTOCOL, "'[1]' is a string");
  EXPECT(zps_json_at_u64(child, 2, 9, &u, &error), ZPS_ERR_PROTOCOL, "'[2]' is missing");
  child = zps_json_get(o, "o");
  EXPECT(zps_json_check_object(child, "o", &error), ZPS_OK, "");
  assert_true(zps_json_is_object(child) && !zps_json_is_array(child));
  EXPECT(zps_json_check_object(zps_json_get(o, "a"), "a", &error), ZPS_ERR_PROTOCOL, "'a' is an array, want an object");
  EXPECT(zps_json_get_array(o, "o", &child, &error), ZPS_ERR_PROTOCOL, "'o' is an object, want an array");
  assert_int_equal(zps_json_opt_u64(o, "z", 8), 8);
  assert_int_equal(zps_json_opt_u64(o, "u", 8), 5);
  assert_true(zps_json_opt_real(o, "u", 0) == 5.0 && zps_json_opt_real(o, "r", 0) == 2.5);
  assert_true(zps_json_opt_real(NULL, "u", 7) == 7.0);
  assert_true(zps_json_opt_bool(o, "u", true) && !zps_json_opt_bool(NULL, "u", false));
  assert_string_equal(zps_json_opt_str(o, "u", "def"), "def");
  assert_int_equal(zps_json_array_len(NULL), 0);
  zps_json_unref(o);
}

static void collect(void *ctx, const char *key, const zps_json *value) {
  char buf[16];
  strcat(ctx, key);
  strcat(ctx, "=");
  strcat(ctx, zps_json_text(value, buf, sizeof buf));
  strcat(ctx, ";");
}

static void test_each_and_text(void **state) {
  (void)state;
  char all[200] = "";
  zps_json *o =
      parse("{\"z\":\"text\",\"a\":1,\"m\":0.25,\"t\":true,\"n\":null,\"l\":[1,2],\"long\":\"0123456789abcdef\"}");
  zps_json_each(o, collect, all);
  assert_string_equal(all, "z=text;a=1;m=0.25;t=true;n=null;l=[1,2];long=0123456789abcde;");
  zps_json *copy = zps_json_copy(o);
  zps_json_unref(o);
  assert_int_equal(zps_json_opt_u64(copy, "a", 0), 1);
  char *pretty = zps_json_dump_pretty(copy);
  assert_non_null(strstr(pretty, "\n  \"a\": 1,\n"));
  free(pretty);
  zps_json_unref(copy);
}

/* Of a member that both have, the value of `from` counts, in the object's order. What is no object has no members. */
static void test_set_all(void **state) {
  (void)state;
  zps_json *from = parse("{\"b\":2,\"c\":[3]}"), *array = parse("[1]"), *to = parse("{\"a\":1,\"b\":1,\"z\":0}");
  to = zps_json_set_all(zps_json_set_all(zps_json_set_all(to, from), array), NULL);
  zps_json_unref(from);
  zps_json_unref(array);
  char *text = zps_json_dump(to);
  assert_string_equal(text, "{\"a\":1,\"b\":2,\"z\":0,\"c\":[3]}");
  free(text);
  zps_json_unref(to);
  assert_null(zps_json_set_all(NULL, NULL));
}

/* Depth and number of values are looked at before memory is taken for them. */
static void expect_bounds(void) {
  zps_json *value = NULL;
  enum { N = ZPS_JSON_VALUES_MAX };
  char *wide = malloc(2 * N + 3);
  wide[0] = '[';
  for (size_t i = 0; i < N; i++) memcpy(wide + 1 + 2 * i, "1,", 2);
  wide[2 * (N - 1)] = ']'; /* N - 1 values in an array */
  EXPECT(zps_json_check_bounds(wide, 2 * (N - 1) + 1, &error), ZPS_OK, "");
  wide[2 * (N - 1)] = ',';
  memcpy(wide + 2 * N, "1]", 2);
  EXPECT(zps_json_parse(wide, 2 * N + 2, &value, &error), ZPS_ERR_PROTOCOL, "more than 262144 values");
  free(wide);
  zps_json_unref(parse("[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]"));
  zps_json_unref(parse("{\"[[[[[[[[[[[[[[[[[\":\"\\\"[[[[[[[[[[[[[[[[[[,,,\"}"));
}

static void test_parse_errors_say_where(void **state) {
  (void)state;
  zps_json *value = NULL;
  EXPECT(zps_json_parse("{\"a\":}", 6, &value, &error), ZPS_ERR_PROTOCOL, "not JSON at byte 6 of 6");
  EXPECT(zps_json_parse("", 0, &value, &error), ZPS_ERR_PROTOCOL, "not JSON");
  EXPECT(zps_json_parse("{} x", 4, &value, &error), ZPS_ERR_PROTOCOL, "not JSON");
  EXPECT(zps_json_parse("{\"a\":1,\"a\":2}", 13, &value, &error), ZPS_ERR_PROTOCOL, "duplicate");
  EXPECT(zps_json_parse("{\"a\":\"\\u0000\"}", 14, &value, &error), ZPS_ERR_PROTOCOL, "\\u0000");
  EXPECT(zps_json_parse("{\"a\":\"\xff\"}", 9, &value, &error), ZPS_ERR_PROTOCOL, "not JSON");
  char deep[5000];
  memset(deep, '[', sizeof deep);
  EXPECT(zps_json_parse(deep, sizeof deep, &value, &error), ZPS_ERR_PROTOCOL, "at byte 16 of ");
  expect_bounds();
  assert_null(value);
}

/* ---- Lines ---- */

static void feed(struct zps_lines *lines, const char *data, size_t len) {
  while (len) {
    size_t room = 0;
    char *at = zps_lines_room(lines, &room);
    assert_non_null(at);
    const size_t n = len < room ? len : room;
    memcpy(at, data, n);
    zps_lines_added(lines, n);
    data += n;
    len -= n;
  }
}

static void expect_line(struct zps_lines *lines, const char *want) {
  const char *line = NULL;
  size_t len = 0;
  assert_int_equal(zps_lines_next(lines, &line, &len), ZPS_OK);
  assert_int_equal(len, strlen(want));
  assert_memory_equal(line, want, len);
}

static void expect_none(struct zps_lines *lines, zps_err_t code) {
  const char *line;
  size_t len;
  assert_int_equal(zps_lines_next(lines, &line, &len), code);
}

static void test_lines(void **state) {
  (void)state;
  struct zps_lines lines;
  zps_lines_init(&lines, 10);
  expect_none(&lines, ZPS_ERR_AGAIN);
  feed(&lines, "one\ntwo\r\n\nthr", 13);
  expect_line(&lines, "one");
  expect_line(&lines, "two");
  expect_line(&lines, "");
  expect_none(&lines, ZPS_ERR_AGAIN);
  feed(&lines, "ee\n", 3);
  expect_line(&lines, "three");
  feed(&lines, "0123456789\n", 11); /* exactly the limit */
  expect_line(&lines, "0123456789");
  feed(&lines, "0123456789a", 11); /* too long already without its end */
  expect_none(&lines, ZPS_ERR_PROTOCOL);
  expect_none(&lines, ZPS_ERR_PROTOCOL);
  zps_lines_fini(&lines);
  zps_lines_init(&lines, 10);
  feed(&lines, "0123456789a\n", 12);
  expect_none(&lines, ZPS_ERR_PROTOCOL);
  zps_lines_fini(&lines);
}

static void test_lines_however_they_are_cut(void **state) {
  (void)state;
  struct zps_rng rng = {1};
  enum { TOTAL = 300000 };
  char *text = malloc(TOTAL + 1), *back = malloc(TOTAL + 1);
  for (size_t i = 0; i < TOTAL; i++) text[i] = zps_rng_below(&rng, 3000) == 0 ? '\n' : 'a' + (char)(i % 26);
  struct zps_lines lines;
  zps_lines_init(&lines, TOTAL);
  size_t fed = 0, got = 0;
  while (fed < TOTAL) {
    size_t n = 1 + zps_rng_below(&rng, 20000);
    if (n > TOTAL - fed) n = TOTAL - fed;
    feed(&lines, text + fed, n);
    fed += n;
    const char *line;
    size_t len;
    while (zps_lines_next(&lines, &line, &len) == ZPS_OK) {
      memcpy(back + got, line, len);
      back[got + len] = '\n';
      got += len + 1;
    }
  }
  assert_memory_equal(back, text, got);
  assert_null(memchr(text + got, '\n', TOTAL - got)); /* only an unfinished line is left */
  zps_lines_fini(&lines);
  free(text);
  free(back);
}

/* ---- Messages ---- */

static void test_messages(void **state) {
  (void)state;
  zps_json *id = parse("{\"id\":\"q\"}");
  struct zps_message m;
  expect_dump(zps_message_call(3, "m", zps_json_object()),
              "{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":{},\"id\":3}");
  expect_dump(zps_message_result(zps_json_get(id, "id"), zps_json_object()),
              "{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"result\":{}}");
  expect_dump(zps_message_error(NULL, -32700, ZPS_ERR_PROTOCOL, "why"),
              "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"why\","
              "\"data\":{\"name\":\"ERR_PROTOCOL\"}}}");
  assert_null(zps_message_notification("m", NULL));
  zps_json_unref(id);

  zps_json *root = zps_message_error(NULL, -11, ZPS_ERR_SHAPE, "a\x1b[1mb");
  EXPECT(zps_message_read(root, &m, &error), ZPS_OK, "");
  assert_int_equal(m.kind, ZPS_MESSAGE_ERROR);
  assert_int_equal(m.error.code, ZPS_ERR_SHAPE);
  assert_string_equal(m.error.text, "a?[1mb"); /* no escape sequences in our logs */
  assert_false(m.has_number);
  zps_json_unref(root);

  root = parse("{\"jsonrpc\":\"2.0\",\"id\":4,\"error\":{\"code\":-32601,\"message\":\"none\"}}");
  EXPECT(zps_message_read(root, &m, &error), ZPS_OK, "");
  assert_int_equal(m.error.code, ZPS_ERR_PROTOCOL);
  assert_int_equal(m.number, 4);
  zps_json_unref(root);

  root = parse("{\"jsonrpc\":\"2.0\",\"id\":4,\"error\":{\"message\":\"x\",\"data\":{\"name\":\"OK\"}}}");
  EXPECT(zps_message_read(root, &m, &error), ZPS_OK, "");
  assert_int_equal(m.error.code, ZPS_ERR_INTERNAL); /* an error counts as one under any name */
  zps_json_unref(root);
}

static void test_malformed_messages(void **state) {
  (void)state;
  static const struct {
    const char *text, *want;
  } cases[] = {
      {"[]", "no JSON object"},
      {"{}", "2.0"},
      {"{\"jsonrpc\":2.0,\"method\":\"a\"}", "2.0"},
      {"{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"id\":[]}", "member 'id'"},
      {"{\"jsonrpc\":\"2.0\",\"method\":\"a\",\"params\":[1]}", "member 'params'"},
      {"{\"jsonrpc\":\"2.0\",\"method\":null}", "member 'method'"},
      {"{\"jsonrpc\":\"2.0\",\"method\":\"a\\n\"}", "not printable"},
      {"{\"jsonrpc\":\"2.0\",\"id\":1}", "neither"},
      {"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":1,\"error\":{}}", "neither"},
      {"{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":\"x\"}", "neither"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_message m;
    zps_json *root = parse(cases[i].text);
    EXPECT(zps_message_read(root, &m, &error), ZPS_ERR_PROTOCOL, cases[i].want);
    zps_json_unref(root);
  }
}

/* ---- Addresses ---- */

static void test_addresses(void **state) {
  (void)state;
  struct zps_address a;
  EXPECT(zps_address_parse("10.0.0.7:7000", &a, &error), ZPS_OK, "");
  assert_string_equal(a.host, "10.0.0.7");
  assert_string_equal(a.port, "7000");
  EXPECT(zps_address_parse("[::1]:0", &a, &error), ZPS_OK, "");
  assert_string_equal(a.host, "::1");
  EXPECT(zps_address_parse(":65535", &a, &error), ZPS_OK, "");
  assert_string_equal(a.host, "");
  EXPECT(zps_address_parse("unix:/run/zenps/ctl", &a, &error), ZPS_OK, "");
  assert_true(a.is_unix);
  assert_string_equal(a.path, "/run/zenps/ctl");

  static const char *const here[] = {"127.0.0.1:1",          "127.9.9.9:1", "[::1]:1",
                                     "[::ffff:127.0.0.1]:1", "localhost:1", "unix:/s"};
  static const char *const reached[] = {":1",          "0.0.0.0:1",           "[::]:1", "10.0.0.7:1",
                                        "[fe80::1]:1", "[::ffff:10.0.0.1]:1", "node7:1"};
  for (size_t i = 0; i < sizeof here / sizeof here[0]; i++) {
    EXPECT(zps_address_parse(here[i], &a, &error), ZPS_OK, "");
    if (!zps_address_is_loopback(&a)) fail_msg("%s is of this host alone", here[i]);
  }
  for (size_t i = 0; i < sizeof reached / sizeof reached[0]; i++) {
    EXPECT(zps_address_parse(reached[i], &a, &error), ZPS_OK, "");
    if (zps_address_is_loopback(&a)) fail_msg("%s is reached by others", reached[i]);
  }

  EXPECT(zps_address_parse("host", &a, &error), ZPS_ERR_INVALID, "no port, want HOST:PORT");
  EXPECT(zps_address_parse("host:", &a, &error), ZPS_ERR_INVALID, "port is no number");
  EXPECT(zps_address_parse("host:65536", &a, &error), ZPS_ERR_INVALID, "port is no number");
  EXPECT(zps_address_parse("host:7x", &a, &error), ZPS_ERR_INVALID, "port is no number");
  EXPECT(zps_address_parse("host:000000000007", &a, &error), ZPS_ERR_INVALID, "port is no number");
  EXPECT(zps_address_parse("::1:7000", &a, &error), ZPS_ERR_INVALID, "brackets");
  EXPECT(zps_address_parse("[::1:7000", &a, &error), ZPS_ERR_INVALID, "no ']'");
  EXPECT(zps_address_parse("[:7000", &a, &error), ZPS_ERR_INVALID, "no ']'");
  EXPECT(zps_address_parse("unix:", &a, &error), ZPS_ERR_INVALID, "no path");
  char text[400];
  memset(text, 'a', sizeof text);
  memcpy(text, "unix:/", 6);
  text[200] = '\0';
  EXPECT(zps_address_parse(text, &a, &error), ZPS_ERR_INVALID, "the path of the Unix socket has ");
  memset(text, 'a', sizeof text);
  memcpy(text + 300, ":1", 3);
  EXPECT(zps_address_parse(text, &a, &error), ZPS_ERR_INVALID, "the host name has ");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_most_bytes),
      cmocka_unit_test(test_builders),
      cmocka_unit_test(test_null_children_spoil_the_chain),
      cmocka_unit_test(test_getters),
      cmocka_unit_test(test_each_and_text),
      cmocka_unit_test(test_set_all),
      cmocka_unit_test(test_parse_errors_say_where),
      cmocka_unit_test(test_lines),
      cmocka_unit_test(test_lines_however_they_are_cut),
      cmocka_unit_test(test_messages),
      cmocka_unit_test(test_malformed_messages),
      cmocka_unit_test(test_addresses),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
