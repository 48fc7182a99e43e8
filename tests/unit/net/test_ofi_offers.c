/* Fabrics that offer more than the least. zenps takes good offers, and opens without what the fabric then refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/ofi/impl.h"
#include "tests/support/logs.h"
#include "tests/unit/net/offering.h"

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

static const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};

static zps_err_t try_as(struct zps_net_config config, struct zps_net **net_p, struct zps_error *error) {
  config.provider = "tcp";
  config.interface = "lo";
  config.max_msg = 512;
  config.n_recv = 4;
  return zps_net_open(&config, &handler, net_p, error);
}

static struct zps_net *open_as(struct zps_net_config config) {
  struct zps_net *net;
  struct zps_error error;
  if (try_as(config, &net, &error) != ZPS_OK) fail_msg("%s", error.text);
  return net;
}

static bool reaches_device(struct zps_net *net) {
  return ofi_net_of(net)->info->caps & FI_HMEM;
}

static int start(void **state) {
  (void)state;
  memset(&offering, 0, sizeof offering);
  logs_start();
  return 0;
}

static int finish(void **state) {
  (void)state;
  logs_finish();
  return 0;
}

/* Headers without the option that forbids CUDA calls: device memory is copied through the host. */
static void device_memory_without_cuda_calls(void **state) {
  (void)state;
  offering.has_device_memory = true;
  struct zps_net *net = open_as((struct zps_net_config){.device_memory = true});
  assert_int_equal(reaches_device(net), OFI_FORBIDS_CUDA);
  assert_int_equal(offering.n_device_asked > 0, OFI_FORBIDS_CUDA);
  assert_int_equal(offering.n_forbidden, OFI_FORBIDS_CUDA);
  assert_int_equal(offering.n_opened, 1);
  zps_net_close(net);
}

static void a_fabric_that_needs_cuda_calls_gets_no_device_memory(void **state) {
  (void)state;
  offering.has_device_memory = true;
  offering.setopt_result = -FI_EOPNOTSUPP;
  struct zps_net *net = open_as((struct zps_net_config){.device_memory = true});
  assert_false(reaches_device(net));
  assert_int_equal(offering.n_device_opened, OFI_FORBIDS_CUDA);
  assert_int_equal(offering.n_opened, 1 + OFI_FORBIDS_CUDA);
  struct zps_net_mem mem;
  struct zps_error error;
  char memory[64];
  const struct zps_net_device device = {.dmabuf_fd = -1};
  assert_int_equal(zps_net_mem_register_device(net, memory, sizeof memory, &device, &mem, &error), ZPS_ERR_UNSUPPORTED);
  zps_net_close(net);
}

