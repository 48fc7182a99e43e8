/* A libfabric endpoint that ends the connections of many silent peers. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/ofi/impl.h"
#include "tests/support/patience.h"

enum { PEERS = 200 };

static unsigned n_passes; /* over the sockets */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
  if (strcmp(path, "/proc/self/fd") == 0) n_passes++;
  return __real_open(path, flags, 0600);
}

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

static void one_pass_ends_the_connections_of_all(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "tcp", .interface = "lo", .max_msg = 512, .n_recv = 4};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net *net;
  struct zps_net_peer *peers[PEERS];
  struct zps_error error;
  if (zps_net_open(&config, &handler, &net, &error) != ZPS_OK) fail_msg("%s", error.text);
  for (unsigned i = 0; i < PEERS; i++) {
    const struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)(1 + i))};
    if (zps_net_peer_add(net, &there, sizeof there, NULL, &peers[i], &error) != ZPS_OK) fail_msg("%s", error.text);
  }
  n_passes = 0;
  for (unsigned i = 0; i < PEERS; i++) zps_net_peer_cut(peers[i]);
  zps_net_wait(net, 600 * ZPS_NS_PER_S); /* It is due at once. */
  zps_net_progress(net);
  assert_int_equal(n_passes, 1);
  const struct ofi_net *const ofi = ofi_net_of(net);
  assert_int_equal(ofi->end_at_ns, ZPS_NEVER);
  zps_net_peer_cut(peers[0]);
  assert_int_equal(ofi->end_at_ns, ofi->may_end_at_ns); /* The next pass waits. */
  struct patience patience = {0};
  while (n_passes < 2 && !patience_is_over(&patience)) {
    zps_net_wait(net, ofi->end_at_ns);
    const uint64_t now_ns = zps_clock_ns(), due_ns = ofi->end_at_ns;
    zps_net_progress(net);
    assert_true(n_passes == 1 || zps_clock_ns() >= due_ns);
    assert_true(n_passes == 2 || now_ns < due_ns);
  }
  assert_int_equal(n_passes, 2);
  for (unsigned i = 0; i < PEERS; i++) zps_net_peer_evict(peers[i]);
  zps_net_close(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_pass_ends_the_connections_of_all)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
