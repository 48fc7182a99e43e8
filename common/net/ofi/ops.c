/* Posting receives, sends and reads, and retrying those that the fabric would not take. */
#include <string.h>

#include "common/base/clock.h"
#include "common/net/ofi/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { READ_POOL_STEP = 64, REPORTS_PER_PROGRESS = 256, RETRY_INTERVAL_NS = 100000 };
/* A try may cost a connection: where nobody listens, tries become fewer. A completion makes the next try come at once.
 */
enum { PATIENT_AFTER_NS = 100000000, PATIENT_INTERVAL_NS = 10000000 };

/* ---- receives ---- */

/* 0, or the fabric's error. */
static int recv_post(struct ofi_net *net, struct ofi_op *op) {
  const ssize_t rc =
      fi_trecv(net->ep, op->buffer, net->base.info.max_msg, op->desc, FI_ADDR_UNSPEC, OFI_TAG, 0, &op->context);
  if (rc == 0) net->recvs_posted++;
  return (int)rc;
}

static void recvs_post_waiting(struct ofi_net *net) {
  struct ofi_op *op;
  while ((op = STAILQ_FIRST(&net->unposted))) {
    const int rc = recv_post(net, op);
    if (rc != 0) {
      if (rc != -FI_EAGAIN) zps_log_warn_limited("the fabric refuses a receive: %s", fi_strerror(-rc));
      return;
    }
    STAILQ_REMOVE_HEAD(&net->unposted, link);
    net->n_unposted--;
  }
}

void zps_ofi_recv_repost(struct ofi_net *net, struct ofi_op *op) {
  if (net->closing || net->recvs_posted + net->n_unposted >= net->recvs_target) {
    zps_ofi_pool_put(&net->recvs, op);
    return;
  }
  STAILQ_INSERT_TAIL(&net->unposted, op, link);
  net->n_unposted++;
  recvs_post_waiting(net);
}

zps_err_t zps_ofi_reserve(struct zps_net *base, int count) {
  struct ofi_net *net = ofi_net_of(base);
  if (count < 0 && (size_t) - (long)count > net->recvs_target) return ZPS_ERR_INVALID;
  const size_t target = net->recvs_target + (size_t)(long)count;
  if (net->shut) {
    net->recvs_target = target;
    return ZPS_OK;
  }
  const size_t have = net->recvs_posted + net->n_unposted;
  if (target > net->recvs.n_ops) {
    const zps_err_t code = zps_ofi_pool_grow(net, &net->recvs, target - net->recvs.n_ops);
    if (code != ZPS_OK) return code;
  }
  net->recvs_target = target;
  for (size_t i = have; i < target; i++) {
    struct ofi_op *op = zps_ofi_pool_get(&net->recvs);
    if (!op) break; /* being handled: it is posted again when the handler returns */
    STAILQ_INSERT_TAIL(&net->unposted, op, link);
    net->n_unposted++;
  }
  recvs_post_waiting(net);
  return ZPS_OK;
}

/* ---- a peer whose fabric pushes back ---- */

static void peer_block(struct ofi_peer *peer) {
  struct ofi_net *net = ofi_net_of(peer->base.net);
  if (peer->in_retry) return;
  net->base.counters.again++;
  peer->blocked_since_ns = zps_clock_ns();
  TAILQ_INSERT_TAIL(&net->retry, peer, retry_link);
  peer->in_retry = true;
}

/* ---- sends ---- */

static int send_post(struct ofi_peer *peer, struct ofi_op *op) {
  struct ofi_net *net = ofi_net_of(peer->base.net);
  const ssize_t rc = fi_tsend(net->ep, op->buffer, op->len, op->desc, peer->addr->fi_addr, OFI_TAG, &op->context);
  if (rc != 0) return (int)rc;
  op->life = peer->life;
  peer->n_posted++;
  net->n_sends++;
  net->base.counters.msgs_sent++;
  net->base.counters.msg_bytes_sent += op->len;
  return 0;
}

