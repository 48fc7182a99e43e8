/* Lists of coordinators: what is one, and which of them is tried next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/control/addresses.h"

static struct zps_addresses list;

static void parse(const char *text) {
  struct zps_error error;
  if (zps_addresses_parse(text, &list, &error)) fail_msg("%s: %s", text, error.text);
}

static void refused(const char *text, const char *why) {
  struct zps_error error;
  list.n = 77;
  assert_int_equal(zps_addresses_parse(text, &list, &error), ZPS_ERR_INVALID);
  if (!strstr(error.text, why)) fail_msg("%s: %s, want %s", text, error.text, why);
  assert_int_equal(list.n, 77); /* untouched */
}

static void test_parse(void **state) {
  (void)state;
  parse("a:1");
  assert_int_equal(list.n, 1);
  assert_string_equal(zps_addresses_now(&list), "a:1");
  parse(" a:1 ,[::1]:2,\tunix:/run/z , :3");
  assert_int_equal(list.n, 4);
  assert_string_equal(list.text[0], "a:1");
  assert_string_equal(list.text[1], "[::1]:2");
  assert_string_equal(list.text[2], "unix:/run/z");
  assert_string_equal(list.text[3], ":3");
  assert_int_equal(zps_addresses_left(&list), 4);
}

static void test_refused(void **state) {
  (void)state;
  char long_one[400];
  refused("", "address ''");
  refused("nowhere", "address 'nowhere': no port");
  refused("a:1,", "address 2 of the list is empty, want HOST:PORT");
  refused(",a:1", "address 1 of the list is empty");
  refused("a:1, \t,b:2", "address 2 of the list is empty");
  refused("a:1,b", "address 2 of the list: address 'b': no port");
  refused("a:1,b:2,b:99999", "address 3 of the list: address 'b:99999': port is no number up to 65535");
  refused("a:1,b:2, a:1", "address 3 of the list is 'a:1', as is address 1: must be another one");
  refused("a:1,b:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9,a:10,a:11,a:12,a:13,a:14,a:15,a:16,a:17", "more than 16 addresses");
  memset(long_one, 'x', sizeof long_one);
  memcpy(long_one, "a:1,", 4);
  memcpy(long_one + sizeof long_one - 4, ":12", 4);
  refused(long_one, "address 2 of the list has 395 bytes: must have at most 271");
}

static void next(bool more, const char *leader, const char *now) {
  assert_int_equal(zps_addresses_next(&list, leader), more);
  assert_string_equal(zps_addresses_now(&list), now);
}

/* Each once a turn; the next turn begins with the one that answered last. */
static void test_turns(void **state) {
  (void)state;
  parse("a:1,b:2,c:3");
  next(true, NULL, "b:2");
  assert_int_equal(zps_addresses_left(&list), 2);
  next(true, "", "c:3");
  next(false, NULL, "a:1");
  assert_int_equal(zps_addresses_left(&list), 3);
  next(true, NULL, "b:2");
  zps_addresses_answered(&list);
  assert_string_equal(zps_addresses_now(&list), "b:2");
  assert_int_equal(zps_addresses_left(&list), 3);
  next(true, NULL, "c:3");
  next(true, NULL, "a:1");
  next(false, NULL, "b:2");
  parse("a:1");
  next(false, NULL, "a:1");
  next(false, "a:1", "a:1");
}

/* The leader comes next, unless it was tried already, or is none of ours. */
static void test_leader(void **state) {
  (void)state;
  parse("a:1,b:2,c:3,d:4");
  next(true, "c:3", "c:3");
  next(true, "a:1", "d:4");
  next(true, "elsewhere:9", "b:2");
  next(false, "c:3", "a:1");
  next(true, "a:1", "b:2"); /* it names itself */
}

/* Any order of answers and hints: each of a full list once a turn. */
static void test_any_order(void **state) {
  (void)state;
  char text[400] = "";
  unsigned seed = 1;
  for (unsigned i = 0; i < ZPS_ADDRESSES_MAX; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%sh%u:1", i ? "," : "", i);
  parse(text);
  for (unsigned turn = 0; turn < 500; turn++) {
    unsigned seen = 0, n = 0;
    do {
      assert_false(seen >> list.now & 1);
      seen |= 1u << list.now;
      seed = seed * 1664525u + 1013904223u;
      n++;
    } while (zps_addresses_next(&list, seed >> 30 ? list.text[seed >> 8 & 15] : NULL));
    assert_true(n == ZPS_ADDRESSES_MAX && seen == 0xffff);
    list.now = seed >> 4 & 15;
    zps_addresses_answered(&list);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parse),  cmocka_unit_test(test_refused),   cmocka_unit_test(test_turns),
      cmocka_unit_test(test_leader), cmocka_unit_test(test_any_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
