/* Waiting by polling: how long a nap lasts after a long quiet time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/ofi/impl.h"

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx, (void)peer, (void)code, (void)text;
}

static uint64_t longest_ns;
static unsigned n_naps;

int __real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
  const uint64_t nap_ns = (uint64_t)timeout->tv_sec * ZPS_NS_PER_S + (uint64_t)timeout->tv_nsec;
  if (nap_ns > longest_ns) longest_ns = nap_ns;
  n_naps++;
  return __real_ppoll(fds, n, timeout, mask);
}

/* Its name where libc checks the size of buffers (_FORTIFY_SOURCE). */
int __wrap___ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size);
int __wrap___ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
                       size_t size) {
  assert_true(n * sizeof *fds <= size);
  return __wrap_ppoll(fds, n, timeout, mask);
}

/* Ten seconds after the last event. */
static void wait_quietly(struct zps_net *net) {
  longest_ns = 0;
  n_naps = 0;
  ofi_net_of(net)->last_event_ns = zps_clock_ns() - 10 * ZPS_NS_PER_S;
  zps_net_wait(net, 30 * ZPS_NS_PER_MS);
  assert_true(n_naps > 0);
}

static void naps_are_short_while_peers_read(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "tcp", .interface = "lo", .max_msg = 512, .n_recv = 4};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  struct zps_net *net;
  struct zps_error error;
  if (zps_net_open(&config, &handler, &net, &error) != ZPS_OK) fail_msg("%s", error.text);
  const int cq_fd = ofi_net_of(net)->cq_fd;
  ofi_net_of(net)->cq_fd = -1; /* The provider now has no descriptor. */

  wait_quietly(net);
  assert_int_equal(longest_ns, 20 * ZPS_NS_PER_MS);
  zps_net_attend(net, true);
  wait_quietly(net);
  assert_int_equal(longest_ns, 200 * 1000);
  zps_net_attend(net, false);
  wait_quietly(net);
  assert_int_equal(longest_ns, 20 * ZPS_NS_PER_MS);
  ofi_net_of(net)->cq_fd = cq_fd;
  zps_net_close(net);
}

/* The waker has set its flag, rest() has cleared it, and then the waker fills the counter. */
static void a_late_wake_ends_one_rest(void **state) {
  (void)state;
  const struct zps_net_config config = {.provider = "tcp", .interface = "lo", .max_msg = 512, .n_recv = 4};
  const struct zps_net_handler handler = {.on_message = on_message, .on_peer_error = on_peer_error};
  const struct timespec second = {.tv_sec = 1}, no_time = {.tv_sec = 0};
  const uint64_t one = 1;
  struct zps_net *net;
  struct zps_error error;
  if (zps_net_open(&config, &handler, &net, &error) != ZPS_OK) fail_msg("%s", error.text);
  struct zps_net_rest rest = {.timeout_ns = ZPS_NS_PER_S};
  assert_true(net->ops->rest(net, &rest));
  assert_int_equal(write(ofi_net_of(net)->wake_fd, &one, sizeof one), sizeof one);
  assert_int_equal(ppoll(rest.fds, rest.n_fds, &second, NULL), 1);
  net->ops->rested(net);
  assert_int_equal(ppoll(rest.fds, rest.n_fds, &no_time, NULL), 0);
  zps_net_wake(net);
  assert_int_equal(ppoll(rest.fds, rest.n_fds, &second, NULL), 1);
  zps_net_close(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(naps_are_short_while_peers_read),
      cmocka_unit_test(a_late_wake_ends_one_rest),
  };
  return cmocka_run_group_tests_name("naps", tests, NULL, NULL);
}