unsigned zps_ofi_unsent(const struct zps_net_peer *net_peer) {
  return ((const struct ofi_peer *)net_peer)->n_sends;
}

zps_err_t zps_ofi_send(struct zps_net_peer *net_peer, const void *data, size_t len) {
  struct ofi_peer *peer = ofi_peer_of(net_peer);
  struct ofi_net *net = ofi_net_of(net_peer->net);
  if (net->closing) return ZPS_ERR_CLOSED;
  if (peer->state == OFI_PEER_FAILED && peer->in_errors) return ZPS_OK; /* its owner is about to hear of it */
  if (peer->state != OFI_PEER_LIVE) return ZPS_ERR_PEER_LOST;
  struct ofi_op *op = peer->n_sends < OFI_SENDS_PER_PEER ? zps_ofi_pool_get(&net->sends) : NULL;
  if (!op) return ZPS_ERR_AGAIN;
  if (len > 0) memcpy(op->buffer, data, len);
  op->len = len;
  op->peer = peer;
  peer->n_sends++;
  int rc = -FI_EAGAIN;
  if (STAILQ_EMPTY(&peer->sends)) rc = send_post(peer, op);
  if (rc == 0) return ZPS_OK;
  STAILQ_INSERT_TAIL(&peer->sends, op, link);
  if (rc == -FI_EAGAIN) {
    peer_block(peer);
  } else {
    zps_ofi_peer_fail(peer, ZPS_ERR_CONNECT, "cannot send: %s", fi_strerror(-rc));
  }
  return ZPS_OK;
}

/* ---- reads ---- */

void zps_ofi_read_finish(struct zps_net_read *read, zps_err_t code) {
  void (*release)(struct zps_net_read *) = code == ZPS_ERR_PEER_LOST ? read->release : NULL;
  read->done(read, code);
  if (release) release(read); /* after any other code the struct may be gone */
}

unsigned zps_ofi_quarantine_end(struct ofi_net *net) {
  struct zps_net_read *read;
  unsigned n = 0;
  for (; (read = zps_net_read_pop(&net->quarantine)); n++)
    if (read->release) read->release(read);
  return n;
}

unsigned zps_ofi_read_report(struct ofi_net *net) {
  struct zps_net_read *read;
  unsigned n = 0;
  /* Bounded: a callback may start the next read that fails. */
  for (; n < REPORTS_PER_PROGRESS && (read = zps_net_read_pop(&net->failed)); n++) {
    if (read->state == OFI_READ_LOST_IN_FLIGHT) {
      read->state = OFI_READ_QUARANTINED;
      zps_net_read_push(&net->quarantine, read);
      read->done(read, ZPS_ERR_PEER_LOST);
    } else {
      zps_ofi_read_finish(read, read->state == OFI_READ_LOST ? ZPS_ERR_PEER_LOST : ZPS_ERR_FABRIC);
    }
  }
  return n;
}

static void read_defer(struct ofi_net *net, struct zps_net_read *read, enum ofi_read_state state) {
  read->state = (uint8_t)state;
  zps_net_read_push(&net->failed, read);
}

/* Posts the read, or arranges for its failure; false when the fabric pushes back. */
static bool read_post(struct ofi_peer *peer, struct zps_net_read *read) {
  struct ofi_net *net = ofi_net_of(peer->base.net);
  if (STAILQ_EMPTY(&net->reads.free) && zps_ofi_pool_grow(net, &net->reads, READ_POOL_STEP) != ZPS_OK) return false;
  struct ofi_op *op = zps_ofi_pool_get(&net->reads);
  const ssize_t rc = fi_read(net->ep, read->local, read->len, read->mem->desc[read->rail], peer->addr->fi_addr,
                             read->addr, zps_net_read_key(read), &op->context);
  if (rc == 0) {
    op->peer = peer;
    op->read = read;
    op->len = read->len;
    op->life = peer->life;
    read->op = op;
    read->state = OFI_READ_POSTED;
    zps_net_read_push(&peer->posted, read);
    peer->n_posted++;
    peer->n_reads++;
    net->n_reads++;
    return true;
  }
  zps_ofi_pool_put(&net->reads, op);
  if (rc == -FI_EAGAIN) return false;
  if (zps_ofi_errno_is_loss((int)-rc)) {
    zps_ofi_peer_fail(peer, ZPS_ERR_CONNECT, "cannot read: %s", fi_strerror((int)-rc));
    read_defer(net, read, OFI_READ_LOST);
  } else {
    zps_log_debug("peer %s: a read of %zu bytes is refused: %s", peer->addr->text, read->len, fi_strerror((int)-rc));
    read_defer(net, read, OFI_READ_BROKEN);
  }
  return true;
}

