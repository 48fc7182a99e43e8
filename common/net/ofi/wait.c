/*
 * Blocking until the fabric has something, and waking from another thread.
 *
 * Waiting may come across completions: they go into the stash, which the next progress handles first.
 *
 * The descriptor of net 1.16 to tcp 1.18.0 (1.17 was run) stays readable after a completion; a wait set, asked with
 * fi_wait(0) before each sleep, quiets it. Providers without a descriptor (shm, udp;ofi_rxd) are polled, the longer
 * idle the more rarely.
 */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/ofi/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

/* Naps between looks: without a descriptor, and on one that may not wake for everything. */
enum { NAP_MIN_NS = 20000, CAUTIOUS_MIN_NS = 5000000, NAP_MAX_NS = 20000000, NAP_READ_NS = 200000, NAP_FRACTION = 64 };

void zps_ofi_wake(struct zps_net *base) {
  struct ofi_net *net = ofi_net_of(base);
  const uint64_t one = 1;
  if (!atomic_exchange(&net->woken, true) && write(net->wake_fd, &one, sizeof one) < 0)
    zps_log_error("cannot wake the fabric's thread: errno %d", errno);
}

/* The counter is emptied before the flag: the other order could leave the flag set and the counter empty, and no wake
 * would come through again. There is nothing to read when the waker is between flag and counter; the next sleep then
 * ends early. */
static void wake_clear(struct ofi_net *net) {
  uint64_t count;
  const ssize_t n = read(net->wake_fd, &count, sizeof count);
  (void)n;
  atomic_store(&net->woken, false);
}

static bool wake_consume(struct ofi_net *net) {
  if (!atomic_load(&net->woken)) return false;
  wake_clear(net);
  return true;
}

/* Takes the completions that are ready into the stash. */
static bool stash_fill(struct ofi_net *net) {
  const ssize_t n = zps_ofi_cq_read(net, net->stash);
  if (n > 0) net->n_stash = (size_t)n;
  if (n == -FI_EAVAIL) net->cq_error = true;
  return n > 0 || n == -FI_EAVAIL;
}

static bool has_local_work(const struct ofi_net *net) {
  return net->n_stash > 0 || net->cq_error || net->failed.first || !TAILQ_EMPTY(&net->errors) ||
         (net->shut && net->quarantine.first);
}

/* Sleeps until the wake-up descriptor or the completion queue's (where `with_cq`) is readable. True for a wake-up. */
static bool sleep_on_fds(struct ofi_net *net, bool with_cq, uint64_t timeout_ns) {
  struct pollfd fds[2] = {{.fd = net->wake_fd, .events = POLLIN}, {.fd = net->cq_fd, .events = POLLIN}};
  const struct timespec timeout = zps_clock_timespec(timeout_ns);
  if (ppoll(fds, with_cq ? 2 : 1, &timeout, NULL) > 0 && fds[0].revents) {
    wake_clear(net);
    return true;
  }
  return false;
}

/* May the thread sleep on the completion queue's descriptor? Not when there are completions. */
static bool may_sleep(struct ofi_net *net) {
  struct fid *fid = &net->cq->fid;
  errno = 0; /* zps_ofi_cq_read() clears it, too */
#ifdef OFI_WAIT_SETS
  if (net->wait_set) return fi_wait(net->wait_set, 0) == -FI_ETIMEDOUT;
#endif
  return fi_trywait(net->fabric, &fid, 1) == 0;
}

/* The longer nothing has come, the longer the naps: a completion is late by a small part of the time it took, at
 * most. */
static uint64_t nap_at(const struct ofi_net *net, uint64_t now_ns, uint64_t least_ns) {
  const uint64_t nap_ns = (now_ns - net->last_event_ns) / NAP_FRACTION;
  return nap_ns < least_ns ? least_ns : nap_ns > NAP_MAX_NS ? NAP_MAX_NS : nap_ns;
}

/* The longest sleep at once; a read by a peer completes nothing here, but some providers serve it when this process
 * polls. */
static uint64_t nap_of(const struct ofi_net *net, uint64_t now_ns) {
  if (net->cq_fd >= 0) return net->is_cautious ? nap_at(net, now_ns, CAUTIOUS_MIN_NS) : ZPS_NEVER;
  const uint64_t nap_ns = nap_at(net, now_ns, NAP_MIN_NS);
  return net->is_read && nap_ns > NAP_READ_NS ? NAP_READ_NS : nap_ns;
}

