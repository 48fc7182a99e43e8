/* Opening an endpoint, and creating objects on it, without memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/net/net.h"
#include "tests/conform/conform_certs.h"
#include "tests/support/oom.h"

struct fixture {
  const char *provider;
  struct zps_tls *tls;
  struct zps_net *net;
  struct zps_net_peer *peer;
  struct zps_net_mem mem;
  char memory[4096];
};

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx;
  (void)data;
  (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx;
  (void)peer;
  (void)code;
  (void)text;
}

static zps_err_t fabric_open(void *ctx) {
  struct fixture *fixture = ctx;
  const struct zps_net_config config = {
      .provider = fixture->provider, .tls = fixture->tls, .interface = "lo", .max_msg = 512, .n_recv = 4};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  return zps_net_open(&config, &handler, &fixture->net, NULL);
}

static void fabric_close(void *ctx) {
  struct fixture *fixture = ctx;
  zps_net_close(fixture->net);
  fixture->net = NULL;
}

static zps_err_t peer_add(void *ctx) {
  struct fixture *fixture = ctx;
  const struct zps_net_info *info = zps_net_info(fixture->net);
  return zps_net_peer_add(fixture->net, info->addr, info->addr_len, NULL, &fixture->peer, NULL);
}

static void peer_evict(void *ctx) {
  struct fixture *fixture = ctx;
  zps_net_peer_evict(fixture->peer);
}

static zps_err_t memory_register(void *ctx) {
  struct fixture *fixture = ctx;
  return zps_net_mem_register(fixture->net, fixture->memory, sizeof fixture->memory, &fixture->mem, NULL);
}

static void memory_release(void *ctx) {
  struct fixture *fixture = ctx;
  zps_net_mem_release(fixture->net, &fixture->mem);
}

static zps_err_t receives_reserve(void *ctx) {
  struct fixture *fixture = ctx;
  return zps_net_reserve(fixture->net, 100);
}

static void receives_return(void *ctx) {
  struct fixture *fixture = ctx;
  assert_int_equal(zps_net_reserve(fixture->net, -100), ZPS_OK);
}

static void test_libfabric(void **state) {
  (void)state;
  struct fixture fixture = {.provider = "tcp"};
  oom_sweep(fabric_open, fabric_close, &fixture, 3);
  assert_int_equal(fabric_open(&fixture), ZPS_OK);
  oom_sweep(peer_add, peer_evict, &fixture, 3);
  oom_sweep(memory_register, memory_release, &fixture, 1);
  oom_sweep(receives_reserve, receives_return, &fixture, 2);
  fabric_close(&fixture);
}

/* A peer without memory for its connection fails later: its owner tries again. */
static void test_tls(void **state) {
  (void)state;
  struct fixture fixture = {.provider = "tls", .tls = conform_certs_open()};
  assert_non_null(fixture.tls);
  oom_sweep(fabric_open, fabric_close, &fixture, 1);
  assert_int_equal(fabric_open(&fixture), ZPS_OK);
  oom_sweep(peer_add, peer_evict, &fixture, 1);
  oom_sweep(memory_register, memory_release, &fixture, 1);
  fabric_close(&fixture);
  conform_certs_close(fixture.tls);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_libfabric), cmocka_unit_test(test_tls)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
