/* A turn of the fabric; sleeping, and waking from another thread. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { EVENTS = 64 };
#define AGAIN_NS (2 * ZPS_NS_PER_MS) /* before the owner tries again to send */

zps_err_t zps_tlsnet_wait_open(struct tlsnet *net, struct zps_error *error) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &net->wake_fd};
  net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  net->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (net->epoll_fd < 0 || net->wake_fd < 0 || epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, net->wake_fd, &event) != 0)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot create a descriptor to wait on");
  return ZPS_OK;
}

void zps_tlsnet_wake(struct zps_net *base) {
  struct tlsnet *const net = tlsnet_of(base);
  const uint64_t one = 1;
  if (!atomic_exchange(&net->woken, true) && write(net->wake_fd, &one, sizeof one) < 0)
    zps_log_error("cannot wake the fabric's thread: %s", strerror(errno));
}

/* In this order: the other one could leave the flag set and the counter empty, and no wake would come through. */
static void wake_clear(struct tlsnet *net) {
  uint64_t count;
  const ssize_t n = read(net->wake_fd, &count, sizeof count);
  (void)n;
  atomic_store(&net->woken, false);
}

static void conn_event(struct tlsnet_conn *conn, uint32_t events) {
  if (conn->state == TLSNET_CONNECTING || conn->state == TLSNET_SHAKING) {
    zps_tlsnet_conn_step(conn);
  } else if (conn->state == TLSNET_OPEN) {
    if (events & ~(uint32_t)EPOLLOUT) zps_tlsnet_conn_ready(conn);
    if ((events & EPOLLOUT) && conn->is_full) zps_tlsnet_conn_full(conn, false);
  } else {
    zps_tlsnet_conn_rest(conn);
  }
}

static void look(struct tlsnet *net) {
  struct epoll_event events[EVENTS];
  const int n = epoll_wait(net->epoll_fd, events, EVENTS, 0);
  for (int i = 0; i < n; i++) {
    if (events[i].data.ptr == &net->wake_fd) {
      wake_clear(net);
      net->was_woken = true;
    } else if (events[i].data.ptr == &net->listen_fd) {
      zps_tlsnet_accept(net);
    } else {
      conn_event(events[i].data.ptr, events[i].events);
    }
  }
}

/* A turn of one connection may end others, and have any wait again: the number alone ends a turn of all. */
static unsigned count(const struct tlsnet_conn *first, bool is_dirty) {
  unsigned n = 0;
  for (; first; n++) first = is_dirty ? TAILQ_NEXT(first, dirty_link) : TAILQ_NEXT(first, ready_link);
  return n;
}

/* Connections that are still ready afterwards have their next turn after all others. */
static unsigned receive(struct tlsnet *net) {
  unsigned n_events = 0, n = count(TAILQ_FIRST(&net->ready), false);
  struct tlsnet_conn *conn;
  for (; n > 0 && (conn = TAILQ_FIRST(&net->ready)) != NULL; n--) {
    TAILQ_REMOVE(&net->ready, conn, ready_link);
    conn->is_ready = false;
    n_events += zps_tlsnet_receive(conn);
  }
  return n_events;
}

static void transmit(struct tlsnet *net) {
  struct tlsnet_conn *conn;
  for (unsigned n = count(TAILQ_FIRST(&net->dirty), true); n > 0 && (conn = TAILQ_FIRST(&net->dirty)) != NULL; n--) {
    TAILQ_REMOVE(&net->dirty, conn, dirty_link);
    conn->is_dirty = false;
    zps_tlsnet_transmit(conn);
  }
}

unsigned zps_tlsnet_progress(struct zps_net *base) {
  struct tlsnet *const net = tlsnet_of(base);
  unsigned n_events = net->pushed_back ? 1 : 0;
  net->pushed_back = false;
  look(net);
  n_events += receive(net);
  transmit(net);
  if (net->next_deadline_ns != ZPS_NEVER) zps_tlsnet_deadlines(net, zps_clock_ns());
  n_events += zps_tlsnet_read_report(net);
  n_events += zps_tlsnet_peer_report(net);
  zps_tlsnet_conns_free(net);
  return n_events;
}

static bool has_work(const struct tlsnet *net) {
  return !TAILQ_EMPTY(&net->ready) || !TAILQ_EMPTY(&net->dirty) || net->over.first || !TAILQ_EMPTY(&net->errors);
}

static bool is_readable(const struct tlsnet *net, uint64_t timeout_ns) {
  struct pollfd fd = {.fd = net->epoll_fd, .events = POLLIN};
  const struct timespec timeout = zps_clock_timespec(timeout_ns);
  return ppoll(&fd, 1, &timeout, NULL) > 0;
}

/* What was sent since the last turn leaves first. */
void zps_tlsnet_wait(struct zps_net *base, uint64_t timeout_ns) {
  struct tlsnet *const net = tlsnet_of(base);
  transmit(net);
  if (has_work(net) || timeout_ns == 0) return;
  if (net->was_woken) {
    net->was_woken = false;
    return;
  }
  const uint64_t start_ns = zps_clock_ns();
  if (net->pushed_back && timeout_ns > AGAIN_NS) timeout_ns = AGAIN_NS;
  if (net->next_deadline_ns != ZPS_NEVER) {
    const uint64_t left_ns = net->next_deadline_ns > start_ns ? net->next_deadline_ns - start_ns : 0;
    if (timeout_ns > left_ns) timeout_ns = left_ns;
  }
  const uint64_t spin_ns = net->spin_ns < timeout_ns ? net->spin_ns : timeout_ns;
  uint64_t passed_ns = 0;
  for (; passed_ns < spin_ns; passed_ns = zps_clock_ns() - start_ns)
    if (is_readable(net, 0)) break;
  if (passed_ns < timeout_ns) is_readable(net, timeout_ns - passed_ns);
  if (atomic_load(&net->woken)) wake_clear(net);
}
