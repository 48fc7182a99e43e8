/* How many peers may be connected without a hello, and who goes when they are too many: with a clock of the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>

#include "common/base/clock.h"
#include "common/control/strangers.h"

enum { ALL = ZPS_STRANGERS_MAX, HERE = ZPS_STRANGERS_OF_ORIGIN_MAX };
static const uint64_t patience_ns = ZPS_STRANGERS_PATIENCE_MS * ZPS_NS_PER_MS;

static struct zps_strangers strangers;
static struct zps_stranger all[ALL + 2], *whom;
static unsigned n;
static uint64_t until_ns;

static struct zps_origin v4(uint32_t number) {
  const struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(number)};
  return zps_origin_of((const struct sockaddr *)&addr);
}

static struct zps_origin v6(const char *text) {
  struct sockaddr_in6 addr = {.sin6_family = AF_INET6};
  assert_int_equal(inet_pton(AF_INET6, text, &addr.sin6_addr), 1);
  return zps_origin_of((const struct sockaddr *)&addr);
}

/* `count` of them, `n_here` at each address, one nanosecond after another from 1 on. */
static void come(unsigned count, unsigned n_here) {
  strangers = (struct zps_strangers){0};
  for (unsigned i = 0; i < count; i++) zps_strangers_add(&strangers, &all[i], v4(i / n_here), i + 1);
}

static enum zps_strangers_verdict judge(struct zps_stranger *stranger, uint64_t now_ns) {
  return zps_strangers_judge(&strangers, stranger, now_ns, &whom, &n, &until_ns);
}

static void test_of_one_address(void **state) {
  (void)state;
  come(HERE, HERE);
  assert_int_equal(judge(&all[HERE - 1], ZPS_NEVER - 1), ZPS_STRANGER_FITS);
  come(HERE + 1, HERE + 1);
  assert_int_equal(judge(&all[HERE], patience_ns), ZPS_STRANGER_WAITS);
  assert_int_equal(until_ns, patience_ns + 1);
  assert_int_equal(judge(&all[HERE], until_ns), ZPS_STRANGER_MAKES_ROOM);
  assert_ptr_equal(whom, &all[0]); /* the oldest of them, and not the newcomer */
  assert_int_equal(n, HERE);
  zps_strangers_remove(&strangers, &all[3]); /* it has said hello */
  assert_int_equal(judge(&all[HERE], until_ns), ZPS_STRANGER_FITS);
}

static void test_the_oldest_counts(void **state) {
  (void)state;
  come(HERE + 1, HERE + 1);
  zps_strangers_remove(&strangers, &all[0]);
  zps_strangers_add(&strangers, &all[0], v4(0), patience_ns);
  assert_int_equal(judge(&all[0], patience_ns + 1), ZPS_STRANGER_WAITS);
  assert_int_equal(until_ns, patience_ns + 2);
}

static void test_of_all_addresses(void **state) {
  (void)state;
  come(ALL, HERE);
  assert_int_equal(judge(&all[ALL - 1], ZPS_NEVER - 1), ZPS_STRANGER_FITS);
  zps_strangers_add(&strangers, &all[ALL], v4(ALL), 7);
  assert_int_equal(judge(&all[ALL], patience_ns), ZPS_STRANGER_WAITS);
  assert_int_equal(judge(&all[ALL], patience_ns + 1), ZPS_STRANGER_MAKES_ROOM);
  assert_ptr_equal(whom, &all[0]);
  assert_int_equal(n, ALL);
}

/* An address that is full takes nobody's room but its own. */
static void test_a_full_address_in_a_full_house(void **state) {
  (void)state;
  come(ALL, HERE);
  zps_strangers_add(&strangers, &all[ALL], v4(1), 7);
  assert_int_equal(judge(&all[ALL], ZPS_NEVER - 1), ZPS_STRANGER_MAKES_ROOM);
  assert_ptr_equal(whom, &all[HERE]); /* the oldest of address 1 */
}

/* Who has said something goes after all who have not, in a full address and in a full house. */
static void test_the_most_silent_goes(void **state) {
  (void)state;
  come(HERE + 1, HERE + 1);
  for (unsigned i = 0; i < HERE; i++) all[i].has_spoken = i != 5;
  assert_int_equal(judge(&all[HERE], ZPS_NEVER - 1), ZPS_STRANGER_MAKES_ROOM);
  assert_ptr_equal(whom, &all[5]);
  all[5].has_spoken = all[HERE].has_spoken = true;
  assert_int_equal(judge(&all[HERE], patience_ns), ZPS_STRANGER_WAITS);
  assert_int_equal(judge(&all[HERE], ZPS_NEVER - 1), ZPS_STRANGER_MAKES_ROOM);
  assert_ptr_equal(whom, &all[0]);
  come(ALL + 1, HERE);
  for (unsigned i = 0; i < HERE; i++) all[i].has_spoken = true;
  assert_int_equal(judge(&all[ALL], ZPS_NEVER - 1), ZPS_STRANGER_MAKES_ROOM);
  assert_ptr_equal(whom, &all[HERE]);
}

static void test_removing(void **state) {
  (void)state;
  come(3, 3);
  zps_strangers_remove(&strangers, &all[1]);
  zps_strangers_remove(&strangers, &all[1]);
  zps_strangers_remove(&strangers, &all[2]);
  assert_ptr_equal(strangers.oldest, &all[0]);
  assert_ptr_equal(strangers.newest, &all[0]);
  zps_strangers_remove(&strangers, &all[0]);
  assert_null(strangers.oldest);
  assert_null(strangers.newest);
  assert_int_equal(strangers.n, 0);
}

static bool is(struct zps_origin one, struct zps_origin other) {
  return zps_origin_is(&one, &other);
}

static void test_places(void **state) {
  (void)state;
  assert_true(is(v4(5), v4(5)));
  assert_false(is(v4(5), v4(6)));
  assert_true(is(v4(0x0a000001), v6("::ffff:10.0.0.1")));
  assert_false(is(v6("::ffff:10.0.0.2"), v6("::ffff:10.0.0.1")));
  assert_true(is(v6("2001:db8:1:2::3"), v6("2001:db8:1:2:9:9:9:9")));
  assert_false(is(v6("2001:db8:1:2::3"), v6("2001:db8:1:3::3")));
  assert_false(is(v6("::1"), v6("::ffff:0.0.0.1")));
  const struct zps_origin local = zps_origin_of(&(const struct sockaddr){.sa_family = AF_UNIX});
  assert_false(is(local, local));
  const char *const name = "zenps://worker/a";
  assert_true(is(zps_origin_named(ZPS_ORIGIN_CERTIFICATE, name), zps_origin_named(ZPS_ORIGIN_CERTIFICATE, name)));
  assert_false(is(zps_origin_named(ZPS_ORIGIN_CERTIFICATE, name), zps_origin_named(ZPS_ORIGIN_TOKEN, name)));
  assert_false(is(zps_origin_named(ZPS_ORIGIN_TOKEN, "ab"), zps_origin_named(ZPS_ORIGIN_TOKEN, "ba")));
  assert_true(is(zps_origin_named(ZPS_ORIGIN_UNIX, ""), zps_origin_named(ZPS_ORIGIN_UNIX, "")));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_of_one_address),
      cmocka_unit_test(test_the_oldest_counts),
      cmocka_unit_test(test_of_all_addresses),
      cmocka_unit_test(test_a_full_address_in_a_full_house),
      cmocka_unit_test(test_the_most_silent_goes),
      cmocka_unit_test(test_removing),
      cmocka_unit_test(test_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
