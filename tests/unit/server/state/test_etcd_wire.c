/* What is said to etcd, byte by byte, and answers that are none; answers as etcd 3.4 gives them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/state/etcd.h"

static void says(zps_json *value, const char *wanted) {
  char *const text = zps_json_dump(value);
  assert_string_equal(text, wanted);
  free(text);
  zps_json_unref(value);
}

static zps_json *array_of(zps_json *value) {
  return zps_json_append(zps_json_array(), value);
}

static void test_base64(void **state) {
  (void)state;
  static const char *const pairs[][2] = {{"", ""},
                                         {"f", "Zg=="},
                                         {"fo", "Zm8="},
                                         {"foo", "Zm9v"},
                                         {"foob", "Zm9vYg=="},
                                         {"fooba", "Zm9vYmE="},
                                         {"foobar", "Zm9vYmFy"},
                                         {"\xff\xfe\xfb", "//77"}};
  static const char *const bad[] = {"Z",         "Zg",        "Zg=",  "Zg===",    "====",    " Zg=", "    ",
                                    "Zg==\n   ", "\tZm9vZg=", "Z===", "Zh==",     "Zm9=",    "Zm 9", "Z-8=",
                                    "Zm9v\n",    "Zm=v",      "=Zg=", "Zg==Zg==", "Zm9v    "};
  size_t len;
  for (unsigned i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    char *const text = zps_etcd_base64(pairs[i][0], strlen(pairs[i][0]));
    char *const data = zps_etcd_unbase64(pairs[i][1], &len);
    assert_string_equal(text, pairs[i][1]);
    assert_true(data && len == strlen(pairs[i][0]));
    assert_string_equal(data, pairs[i][0]);
    free(text);
    free(data);
  }
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    len = 5;
    if (zps_etcd_unbase64(bad[i], &len)) fail_msg("%s", bad[i]);
    assert_true(len == SIZE_MAX);
  }
  char all[256], *text, *data;
  for (unsigned n = 0; n < 256; n++) all[n] = (char)n;
  for (unsigned n = 0; n < 256; n++) {
    text = zps_etcd_base64(all, n);
    data = zps_etcd_unbase64(text, &len);
    assert_int_equal(len, n);
    assert_memory_equal(data, all, n);
    free(text);
    free(data);
  }
}

static void test_requests(void **state) {
  (void)state;
  says(zps_etcd_range_write("/z/a", "/z/b", 7, true),
       "{\"key\":\"L3ovYQ==\",\"range_end\":\"L3ovYg==\",\"limit\":\"7\",\"keys_only\":true}");
  says(zps_etcd_range_write("k", NULL, 1, false), "{\"key\":\"aw==\",\"limit\":\"1\"}");
  says(zps_etcd_grant_write(5), "{\"TTL\":\"5\"}");
  says(zps_etcd_lease_write(UINT64_C(7587870224999999999)), "{\"ID\":\"7587870224999999999\"}");
  says(zps_etcd_txn_write(array_of(zps_etcd_created_is("k", 12)), array_of(zps_etcd_put("k", "v\0w", 3, 9)),
                          zps_json_append(array_of(zps_etcd_get("k")), zps_etcd_delete("k", "l"))),
       "{\"compare\":[{\"key\":\"aw==\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"12\"}],"
       "\"success\":[{\"request_put\":{\"key\":\"aw==\",\"value\":\"dgB3\",\"lease\":\"9\"}}],"
       "\"failure\":[{\"request_range\":{\"key\":\"aw==\"}},{\"request_delete_range\":{\"key\":\"aw==\",\"range_end\":"
       "\"bA==\"}}]}");
}

static zps_json *parse(const char *text) {
  zps_json *value;
  struct zps_error error;
  if (zps_json_parse(text, strlen(text), &value, &error)) fail_msg("%s: %s", text, error.text);
  return value;
}

#define HEADER "\"header\":{\"cluster_id\":\"3249\",\"member_id\":\"33\",\"revision\":\"2\",\"raft_term\":\"2\"}"

static void test_answers(void **state) {
  (void)state;
  struct zps_etcd_range range, found[2];
  struct zps_etcd_outcome outcome;
  struct zps_error error;
  uint64_t number;
  zps_json *answer = parse("{" HEADER
                           ",\"kvs\":[{\"key\":\"L3ovbGVhZGVy\",\"create_revision\":\"2\",\"mod_revision\":\"2\","
                           "\"version\":\"1\",\"value\":\"eA==\",\"lease\":\"2324035619676510983\"}],\"more\":true,"
                           "\"count\":\"9\"}");
  assert_int_equal(zps_etcd_range_read(answer, &range, &error), ZPS_OK);
  zps_json_unref(answer);
  assert_true(range.n == 1 && range.more && range.kvs[0].len == 1 && range.kvs[0].created == 2);
  assert_true(range.kvs[0].lease == UINT64_C(2324035619676510983));
  assert_string_equal(range.kvs[0].key, "/z/leader");
  assert_string_equal(range.kvs[0].value, "x");
  zps_etcd_range_fini(&range);

  answer = parse("{" HEADER "}"); /* nothing found */
  assert_int_equal(zps_etcd_range_read(answer, &range, &error), ZPS_OK);
  assert_true(range.n == 0 && !range.more);
  zps_etcd_range_fini(&range);
  zps_json_unref(answer);

  answer =
      parse("{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{\"header\":{\"revision\":\"2\"}}}]}");
  assert_int_equal(zps_etcd_txn_read(answer, &outcome, found, 2, &error), ZPS_OK);
  assert_true(outcome.succeeded && outcome.revision == 2 && found[0].n == 0 && found[1].n == 0);
  zps_json_unref(answer);

  answer = parse("{" HEADER
                 ",\"responses\":[{\"response_range\":{\"header\":{\"revision\":\"2\"}}},"
                 "{\"response_range\":{\"header\":{},\"kvs\":[{\"key\":\"aw==\",\"value\":\"eHk=\"}]}}]}");
  assert_int_equal(zps_etcd_txn_read(answer, &outcome, found, 2, &error), ZPS_OK);
  assert_true(!outcome.succeeded && found[0].n == 0 && found[1].n == 1 && found[1].kvs[0].len == 2);
  for (unsigned i = 0; i < 2; i++) zps_etcd_range_fini(&found[i]);
  zps_json_unref(answer);

  answer = parse("{" HEADER ",\"ID\":\"2324035619676510981\",\"TTL\":\"2\"}");
  assert_int_equal(zps_etcd_grant_read(answer, &number, &error), ZPS_OK);
  assert_true(number == UINT64_C(2324035619676510981));
  zps_json_unref(answer);
  answer = parse("{\"result\":{" HEADER ",\"ID\":\"77\",\"TTL\":\"5\"}}");
  assert_int_equal(zps_etcd_keepalive_read(answer, &number, &error), ZPS_OK);
  assert_int_equal(number, 5);
  zps_json_unref(answer);
  answer = parse("{\"result\":{" HEADER ",\"ID\":\"77\"}}"); /* the lease is over */
  assert_int_equal(zps_etcd_keepalive_read(answer, &number, &error), ZPS_OK);
  assert_int_equal(number, 0);
  zps_json_unref(answer);
}

