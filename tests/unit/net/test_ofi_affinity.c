/*
 * The card that a process takes, on a made-up host: two nodes, on each two PCI switches with a GPU and two cards.
 *
 *   bridge  node  GPU           cards
 *   10      0     0000:13:00.0  14 15
 *   20      0     0000:23:00.0  24 25
 *   80      1     0000:83:00.0  84 85
 *   90      1     0000:93:00.0  94 95
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/net/offers.h"

static const struct offers_card cards[] = {
    {"rdmap14s0-rdm", "rdmap14s0", 0x14, 0},
    {"rdmap15s0-rdm", "rdmap15s0", 0x15, 0},
    {"rdmap24s0-rdm", "rdmap24s0", 0x24, 0},
    {"rdmap25s0-rdm", "rdmap25s0", 0x25, 0},
    {"rdmap84s0-rdm", "rdmap84s0", 0x84, 0},
    {"rdmap85s0-rdm", "rdmap85s0", 0x85, 0},
    {"rdmap94s0-rdm", "rdmap94s0", 0x94, 0},
    {"rdmap95s0-rdm", "rdmap95s0", 0x95, 0},
    {"mlx5_0", "mlx5_0", 0, 200},
    {"mlx5_1", "mlx5_1", 0, 200},
    {"mlx5_2", "mlx5_2", 0, 200},
    {"mlx5_3", "mlx5_3", 0, 25},
    {"mlx5_4", "mlx5_4", 0, 200},
};

static char root[64];

static void make_folders(char *path) {
  for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    (void)mkdir(path, 0755);
    *slash = '/';
  }
}

static void make_file(const char *name, const char *text) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/sys/%s", root, name);
  make_folders(path);
  FILE *const file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file, "%s\n", text);
  assert_int_equal(fclose(file), 0);
}

static void make_link(const char *name, const char *to_device) {
  char path[PATH_MAX], to[PATH_MAX];
  snprintf(path, sizeof path, "%s/sys/%s", root, name);
  snprintf(to, sizeof to, "%s/sys/devices/%s", root, to_device);
  make_folders(path);
  assert_int_equal(symlink(to, path), 0);
}

static void make_device(unsigned bridge, int node, unsigned port, unsigned bus) {
  char device[160], name[200], text[16];
  snprintf(device, sizeof device, "pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0/0000:%02x:%02x.0/0000:%02x:00.0", bridge,
           bridge, bridge + 1, bridge + 2, port, bus);
  snprintf(name, sizeof name, "devices/%s/numa_node", device);
  snprintf(text, sizeof text, "%d", node);
  make_file(name, text);
  snprintf(name, sizeof name, "bus/pci/devices/0000:%02x:00.0", bus);
  make_link(name, device);
}

static int make_host(void **state) {
  (void)state;
  offers_cards = cards;
  offers_n_cards = sizeof cards / sizeof cards[0];
  snprintf(root, sizeof root, "/tmp/zps-affinity.XXXXXX");
  if (!mkdtemp(root)) return -1;
  static const unsigned bridges[] = {0x10, 0x20, 0x80, 0x90};
  for (unsigned i = 0; i < 4; i++)
    for (unsigned port = 0; port < 3; port++) make_device(bridges[i], i >= 2, port, bridges[i] + 3 + port);
  make_file("devices/system/node/node0/cpulist", "0-3,8-11");
  make_file("devices/system/node/node1/cpulist", "4-7,12-15");
  make_file("devices/system/node/possible", "0-1");
  make_file("devices/pci0000:10/0000:10:02.0/virtio2/net/eth0/mtu", "1500"); /* of no node that is told */
  make_link("class/net/eth0", "pci0000:10/0000:10:02.0/virtio2/net/eth0");
  make_link("class/net/hsn1", "pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0/0000:24:00.0");
  make_link("class/cxi/cxi1", "pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0/0000:24:00.0");
  make_file("devices/virtual/net/lo/mtu", "65536");
  make_link("class/net/lo", "virtual/net/lo");
  return 0;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk) {
  (void)status;
  (void)kind;
  (void)walk;
  return remove(path);
}

