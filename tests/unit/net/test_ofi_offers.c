/* What a fabric offers beside the least that is needed: taken where it is good, done without where it is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

static struct zps_net *open_as(struct zps_net_config config) {
  struct zps_net *net;
  struct zps_error error;
  config.provider = "tcp";
  config.interface = "lo";
  config.max_msg = 512;
  config.n_recv = 4;
  if (zps_net_open(&config, &handler, &net, &error) != ZPS_OK) fail_msg("%s", error.text);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(device_memory_without_cuda_calls, start, finish),
      cmocka_unit_test_setup_teardown(a_fabric_that_needs_cuda_calls_gets_no_device_memory, start, finish),
      cmocka_unit_test_setup_teardown(no_device_memory_is_offered_or_wanted, start, finish),
  };
  return cmocka_run_group_tests_name("what fabrics offer", tests, NULL, NULL);
}
