/* The choice of a fabric among those that libfabric offers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/net/offers.h"

/* A host with Ethernet and libfabric 1.17, in the order in which that lists things. */
static const struct offer debian[] = {
    {"tcp;ofi_rxm", "eth0", "192.0.2.2"},
    {"tcp;ofi_rxm", "lo", "127.0.0.1"},
    {"net;ofi_rxm", "eth0", "192.0.2.2"},
    {"net", "eth0", "fe80::1"},
    {"net", "lo", "127.0.0.1"},
    {"net", "eth0", "fd00::2"},
    {"net", "eth0", "192.0.2.2"},
    {"net", "eth1", "10.1.2.3"},
    {"net", "lo", "::1"},
    {"shm", "shm", NULL},
    {"sockets", "eth0", "192.0.2.2"},
    {"udp;ofi_rxd", "eth0", "192.0.2.2"},
};
enum { N_DEBIAN = sizeof debian / sizeof debian[0] };

static void expect(const struct offer *offers, size_t n, struct ofi_wish wish, const char *expected) {
  const struct ofi_iface ifaces[] = {offers_iface("ib0", "172.16.0.9", 24), {.name = "eth7"}};
  const struct ofi_host host = {.ifaces = ifaces, .n_ifaces = 2, .root = "/nowhere", .place.node = -1};
  char text[160];
  (void)offers_choose(offers, n, &host, &wish, text);
  assert_string_equal(text, expected);
}

static void refuse(const struct offer *offers, size_t n, struct ofi_wish wish, zps_err_t expected, const char *word) {
  const struct ofi_host host = {.root = "/nowhere", .place.node = -1};
  offers_refuse(offers, n, &host, &wish, expected, word);
}

#define WISH(...) ((struct ofi_wish){.provider = __VA_ARGS__})

static void test_auto_prefers_net_on_a_real_address(void **state) {
  (void)state;
  expect(debian, N_DEBIAN, WISH("auto"), "net eth0 192.0.2.2");
}

static void test_auto_prefers_hardware(void **state) {
  (void)state;
  static const struct offer offers[] = {
      {"sockets", "eth0", "192.0.2.2"},          {"tcp;ofi_rxm", "eth0", "192.0.2.2"}, {"tcp", "eth0", "192.0.2.2"},
      {"verbs;ofi_rxm", "mlx5_0", "172.16.0.9"}, {"efa", "efa_0-rdm", NULL},           {"cxi", "cxi0", NULL},
  };
  expect(offers, 6, WISH("auto"), "cxi cxi0");
  expect(offers, 5, WISH("auto"), "efa efa_0-rdm");
  expect(offers, 4, WISH("auto"), "verbs;ofi_rxm mlx5_0 172.16.0.9");
  expect(offers, 3, WISH("auto"), "tcp eth0 192.0.2.2");
  expect(offers, 2, WISH("auto"), "tcp;ofi_rxm eth0 192.0.2.2");
  expect(offers, 1, WISH("auto"), "sockets eth0 192.0.2.2");
}

static void test_auto_never_takes_what_reaches_no_other_host(void **state) {
  (void)state;
  static const struct offer offers[] = {{"shm", "shm", NULL}, {"net;ofi_rxm", "eth0", "192.0.2.2"}};
  refuse(offers, 2, WISH("auto"), ZPS_ERR_FABRIC, "shm");
  expect(offers, 2, WISH("shm"), "shm shm");
}

static void test_addresses_by_class(void **state) {
  (void)state;
  static const struct offer offers[] = {
      {"net", "eth0", "fe80::1"}, {"net", "lo", "127.0.0.1"}, {"net", "eth0", "fd00::2"}, {"net", "eth0", "192.0.2.2"}};
  expect(offers, 4, WISH("net"), "net eth0 192.0.2.2");
  expect(offers, 3, WISH("net"), "net eth0 fd00::2");
  expect(offers, 2, WISH("net"), "net lo 127.0.0.1"); /* better than link-local: there is no other */
  expect(offers, 1, WISH("net"), "net eth0 fe80::1");
}

/* By the interface of the source address, IPv4 first; nothing changes where no fabric is on it. */
static void test_the_way_to_the_coordinator_comes_first(void **state) {
  (void)state;
  static const struct offer offers[] = {{"net", "docker0", "172.17.0.1"},
                                        {"net", "ib0", "fd00::9"},
                                        {"net", "ib0", "172.16.0.9"},
                                        {"net", "ib0", "fe80::9"},
                                        {"net", "eth1", "10.1.2.3"}};
  struct sockaddr_storage source = {0}, other = {0};
  struct sockaddr_in *const v4 = (struct sockaddr_in *)&source, *const unknown = (struct sockaddr_in *)&other;
  v4->sin_family = unknown->sin_family = AF_INET;
  inet_pton(AF_INET, "172.16.0.9", &v4->sin_addr);
  inet_pton(AF_INET, "192.0.2.77", &unknown->sin_addr);
  expect(offers, 5, WISH("auto"), "net docker0 172.17.0.1");
  expect(offers, 5, WISH("auto", .source = &source), "net ib0 172.16.0.9");
  expect(offers, 2, WISH("auto", .source = &source), "net ib0 fd00::9");
  expect(offers, 1, WISH("auto", .source = &source), "net docker0 172.17.0.1");
  expect(offers, 5, WISH("auto", .source = &other), "net docker0 172.17.0.1");
}