static void no_range(const char *text, const char *why) {
  struct zps_etcd_range range = {.n = 99};
  struct zps_error error;
  zps_json *const answer = parse(text);
  assert_int_equal(zps_etcd_range_read(answer, &range, &error), ZPS_ERR_PROTOCOL);
  assert_int_equal(range.n, 99);
  if (!strstr(error.text, why)) fail_msg("%s: %s", text, error.text);
  zps_json_unref(answer);
}

static void test_no_answers(void **state) {
  (void)state;
  struct zps_etcd_outcome outcome;
  struct zps_etcd_range found;
  struct zps_error error;
  uint64_t number;
  no_range("{}", "without a header");
  no_range("[]", "without a header");
  no_range("{" HEADER ",\"kvs\":{}}", "kvs");
  no_range("{" HEADER ",\"kvs\":[{\"key\":\"aw==\"},{\"key\":\"a\"}]}", "member 'key' is no base64");
  no_range("{" HEADER ",\"kvs\":[{\"key\":5}]}", "key");
  no_range("{" HEADER ",\"kvs\":[{\"create_revision\":\"1e3\"}]}", "'create_revision' is '1e3', want a number");
  no_range("{" HEADER ",\"kvs\":[{\"lease\":\"99999999999999999999999\"}]}", "lease");
  static const char *const none[] = {"{}", "{\"header\":{}}", "{\"header\":{\"revision\":\"\"}}",
                                     "{\"header\":{\"revision\":7}}",
                                     "{" HEADER ",\"responses\":[{\"response_range\":{}}]}"};
  for (unsigned i = 0; i < sizeof none / sizeof none[0]; i++) {
    zps_json *const answer = parse(none[i]);
    assert_int_equal(zps_etcd_txn_read(answer, &outcome, &found, 1, &error), ZPS_ERR_PROTOCOL);
    assert_int_equal(zps_etcd_grant_read(answer, &number, &error), ZPS_ERR_PROTOCOL);
    assert_int_equal(zps_etcd_keepalive_read(answer, &number, &error), ZPS_ERR_PROTOCOL);
    zps_json_unref(answer);
  }
}

