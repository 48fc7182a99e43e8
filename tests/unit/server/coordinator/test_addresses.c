/* Which addresses for gradients a peer may name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/bundle.h"
#include "server/coordinator/addresses.h"

static struct sockaddr_storage addr_of(const char *text) {
  struct sockaddr_storage addr = {.ss_family = AF_INET};
  if (strchr(text, ':')) {
    addr.ss_family = AF_INET6;
    assert_int_equal(inet_pton(AF_INET6, text, &((struct sockaddr_in6 *)&addr)->sin6_addr), 1);
  } else {
    assert_int_equal(inet_pton(AF_INET, text, &((struct sockaddr_in *)&addr)->sin_addr), 1);
  }
  return addr;
}

static bool may(const char *peer_text, const char *named_text, const char *subnets) {
  struct zps_net_info fabric = {.addr_format = "FI_SOCKADDR_IN"};
  const struct sockaddr_storage named = addr_of(named_text);
  fabric.addr_len = named.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
  memcpy(fabric.addr, &named, fabric.addr_len);
  const struct sockaddr_storage addr = addr_of(peer_text);
  const struct zps_origin peer = zps_origin_of((const struct sockaddr *)&addr);
  return zps_address_is_of(&fabric, &peer, subnets);
}

static void a_peer_may_name_its_own(void **state) {
  (void)state;
  assert_true(may("10.0.0.7", "10.0.0.7", NULL));
  assert_false(may("10.0.0.7", "10.0.0.8", NULL));
  assert_false(may("10.0.0.7", "127.0.0.1", NULL));
  assert_true(may("::ffff:10.0.0.7", "10.0.0.7", NULL));
  assert_true(may("fd00::7", "fd00::7", NULL));
  assert_false(may("fd00::7", "fd00:0:0:1::7", NULL));
  assert_false(may("10.0.0.7", "fd00::7", NULL));
}

static void networks_for_gradients_are_known(void **state) {
  (void)state;
  assert_true(may("10.0.0.7", "192.168.3.9", "192.168.0.0/16"));
  assert_true(may("10.0.0.7", "fd12::1", "192.168.0.0/16,fd00::/8"));
  assert_false(may("10.0.0.7", "192.169.0.1", "192.168.0.0/16,fd00::/8"));
}

/* Each card's address counts. */
static void all_rails_are_looked_at(void **state) {
  (void)state;
  const struct sockaddr_storage own = addr_of("10.0.0.7"), other = addr_of("10.0.0.8");
  const struct zps_origin peer = zps_origin_of((const struct sockaddr *)&own);
  const size_t len = sizeof(struct sockaddr_in);
  struct zps_net_info fabric = {.addr_format = "FI_SOCKADDR_IN"};
  char text[64];
  size_t n = 0;
  assert_true(zps_bundle_add(fabric.addr, &n, sizeof fabric.addr, (const uint8_t *)&own, len));
  assert_true(zps_bundle_add(fabric.addr, &n, sizeof fabric.addr, (const uint8_t *)&other, len));
  fabric.addr_len = n;
  assert_false(zps_address_is_of(&fabric, &peer, NULL));
  assert_false(zps_address_is_of(&fabric, &peer, "192.168.0.0/16"));
  assert_string_equal(zps_address_foreign(&fabric, &peer, "192.168.0.0/16", text, sizeof text), "10.0.0.8 of rail 1");
  assert_true(zps_address_is_of(&fabric, &peer, "10.0.0.8"));
  n = 0;
  assert_true(zps_bundle_add(fabric.addr, &n, sizeof fabric.addr, (const uint8_t *)"?", 1));
  assert_true(zps_bundle_add(fabric.addr, &n, sizeof fabric.addr, (const uint8_t *)&other, len));
  fabric.addr_len = n;
  assert_false(zps_address_is_of(&fabric, &peer, NULL)); /* nothing hides behind an address that is none */
}

/* Nothing is read beyond what there is. An address that tells no host is let through, and `zenpsctl security` says
 * so. */
static void other_kinds_are_let_through(void **state) {
  (void)state;
  const struct sockaddr_storage addr = addr_of("10.0.0.7");
  const struct zps_origin peer = zps_origin_of((const struct sockaddr *)&addr);
  struct zps_net_info fabric = {.addr_format = "FI_ADDR_STR", .addr = "shm://7", .addr_len = 8};
  assert_true(zps_address_is_of(&fabric, &peer, NULL));
  assert_false(zps_address_tells_host(&fabric));
  fabric = (struct zps_net_info){.addr_format = "FI_SOCKADDR_IN", .addr = {AF_INET}, .addr_len = 4};
  assert_true(zps_address_is_of(&fabric, &peer, NULL)); /* too short for one: no fabric takes it */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_peer_may_name_its_own),
      cmocka_unit_test(networks_for_gradients_are_known),
      cmocka_unit_test(all_rails_are_looked_at),
      cmocka_unit_test(other_kinds_are_let_through),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