static void test_names(void **state) {
  (void)state;
  expect(debian, N_DEBIAN, WISH("tcp;ofi_rxm"), "tcp;ofi_rxm eth0 192.0.2.2");
  expect(debian, N_DEBIAN, WISH("sockets"), "sockets eth0 192.0.2.2");
  expect(debian, N_DEBIAN, WISH("tcp"), "net eth0 192.0.2.2"); /* the provider's old name */
  static const struct offer newer[] = {{"tcp;ofi_rxm", "eth0", "192.0.2.2"}, {"tcp", "eth0", "192.0.2.2"}};
  expect(newer, 2, WISH("net"), "tcp eth0 192.0.2.2");
  refuse(debian, N_DEBIAN, WISH("verbs;ofi_rxm"), ZPS_ERR_FABRIC, "net (lo 127.0.0.1, eth0 fd00::2");
  refuse(debian, N_DEBIAN, WISH("net;ofi_rxm"), ZPS_ERR_UNSUPPORTED, "net;ofi_rxm");
  refuse(NULL, 0, WISH("auto"), ZPS_ERR_FABRIC, "nothing");
}

static void test_interfaces(void **state) {
  (void)state;
  expect(debian, N_DEBIAN, WISH("auto", .interface = "lo"), "net lo 127.0.0.1");
  expect(debian, N_DEBIAN, WISH("auto", .interface = "ib3, eth1"), "net eth1 10.1.2.3");
  expect(debian, N_DEBIAN, WISH("auto", .interface = "^eth0,lo"), "net eth1 10.1.2.3");
  expect(debian, N_DEBIAN, WISH("auto", .interface = ""), "net eth0 192.0.2.2");
  refuse(debian, N_DEBIAN, WISH("net", .interface = "ib0"), ZPS_ERR_FABRIC, "interface ib0");
  refuse(debian, N_DEBIAN, WISH("net", .interface = "^eth0,eth1,lo"), ZPS_ERR_FABRIC, "interface ^eth0,eth1,lo");
  /* A domain that is named after the device is found by the interface that has its address. */
  static const struct offer verbs[] = {{"verbs;ofi_rxm", "mlx5_1", "172.16.0.1"},
                                       {"verbs;ofi_rxm", "mlx5_0", "172.16.0.9"}};
  expect(verbs, 2, WISH("auto", .interface = "ib0"), "verbs;ofi_rxm mlx5_0 172.16.0.9");
  expect(verbs, 2, WISH("auto", .interface = "mlx5_1"), "verbs;ofi_rxm mlx5_1 172.16.0.1");
  expect(verbs, 2, WISH("auto", .interface = "^ib0"), "verbs;ofi_rxm mlx5_1 172.16.0.1");
}

static void test_subnets(void **state) {
  (void)state;
  expect(debian, N_DEBIAN, WISH("auto", .subnet = "10.0.0.0/8"), "net eth1 10.1.2.3");
  expect(debian, N_DEBIAN, WISH("auto", .subnet = "172.16.0.0/12,fd00::/8"), "net eth0 fd00::2");
  expect(debian, N_DEBIAN, WISH("auto", .subnet = "fe80::/10"), "net eth0 fe80::1");
  expect(debian, N_DEBIAN, WISH("auto", .subnet = "192.0.2.2"), "net eth0 192.0.2.2");
  expect(debian, N_DEBIAN, WISH("auto", .subnet = "0.0.0.0/0"), "net eth0 192.0.2.2");
  expect(debian, N_DEBIAN, WISH("auto", .subnet = "10.1.2.2/31"), "net eth1 10.1.2.3");
  refuse(debian, N_DEBIAN, WISH("auto", .subnet = "10.1.2.0/31"), ZPS_ERR_FABRIC, "subnet 10.1.2.0/31");
  refuse(debian, N_DEBIAN, WISH("shm", .subnet = "0.0.0.0/0"), ZPS_ERR_FABRIC, "shm"); /* has no address at all */
  refuse(debian, N_DEBIAN, WISH("auto", .interface = "eth0", .subnet = "10.0.0.0/8"), ZPS_ERR_FABRIC,
         "subnet 10.0.0.0/8");
}

static void test_subnets_that_are_none(void **state) {
  (void)state;
  static const char *const wrong[] = {"10.0.0.0/33", "10.0.0/8",    "fd00::/129",  "eth0",
                                      "10.0.0.0/",   "10.0.0.0/8x", "10.0.0.0/-1", "10.0.0.0/ 8"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    refuse(debian, N_DEBIAN, WISH("auto", .subnet = wrong[i]), ZPS_ERR_INVALID, wrong[i]);
  refuse(debian, N_DEBIAN, WISH("auto", .subnet = "10.0.0.0/8,192.0.2.0/99"), ZPS_ERR_INVALID, "192.0.2.0/99");
}

static void test_error_text_fits(void **state) {
  (void)state;
  enum { N = 100 };
  struct offer offers[N];
  char names[N][16];
  for (int i = 0; i < N; i++) {
    snprintf(names[i], sizeof names[i], "if%d", i);
    offers[i] = (struct offer){"net", names[i], "192.0.2.2"};
  }
  refuse(offers, N, WISH("efa"), ZPS_ERR_FABRIC, "if3 192.0.2.2, ");
  refuse(offers, N, WISH("efa"), ZPS_ERR_FABRIC, "...");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_auto_prefers_net_on_a_real_address),
      cmocka_unit_test(test_auto_prefers_hardware),
      cmocka_unit_test(test_auto_never_takes_what_reaches_no_other_host),
      cmocka_unit_test(test_addresses_by_class),
      cmocka_unit_test(test_the_way_to_the_coordinator_comes_first),
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_interfaces),
      cmocka_unit_test(test_subnets),
      cmocka_unit_test(test_subnets_that_are_none),
      cmocka_unit_test(test_error_text_fits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