static int remove_host(void **state) {
  (void)state;
  return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static struct ofi_place pci(const char *address) {
  struct ofi_place place;
  zps_ofi_place_of_pci(root, address, &place);
  return place;
}

static struct ofi_place cpus(const char *list, unsigned n) {
  struct ofi_place place;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (unsigned i = 0; i < n; i++) CPU_SET(list[i], &set);
  zps_ofi_place_of_cpus(root, &set, &place);
  return place;
}

static void has_text(const struct ofi_place *place, const char *expected) {
  char text[64];
  assert_string_equal(zps_ofi_place_text(place, text, sizeof text), expected);
}

static void places_are_what_the_kernel_says(void **state) {
  (void)state;
  struct ofi_place place = pci("0000:84:00.0");
  has_text(&place, "PCI 0000:84:00.0, NUMA node 1");
  assert_string_equal(place.path, "pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0");
  place = pci("00FE:0A:00.0"); /* CUDA's notation; there is no such device */
  has_text(&place, "PCI 00fe:0a:00.0");
  assert_string_equal(place.path, "");
  place = pci("eth0");
  has_text(&place, "");
  zps_ofi_place_of_interface(root, "eth0", &place); /* not a PCI device, but below one */
  has_text(&place, "PCI 0000:10:02.0");
  assert_int_equal(place.node, -1);
  zps_ofi_place_of_interface(root, "lo", &place);
  has_text(&place, "");
  zps_ofi_place_of_interface(root, "../net/eth0", &place);
  has_text(&place, "");
}

static void processors_are_on_a_node_or_not(void **state) {
  (void)state;
  assert_int_equal(cpus("\x01\x0b", 2).node, 0);
  assert_int_equal(cpus("\x04\x07\x0f", 3).node, 1);
  assert_int_equal(cpus("\x03\x04", 2).node, -1);
  assert_int_equal(cpus("\x10", 1).node, -1);
  assert_int_equal(cpus("", 0).node, -1);
}

static void nearer_is_smaller(void **state) {
  (void)state;
  const struct ofi_place gpu = pci("0000:13:00.0"), own = pci("0000:15:00.0"), beside = pci("0000:24:00.0"),
                         far = pci("0000:84:00.0"), none = pci("0009:00:00.0");
  struct ofi_place bridge;
  zps_ofi_place_of_interface(root, "eth0", &bridge);
  assert_true(zps_ofi_distance(&gpu, &own) < zps_ofi_distance(&gpu, &bridge));
  assert_true(zps_ofi_distance(&gpu, &bridge) < zps_ofi_distance(&gpu, &beside));
  assert_true(zps_ofi_distance(&gpu, &beside) < zps_ofi_distance(&gpu, &far));
  assert_int_equal(zps_ofi_distance(&gpu, &none), zps_ofi_distance(&gpu, &far));
  const struct ofi_place near = cpus("\x05", 1);
  assert_true(zps_ofi_distance(&near, &far) < zps_ofi_distance(&near, &own));
  assert_int_equal(zps_ofi_distance(&none, &own), zps_ofi_distance(&none, &far));
}

static void equal_cards_are_dealt(void **state) {
  (void)state;
  static const unsigned distances[] = {300, 7, 300, 7, 7, 200};
  size_t n_nearest;
  assert_int_equal(zps_ofi_deal(distances, 6, 0, 1, 0, &n_nearest), 1);
  assert_int_equal(n_nearest, 3);
  assert_int_equal(zps_ofi_deal(distances, 6, 1, 1, 0, &n_nearest), 3);
  assert_int_equal(zps_ofi_deal(distances, 6, 2, 1, 0, &n_nearest), 4);
  static const unsigned equal[] = {5, 5, 5, 5, 5, 5, 5, 5};
  for (unsigned n = 1; n <= 8; n++) {
    for (unsigned step = 1; step <= n; step += n > 1 ? n - 1 : 1) { /* neighbours, or each n-th process */
      for (unsigned from = 0; from < 3 * n * n; from += n * step) {
        unsigned taken = 0;
        for (unsigned i = 0; i < n; i++) taken |= 1u << zps_ofi_deal(equal, n, from + i * step, 1, 0, &n_nearest);
        assert_int_equal(taken, (1u << n) - 1);
      }
    }
  }
}

/* Processes with several cards each have different ones, as far as there are enough; and none has a card twice. */
static void several_cards_are_dealt_to_each(void **state) {
  (void)state;
  static const unsigned distances[] = {9, 5, 5, 5, 5, 7};
  size_t n_nearest;
  for (unsigned rails = 1; rails <= 4; rails++) {
    unsigned taken[2] = {0};
    for (unsigned number = 0; number < 2; number++) {
      for (unsigned rail = 0; rail < rails; rail++) {
        const unsigned bit = 1u << zps_ofi_deal(distances, 6, number, rails, rail, &n_nearest);
        assert_false(taken[number] & bit);
        taken[number] |= bit;
      }
    }
    assert_true(rails > 2 || (taken[0] & taken[1]) == 0);
  }
  assert_int_equal(zps_ofi_deal(distances, 6, 0, 6, 4, &n_nearest), 5); /* the next ones by distance */
  assert_int_equal(zps_ofi_deal(distances, 6, 0, 6, 5, &n_nearest), 0);
  assert_int_equal(zps_ofi_deal(distances, 6, 0, 7, 6, &n_nearest), 6); /* there are fewer */
}

/* Each process has a nearest card of its own, or shares two with another process. The rails beyond come from all cards,
 * so each card has as many processes as any other. */
static void further_cards_are_dealt_to_each(void **state) {
  (void)state;
  for (unsigned n_nearest = 1; n_nearest <= 2; n_nearest++) {
    unsigned n_taken[4] = {0};
    for (unsigned number = 0; number < 4; number++) {
      const unsigned first = number / n_nearest * n_nearest;
      unsigned distances[4];
      for (unsigned k = 0; k < 4; k++) distances[k] = k / n_nearest * n_nearest == first ? 2 : 100;
      for (unsigned rail = 0; rail < n_nearest + 1; rail++) {
        size_t n_near;
        const size_t i = zps_ofi_deal(distances, 4, number, n_nearest + 1, rail, &n_near);
        assert_true(i < 4);
        assert_true(rail >= n_nearest || distances[i] == 2);
        n_taken[i]++;
      }
    }
    for (unsigned k = 0; k < 4; k++) assert_int_equal(n_taken[k], n_nearest + 1);
  }
}

/* A host with more than two distances: pairs of cards below a switch, four of them on each node, and a process for each
 * card. The third rail comes from the node. */
static void further_cards_are_dealt_by_distance(void **state) {
  (void)state;
  enum { N = 8, RAILS = 3 };
  unsigned n_taken[N] = {0};
  for (unsigned number = 0; number < N; number++) {
    unsigned distances[N], taken = 0;
    for (unsigned k = 0; k < N; k++) distances[k] = k / 2 == number / 2 ? 2 : k / 4 == number / 4 ? 100 : 300;
    for (unsigned rail = 0; rail < RAILS; rail++) {
      size_t n_nearest;
      const size_t i = zps_ofi_deal(distances, N, number, RAILS, rail, &n_nearest);
      assert_true(i < N && !(taken & 1u << i));
      assert_int_equal(distances[i], rail < 2 ? 2 : 100);
      taken |= 1u << i;
      n_taken[i]++;
    }
  }
  for (unsigned k = 0; k < N; k++) assert_int_equal(n_taken[k], RAILS);
}

/* As libfabric lists them: a card twice, with other features. */
static const struct offer efa[] = {
    {"efa", "rdmap14s0-rdm", NULL}, {"efa", "rdmap14s0-rdm", NULL}, {"efa", "rdmap15s0-rdm", NULL},
    {"efa", "rdmap24s0-rdm", NULL}, {"efa", "rdmap25s0-rdm", NULL}, {"efa", "rdmap84s0-rdm", NULL},
    {"efa", "rdmap85s0-rdm", NULL}, {"efa", "rdmap94s0-rdm", NULL}, {"efa", "rdmap95s0-rdm", NULL},
    {"net", "eth0", "10.0.0.2"},    {"net", "eth1", "10.0.1.2"},    {"net", "eth1", "fd00::2"},
};
enum { N_EFA = sizeof efa / sizeof efa[0] };

static struct ofi_choice take(const struct ofi_host *host, struct ofi_wish wish, const char *expected) {
  char text[160];
  const struct ofi_choice choice = offers_choose(efa, N_EFA, host, &wish, text);
  assert_string_equal(text, expected);
  return choice;
}

#define WISH(...) ((struct ofi_wish){.provider = __VA_ARGS__})

static void processes_take_the_cards_near_to_them(void **state) {
  (void)state;
  struct ofi_host host = {.root = root, .place = pci("0000:93:00.0"), .number = 6};
  assert_string_equal(take(&host, WISH("auto"), "efa rdmap94s0-rdm").why,
                      "one of 2 near GPU 0000:93:00.0, of 8, as process 6 of this host");
  host.number = 7;
  take(&host, WISH("auto"), "efa rdmap95s0-rdm");
  host = (struct ofi_host){.root = root, .place = cpus("\x04\x05", 2), .number = 2};
  assert_string_equal(take(&host, WISH("efa"), "efa rdmap94s0-rdm").why,
                      "one of 4 near NUMA node 1, of 8, as process 2 of this host");
  host = (struct ofi_host){.root = root, .place = pci(""), .number = 5};
  assert_string_equal(take(&host, WISH("auto"), "efa rdmap85s0-rdm").why,
                      "one of 8 like it, as process 5 of this host");
  host = (struct ofi_host){.root = "/nowhere", .place = pci("0000:93:00.0"), .number = 1};
  take(&host, WISH("auto"), "efa rdmap15s0-rdm"); /* the kernel tells of nothing */
}

static void named_cards_are_taken_in_their_order(void **state) {
  (void)state;
  struct ofi_host host = {.root = root, .place = pci("0000:93:00.0"), .number = 1};
  assert_string_equal(take(&host, WISH("auto", .interface = "rdmap84s0,rdmap14s0-rdm"), "efa rdmap14s0-rdm").why,
                      "number 1 of 2 named, as process 1 of this host");
  take(&host, WISH("auto", .interface = "0000:24:00.0"), "efa rdmap24s0-rdm");
  take(&host, WISH("net", .interface = "eth1, eth0, ib7"), "net eth0 10.0.0.2");
  take(&host, WISH("auto", .interface = "^rdmap94s0"), "efa rdmap95s0-rdm"); /* the nearest one that is left */
  host.number = 2;
  take(&host, WISH("auto", .interface = "rdmap84s0,rdmap14s0"), "efa rdmap84s0-rdm");
  take(&host, WISH("net", .interface = "eth1,eth0"), "net eth1 10.0.1.2"); /* of one family with the others */
}

static void rails_are_cards_of_the_list(void **state) {
  (void)state;
  struct ofi_host host = {.root = root, .place.node = -1, .number = 1, .rails = 2, .rail = 1};
  take(&host, WISH("auto", .interface = "rdmap14s0,rdmap24s0,rdmap84s0,rdmap94s0"), "efa rdmap94s0-rdm");
  take(&host, WISH("net", .interface = "eth0,eth1"), "net eth1 10.0.1.2");
  host.rail = 2;
  const struct ofi_wish wish = WISH("net", .interface = "eth0,eth1");
  offers_refuse(efa, N_EFA, &host, &wish, ZPS_ERR_FABRIC, "no card number 3 like eth0: fabric.rails asks for 2");
}

/* Where the kernel's routes choose the link, or the networks differ, peers might not reach another card. */
static void cards_that_peers_may_not_reach_are_not_dealt(void **state) {
  (void)state;
  static const struct offer verbs[] = {{"verbs;ofi_rxm", "mlx5_0", "10.1.0.1"},
                                       {"verbs;ofi_rxm", "mlx5_1", "10.1.0.2"},
                                       {"verbs;ofi_rxm", "mlx5_2", "10.1.1.1"},
                                       {"verbs;ofi_rxm", "mlx5_3", "10.1.0.3"},
                                       {"verbs;ofi_rxm", "mlx5_4", "fd00::1"}};
  const struct ofi_iface ifaces[] = {offers_iface("ib0", "10.1.0.1", 24), offers_iface("ib1", "10.1.0.2", 24),
                                     offers_iface("ib2", "10.1.1.1", 24)};
  struct ofi_host host = {.ifaces = ifaces, .n_ifaces = 3, .root = "/nowhere", .place.node = -1, .number = 1};
  char text[160];
  assert_string_equal(offers_choose(verbs, 5, &host, &WISH("auto"), text).why,
                      "one of 2 like it, as process 1 of this host");
  assert_string_equal(text, "verbs;ofi_rxm mlx5_1 10.1.0.2");
  offers_choose(verbs, 5, &host, &WISH("auto", .interface = "mlx5_0,mlx5_2,mlx5_3"), text);
  assert_string_equal(text, "verbs;ofi_rxm mlx5_2 10.1.1.1");
  host.rails = 3, host.rail = 2;
  offers_refuse(verbs, 3, &host, &WISH("auto"), ZPS_ERR_FABRIC,
                "no card number 3 like mlx5_0: fabric.rails asks for 3; mlx5_2 is another, and taken where "
                "fabric.interface names both");
  host = (struct ofi_host){.root = root, .place.node = -1, .number = 1};
  assert_string_equal(take(&host, WISH("net"), "net eth0 10.0.0.2").why, "the first of its kind");
  assert_string_equal(take(&host, WISH("net", .interface = "eth1"), "net eth1 10.0.1.2").why, "as named");
}

/* A Slingshot card has an address of its own kind, and an interface of the kernel's beside it. */
static void a_card_is_known_by_its_interface(void **state) {
  (void)state;
  static const struct offer offers[] = {
      {"cxi", "cxi0", NULL}, {"cxi", "cxi1", NULL}, {"net", "eth0", "10.0.0.2"}, {"net", "hsn1", "10.9.0.2"}};
  const struct ofi_iface ifaces[] = {offers_iface("eth0", "10.0.0.2", 24), offers_iface("hsn1", "10.9.0.2", 24)};
  const struct ofi_host host = {.ifaces = ifaces, .n_ifaces = 2, .root = root, .place.node = -1};
  char text[160];
  offers_choose(offers, 4, &host, &WISH("auto", .interface = "hsn1"), text);
  assert_string_equal(text, "cxi cxi1");
  offers_choose(offers, 4, &host, &WISH("auto", .subnet = "10.9.0.0/16"), text);
  assert_string_equal(text, "cxi cxi1");
  offers_choose(offers, 4, &host, &WISH("auto", .interface = "eth0"), text);
  assert_string_equal(text, "net eth0 10.0.0.2, not cxi");
  offers_choose(offers, 4, &host, &WISH("auto", .subnet = "10.0.0.0/24"), text);
  assert_string_equal(text, "net eth0 10.0.0.2, not cxi");
  offers_choose(offers, 4, &host, &WISH("net", .interface = "eth0"), text);
  assert_string_equal(text, "net eth0 10.0.0.2"); /* net was asked for */
  offers_choose(offers + 2, 2, &host, &WISH("auto", .interface = "eth0"), text);
  assert_string_equal(text, "net eth0 10.0.0.2");
}

static void a_wrong_name_lists_the_cards(void **state) {
  (void)state;
  const struct ofi_host host = {.root = root, .place.node = -1};
  offers_refuse(efa, N_EFA, &host, &WISH("auto", .interface = "rdmap6s0"), ZPS_ERR_FABRIC,
                "interface rdmap6s0; this host has: efa (rdmap14s0-rdm, rdmap15s0-rdm, ");
  offers_refuse(efa, N_EFA, &host, &WISH("net", .interface = "rdmap14s0"), ZPS_ERR_FABRIC,
                "this host has: net (eth0 10.0.0.2, eth1 10.0.1.2, eth1 fd00::2)");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(places_are_what_the_kernel_says),
      cmocka_unit_test(processors_are_on_a_node_or_not),
      cmocka_unit_test(nearer_is_smaller),
      cmocka_unit_test(equal_cards_are_dealt),
      cmocka_unit_test(several_cards_are_dealt_to_each),
      cmocka_unit_test(further_cards_are_dealt_to_each),
      cmocka_unit_test(further_cards_are_dealt_by_distance),
      cmocka_unit_test(processes_take_the_cards_near_to_them),
      cmocka_unit_test(named_cards_are_taken_in_their_order),
      cmocka_unit_test(rails_are_cards_of_the_list),
      cmocka_unit_test(cards_that_peers_may_not_reach_are_not_dealt),
      cmocka_unit_test(a_card_is_known_by_its_interface),
      cmocka_unit_test(a_wrong_name_lists_the_cards),
  };
  return cmocka_run_group_tests(tests, make_host, remove_host);
}
