/* A libfabric endpoint that takes fewer receives than links need. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/ofi/impl.h"

static struct fi_ops_tagged *fabric, limited;
static unsigned room; /* for receives */

static ssize_t recv_with_room(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src_addr, uint64_t tag,
                              uint64_t ignore, void *context) {
  if (room == 0) return -FI_EAGAIN;
  room--;
  return fabric->recv(ep, buf, len, desc, src_addr, tag, ignore, context);
}

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

/* With n receives posted, and one that finds no room. */
static struct zps_net *open_full(unsigned n) {
  const struct zps_net_config config = {.provider = "tcp", .interface = "lo", .max_msg = 512, .n_recv = n};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net *net;
  struct zps_error error;
  if (zps_net_open(&config, &handler, &net, &error) != ZPS_OK) fail_msg("%s", error.text);
  struct ofi_net *ofi = ofi_net_of(net);
  fabric = ofi->ep->tagged;
  limited = *fabric;
  limited.recv = recv_with_room;
  ofi->ep->tagged = &limited;
  room = 0;
  assert_int_equal(zps_net_reserve(net, 1), ZPS_OK);
  assert_int_equal(ofi->n_unposted, 1);
  return net;
}

static void close_full(struct zps_net *net) {
  ofi_net_of(net)->ep->tagged = fabric;
  zps_net_close(net);
}

/* One that completes makes the room, and wakes the thread: it need not look for it. */
static void the_thread_sleeps_while_receives_are_posted(void **state) {
  (void)state;
  struct zps_net *net = open_full(4);
  const uint64_t long_ns = 50 * ZPS_NS_PER_MS;
  bool slept = false;
  for (unsigned i = 0; i < 20 && !slept; i++) {
    const uint64_t begun_ns = zps_clock_ns();
    zps_net_wait(net, long_ns);
    slept = zps_clock_ns() - begun_ns >= long_ns;
    zps_net_progress(net);
  }
  assert_true(slept);
  room = 9;
  zps_net_progress(net);
  assert_int_equal(ofi_net_of(net)->n_unposted, 0);
  assert_int_equal(ofi_net_of(net)->recvs_posted, 5);
  close_full(net);
}

/* Nothing would wake the thread. */
static void it_looks_for_room_while_none_is_posted(void **state) {
  (void)state;
  struct zps_net *net = open_full(0);
  room = 9;
  const uint64_t begun_ns = zps_clock_ns();
  zps_net_wait(net, 600 * ZPS_NS_PER_S);
  assert_true(zps_clock_ns() - begun_ns < 60 * ZPS_NS_PER_S);
  zps_net_progress(net);
  assert_int_equal(ofi_net_of(net)->n_unposted, 0);
  close_full(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_thread_sleeps_while_receives_are_posted),
      cmocka_unit_test(it_looks_for_room_while_none_is_posted),
  };
  return cmocka_run_group_tests_name("receives that the fabric does not take", tests, NULL, NULL);
}