static void wait_on_fd(struct ofi_net *net, uint64_t timeout_ns) {
  if (!may_sleep(net)) return;
  const uint64_t nap_ns = nap_of(net, zps_clock_ns());
  sleep_on_fds(net, true, timeout_ns < nap_ns ? timeout_ns : nap_ns);
}

static void wait_by_polling(struct ofi_net *net, uint64_t deadline_ns) {
  for (;;) {
    if (stash_fill(net)) return;
    const uint64_t now = zps_clock_ns();
    if (now >= deadline_ns) return;
    uint64_t nap = nap_of(net, now);
    if (nap > deadline_ns - now) nap = deadline_ns - now;
    if (sleep_on_fds(net, false, nap)) return;
  }
}

void zps_ofi_attend(struct zps_net *base, bool is_read) {
  ofi_net_of(base)->is_read = is_read;
}

/* Whether something may become possible of which nothing tells the thread. A receive for which there is no room is
 * posted when another one completes, which wakes it, so it has to look for room only where none is posted. */
static bool must_look(const struct ofi_net *net) {
  return !TAILQ_EMPTY(&net->retry) || (!STAILQ_EMPTY(&net->unposted) && net->recvs_posted == 0);
}

/* The time until something has to be looked after, if it is less. */
static uint64_t shorten(const struct ofi_net *net, uint64_t timeout_ns, uint64_t now_ns) {
  if (must_look(net) && timeout_ns > OFI_RETRY_WAIT_NS) timeout_ns = OFI_RETRY_WAIT_NS;
  const uint64_t look_at_ns = net->keepalive_at_ns < net->end_at_ns ? net->keepalive_at_ns : net->end_at_ns;
  if (look_at_ns == ZPS_NEVER) return timeout_ns;
  const uint64_t left_ns = look_at_ns > now_ns ? look_at_ns - now_ns : 0;
  return timeout_ns < left_ns ? timeout_ns : left_ns;
}

bool zps_ofi_rest(struct zps_net *base, struct zps_net_rest *rest) {
  struct ofi_net *net = ofi_net_of(base);
  const uint64_t now_ns = zps_clock_ns();
  if (has_local_work(net) || wake_consume(net)) return false;
  rest->fds[rest->n_fds++] = (struct pollfd){.fd = net->wake_fd, .events = POLLIN};
  if (net->shut) return true;
  if (net->cq_fd >= 0 ? !may_sleep(net) : stash_fill(net)) return false;
  if (net->cq_fd >= 0) rest->fds[rest->n_fds++] = (struct pollfd){.fd = net->cq_fd, .events = POLLIN};
  const uint64_t nap_ns = nap_of(net, now_ns);
  rest->timeout_ns = shorten(net, rest->timeout_ns < nap_ns ? rest->timeout_ns : nap_ns, now_ns);
  return true;
}

/* A waker may come between flag and counter while rest() clears both: the counter is then full and the flag clear. */
void zps_ofi_rested(struct zps_net *base) {
  wake_clear(ofi_net_of(base));
}

void zps_ofi_wait(struct zps_net *base, uint64_t timeout_ns) {
  struct ofi_net *net = ofi_net_of(base);
  if (has_local_work(net) || wake_consume(net) || timeout_ns == 0) return;
  if (net->shut) {
    sleep_on_fds(net, false, timeout_ns);
    return;
  }
  const uint64_t start = zps_clock_ns();
  timeout_ns = shorten(net, timeout_ns, start);
  const uint64_t deadline = timeout_ns < UINT64_MAX - start ? start + timeout_ns : UINT64_MAX;
  if (net->spin_ns > 0) {
    uint64_t now = start;
    while (now < deadline && now - start < net->spin_ns) {
      if (stash_fill(net) || wake_consume(net)) return;
      now = zps_clock_ns();
    }
    if (now >= deadline) return;
    timeout_ns = deadline - now;
  }
  if (net->cq_fd >= 0) {
    wait_on_fd(net, timeout_ns);
  } else {
    wait_by_polling(net, deadline);
  }
  wake_consume(net);
}