#if OFI_FORBIDS_CUDA
static void device_memory_is_registered(void **state) {
  (void)state;
  char memory[4096];
  struct zps_net_mem mem;
  struct zps_error error;
  struct zps_net_device device = {.index = 3, .dmabuf_fd = -1};
  offering.has_device_memory = true;
  struct zps_net *net = open_as((struct zps_net_config){.device_memory = true});
  if (zps_net_mem_register_device(net, memory, sizeof memory, &device, &mem, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  assert_int_equal(offering.registered.n, 1);
  assert_int_equal(offering.registered.device, 3);
  assert_int_equal(offering.registered.dmabuf_fd, -1);
  assert_ptr_equal(offering.registered.base, memory);
  zps_net_mem_release(net, &mem);
  device.dmabuf_fd = 77;
  device.offset = 512;
#ifdef FI_MR_DMABUF
  if (zps_net_mem_register_device(net, memory, sizeof memory, &device, &mem, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  assert_int_equal(offering.registered.flags, FI_MR_DMABUF);
  assert_int_equal(offering.registered.device, 3);
  assert_int_equal(offering.registered.dmabuf_fd, 77);
  assert_int_equal(offering.registered.offset, 512);
  assert_int_equal(offering.registered.len, sizeof memory);
  assert_ptr_equal(offering.registered.base, memory);
  zps_net_mem_release(net, &mem);
#else
  assert_int_equal(zps_net_mem_register_device(net, memory, sizeof memory, &device, &mem, &error), ZPS_ERR_FABRIC);
#endif
  zps_net_close(net);
}
#endif

static void no_device_memory_is_offered_or_wanted(void **state) {
  (void)state;
  struct zps_net *net = open_as((struct zps_net_config){.device_memory = true});
  assert_false(reaches_device(net));
  assert_int_equal(offering.n_opened, 1);
  zps_net_close(net);
  offering.has_device_memory = true;
  net = open_as((struct zps_net_config){.device_memory = false});
  assert_false(reaches_device(net));
  assert_int_equal(offering.n_forbidden, 0);
  zps_net_close(net);
}

static char key_file[40];

static int start_with_key(void **state) {
  strcpy(key_file, "/tmp/test_ofi_offers.XXXXXX");
  const int fd = mkstemp(key_file);
  if (fd < 0 || write(fd, "0b00000001000000\n", 17) != 17 || close(fd) != 0) return -1;
  return start(state);
}

static int finish_with_key(void **state) {
  unlink(key_file);
  return finish(state);
}

static void the_key_comes_with_domain_and_endpoint(void **state) {
  (void)state;
  static const uint8_t key[8] = {0x0b, 0, 0, 0, 1, 0, 0, 0};
  offering.key_len = sizeof key;
  offering.has_device_memory = true;
  struct zps_net *net = open_as((struct zps_net_config){.auth_key_file = key_file, .device_memory = true});
  assert_int_equal(offering.domain_key.len, sizeof key);
  assert_memory_equal(offering.domain_key.bytes, key, sizeof key);
  assert_int_equal(offering.ep_key.len, sizeof key);
  assert_memory_equal(offering.ep_key.bytes, key, sizeof key);
  zps_net_close(net);
  net = open_as((struct zps_net_config){.provider = NULL});
  assert_int_equal(offering.domain_key.len, 0);
  zps_net_close(net);
}

static void key_refused(zps_err_t code, const char *says) {
  struct zps_net *net;
  struct zps_error error;
  assert_int_equal(try_as((struct zps_net_config){.auth_key_file = key_file}, &net, &error), code);
  if (!strstr(error.text, says)) fail_msg("'%s' does not say '%s'", error.text, says);
  assert_null(strstr(error.text, "0b00"));
  assert_int_equal(offering.n_opened, 0);
}

/* No fabric is opened without the key. */
static void a_key_that_no_fabric_takes_is_an_error(void **state) {
  (void)state;
  key_refused(ZPS_ERR_FABRIC, "fabric.auth_key hides fabrics that take no key of 8 bytes");
  offering.key_len = 4;
  key_refused(ZPS_ERR_FABRIC, "fabric.auth_key hides fabrics that take no key of 8 bytes");
  offering.ignores_key = true;
  key_refused(ZPS_ERR_UNSUPPORTED, "does not take the key of fabric.auth_key (8 bytes)");
  assert_int_equal(chmod(key_file, 0644), 0);
  key_refused(ZPS_ERR_INVALID, "fabric.auth_key /tmp/test_ofi_offers.");
  unlink(key_file);
  key_refused(ZPS_ERR_IO, "cannot be opened");
}

static void queues_are(const struct zps_net *net, size_t rx, size_t tx) {
  assert_int_equal(ofi_net_of((struct zps_net *)(uintptr_t)net)->info->rx_attr->size, rx);
  assert_int_equal(ofi_net_of((struct zps_net *)(uintptr_t)net)->info->tx_attr->size, tx);
}

static void short_queues_are_asked_to_be_longer(void **state) {
  (void)state;
  offering.queue = 512;
  offering.queue_most = 16384;
  struct zps_net *net = open_as((struct zps_net_config){.provider = NULL});
  queues_are(net, 8192, 8192);
  assert_int_equal(offering.n_queue_asked, 1);
  zps_net_close(net);

  offering.queue_most = 1500;
  net = open_as((struct zps_net_config){.provider = NULL});
  queues_are(net, 1024, 1024);
  zps_net_close(net);

  offering.queue_most = 512;
  net = open_as((struct zps_net_config){.provider = NULL});
  queues_are(net, 512, 512);
  zps_net_close(net);
}

static void long_queues_stay(void **state) {
  (void)state;
  offering.queue = 65536;
  offering.queue_most = 65536;
  struct zps_net *net = open_as((struct zps_net_config){.provider = NULL});
  queues_are(net, 65536, 65536);
  assert_int_equal(offering.n_queue_asked, 0);
  zps_net_close(net);
}

/* A card may have less than its provider says. Device memory does not suffer. */
static void queues_that_do_not_open_are_the_providers_own(void **state) {
  (void)state;
  offering.queue = 512;
  offering.queue_most = 16384;
  offering.queue_opens = 2048;
  offering.has_device_memory = true;
  struct zps_net *net = open_as((struct zps_net_config){.device_memory = true});
  queues_are(net, 512, 512);
  assert_int_equal(reaches_device(net), OFI_FORBIDS_CUDA);
  assert_int_equal(offering.n_opened, 2);
  zps_net_close(net);
}

/* Provider tls has one card, however many rails the option asks for. */
static void processes_with_tls_take_different_cards(void **state) {
  (void)state;
  offering.n_cards = 2;
  for (unsigned i = 0; i < 4; i++) {
    const struct zps_net_config config = {.provider = "tls", .interface = "card0,card1", .rails = 2, .number = i};
    struct sockaddr_in6 addr;
    struct zps_net_info info;
    struct zps_error error;
    if (zps_net_ofi_host(&config, &addr, &info, &error) != ZPS_OK) fail_msg("%s", error.text);
    assert_string_equal(info.domain, i % 2 == 0 ? "card0" : "card1");
  }
}

static void count_card(void *ctx, const char *line) {
  *(unsigned *)ctx += strncmp(line, "net card", 8) == 0 || strncmp(line, "tcp card", 8) == 0;
}

/* `zenpsd --check` takes a provider for missing that is not in the list. */
static void a_long_list_is_whole(void **state) {
  (void)state;
  unsigned n = 0;
  offering.n_cards = 300;
  zps_net_list(&(struct zps_net_config){.provider = "tcp", .max_msg = 512}, count_card, &n);
  assert_int_equal(n, 300);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(device_memory_without_cuda_calls, start, finish),
    cmocka_unit_test_setup_teardown(a_fabric_that_needs_cuda_calls_gets_no_device_memory, start, finish),
#if OFI_FORBIDS_CUDA
    cmocka_unit_test_setup_teardown(device_memory_is_registered, start, finish),
#endif
    cmocka_unit_test_setup_teardown(no_device_memory_is_offered_or_wanted, start, finish),
    cmocka_unit_test_setup_teardown(short_queues_are_asked_to_be_longer, start, finish),
    cmocka_unit_test_setup_teardown(long_queues_stay, start, finish),
    cmocka_unit_test_setup_teardown(queues_that_do_not_open_are_the_providers_own, start, finish),
    cmocka_unit_test_setup_teardown(a_long_list_is_whole, start, finish),
    cmocka_unit_test_setup_teardown(processes_with_tls_take_different_cards, start, finish),
    cmocka_unit_test_setup_teardown(the_key_comes_with_domain_and_endpoint, start_with_key, finish_with_key),
    cmocka_unit_test_setup_teardown(a_key_that_no_fabric_takes_is_an_error, start_with_key, finish_with_key),
  };
  return cmocka_run_group_tests_name("what fabrics offer", tests, NULL, NULL);
}