static zps_err_t refusal(unsigned status, const char *body, struct zps_error *error) {
  return zps_etcd_refusal_read(status, body, strlen(body), error);
}

static void test_refusals(void **state) {
  (void)state;
  struct zps_error error;
  assert_int_equal(refusal(503, "{\"error\":\"x\",\"message\":\"etcdserver: no leader\",\"code\":14}", &error),
                   ZPS_ERR_CONNECT);
  assert_string_equal(error.text, "HTTP status 503: etcdserver: no leader");
  assert_int_equal(refusal(408, "{\"error\":\"context deadline exceeded\",\"code\":4}", &error), ZPS_ERR_CONNECT);
  assert_string_equal(error.text, "HTTP status 408: context deadline exceeded");
  assert_int_equal(refusal(404, "{\"message\":\"etcdserver: requested lease not found\",\"code\":5}", &error),
                   ZPS_ERR_IO);
  assert_int_equal(refusal(404, "404 page not found\n", &error), ZPS_ERR_IO);
  assert_string_equal(error.text, "HTTP status 404: no reason given");
  assert_int_equal(refusal(502, "<html>\x1b[31m", &error), ZPS_ERR_CONNECT);
  assert_int_equal(refusal(400, "{\"message\":\"a\\u001b[2Jb\",\"code\":3}", &error), ZPS_ERR_IO);
  assert_null(strchr(error.text, '\x1b'));
}

static void refused(const char *members, const char *why) {
  struct zps_error error;
  assert_int_equal(zps_etcd_http_check(members, &error), ZPS_ERR_INVALID);
  if (!strstr(error.text, why)) fail_msg("%s: %s", members, error.text);
}

static void test_members(void **state) {
  (void)state;
  refused("", "URL 1 of etcd is '': must be http://HOST:PORT or https://HOST:PORT");
  refused("http://a:1,b:2", "URL 2 of etcd is 'b:2'");
  refused("http://a:1,", "URL 2 of etcd is ''");
  refused("http://", "URL 1 of etcd is 'http:'");
  refused("file:///etc/passwd", "URL 1 of etcd is 'file:///etc/passwd'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_base64),     cmocka_unit_test(test_requests), cmocka_unit_test(test_answers),
      cmocka_unit_test(test_no_answers), cmocka_unit_test(test_refusals), cmocka_unit_test(test_members),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