zps_err_t zps_ofi_read(struct zps_net_peer *net_peer, struct zps_net_read *read) {
  struct ofi_peer *peer = ofi_peer_of(net_peer);
  struct ofi_net *net = ofi_net_of(net_peer->net);
  if (net->closing) return ZPS_ERR_CLOSED;
  if (peer->state == OFI_PEER_EVICTED) return ZPS_ERR_PEER_LOST;
  read->peer = net_peer;
  read->op = NULL;
  if (peer->state == OFI_PEER_FAILED) {
    read_defer(net, read, OFI_READ_LOST);
  } else if (peer->queued.first || !read_post(peer, read)) {
    read->state = OFI_READ_QUEUED;
    zps_net_read_push(&peer->queued, read);
    peer_block(peer);
  }
  return ZPS_OK;
}

/* ---- retries ---- */

static bool peer_retry(struct ofi_peer *peer) {
  struct ofi_net *net = ofi_net_of(peer->base.net);
  bool moved = false;
  struct ofi_op *op;
  while ((op = STAILQ_FIRST(&peer->sends))) {
    const int rc = send_post(peer, op);
    if (rc == -FI_EAGAIN) break;
    if (rc != 0) {
      zps_ofi_peer_fail(peer, ZPS_ERR_CONNECT, "cannot send: %s", fi_strerror(-rc));
      return true;
    }
    STAILQ_REMOVE_HEAD(&peer->sends, link);
    moved = true;
  }
  struct zps_net_read *read;
  while ((read = peer->queued.first)) {
    zps_net_read_unlink(&peer->queued, read);
    if (!read_post(peer, read)) {
      /* Reads have no order among each other, so that one at the tail is as good as one at the head. */
      zps_net_read_push(&peer->queued, read);
      break;
    }
    moved = true;
  }
  if (!peer->in_retry) return true; /* it has failed */
  if (STAILQ_EMPTY(&peer->sends) && !peer->queued.first) {
    TAILQ_REMOVE(&net->retry, peer, retry_link);
    peer->in_retry = false;
  } else {
    net->base.counters.again++;
  }
  return moved;
}

void zps_ofi_retry(struct ofi_net *net) {
  if (!STAILQ_EMPTY(&net->unposted)) recvs_post_waiting(net);
  if (TAILQ_EMPTY(&net->retry)) return;
  const uint64_t now = zps_clock_ns();
  if (now < net->retry_at_ns) return;
  struct ofi_peer *peer, *next;
  net->retry_at_ns = now + PATIENT_INTERVAL_NS;
  for (peer = TAILQ_FIRST(&net->retry); peer; peer = next) {
    next = TAILQ_NEXT(peer, retry_link);
    if (now - peer->blocked_since_ns < PATIENT_AFTER_NS) net->retry_at_ns = now + RETRY_INTERVAL_NS;
    if (peer_retry(peer)) {
      peer->blocked_since_ns = now;
    } else if (now - peer->blocked_since_ns > net->connect_timeout_ns) {
      zps_ofi_peer_fail(peer, ZPS_ERR_CONNECT, "does not take messages for %llu ms",
                        (unsigned long long)(net->connect_timeout_ns / ZPS_NS_PER_MS));
    }
  }
}
