/* Completions. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/net/ofi/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { EVENTS_PER_PROGRESS = 256 };

static void recv_done(struct ofi_net *net, struct ofi_op *op, size_t len, int err, const char *text) {
  net->recvs_posted--;
  if (err == 0 && !net->closing) {
    net->base.counters.msgs_received++;
    net->base.counters.msg_bytes_received += len;
    net->base.handler.on_message(net->base.handler.ctx, op->buffer, len);
  } else if (err != 0 && !zps_ofi_errno_is_loss(err)) {
    zps_log_warn_of_strangers("a message was not received: %s", text);
  }
  zps_ofi_recv_repost(net, op);
}

static void send_done(struct ofi_net *net, struct ofi_op *op, int err, const char *text) {
  struct ofi_peer *peer = op->peer;
  const bool is_of_this_life = op->life == peer->life;
  net->n_sends--;
  peer->n_sends--;
  if (peer->state == OFI_PEER_EVICTED) net->n_sends_stuck--;
  zps_ofi_pool_put(&net->sends, op);
  if (err != 0 && is_of_this_life) zps_ofi_peer_fail(peer, ZPS_ERR_PEER_LOST, "a message was not sent: %s", text);
  zps_ofi_peer_unref(peer);
}

static void read_done(struct ofi_net *net, struct ofi_op *op, int err, const char *text) {
  struct ofi_peer *peer = op->peer;
  struct zps_net_read *read = op->read;
  const size_t len = op->len;
  const bool is_of_this_life = op->life == peer->life;
  net->n_reads--;
  peer->n_reads--;
  zps_ofi_pool_put(&net->reads, op);
  if (read->state == OFI_READ_LOST_IN_FLIGHT || read->state == OFI_READ_QUARANTINED) {
    net->base.counters.quarantined--;
    if (read->state == OFI_READ_LOST_IN_FLIGHT) {
      read->state = OFI_READ_LOST;
    } else {
      zps_net_read_unlink(&net->quarantine, read);
      if (read->release) read->release(read);
    }
    zps_ofi_peer_unref(peer);
    return;
  }
  zps_net_read_unlink(&peer->posted, read);
  zps_err_t code = ZPS_OK;
  if (err == 0) {
    net->base.counters.reads++;
    net->base.counters.read_bytes += len;
  } else if (zps_ofi_errno_is_loss(err)) {
    code = ZPS_ERR_PEER_LOST;
    if (is_of_this_life) zps_ofi_peer_fail(peer, code, "a read of %zu bytes failed: %s", len, text);
  } else {
    code = ZPS_ERR_FABRIC;
    zps_log_debug("peer %s: a read of %zu bytes failed: %s", peer->addr->text, len, text);
  }
  if (net->closing) {
    zps_net_read_push(&net->failed, read); /* called back with the others, when the endpoint is closed */
  } else {
    zps_ofi_read_finish(read, code);
  }
  zps_ofi_peer_unref(peer);
}

static void op_done(struct ofi_net *net, void *context, size_t len, int err, const char *text) {
  struct ofi_op *op = context;
  if (!op) {
    zps_log_debug("an event that belongs to no operation: %s", text);
    return;
  }
  switch (op->kind) {
    case OFI_OP_RECV:
      recv_done(net, op, len, err, text);
      break;
    case OFI_OP_SEND:
      send_done(net, op, err, text);
      break;
    case OFI_OP_READ:
      read_done(net, op, err, text);
      break;
  }
}

/* The number of error entries handled. */
static unsigned drain_error(struct ofi_net *net) {
  struct fi_cq_err_entry entry = {0};
  char detail[120] = "", text[200];
  const ssize_t n = fi_cq_readerr(net->cq, &entry, 0);
  if (n <= 0) return 0;
  const char *provider_text = fi_cq_strerror(net->cq, entry.prov_errno, entry.err_data, detail, sizeof detail);
  snprintf(text, sizeof text, "%s (%s)", fi_strerror(entry.err), provider_text ? provider_text : "");
  op_done(net, entry.op_context, entry.len, entry.err == 0 ? FI_EOTHER : entry.err, text);
  return 1;
}

ssize_t zps_ofi_cq_read(struct ofi_net *net, struct fi_cq_msg_entry *entries) {
  errno = 0;
  return fi_cq_read(net->cq, entries, OFI_CQ_BATCH);
}

unsigned zps_ofi_cq_drain(struct ofi_net *net) {
  unsigned n_events = 0;
  struct fi_cq_msg_entry entries[OFI_CQ_BATCH];
  while (n_events < EVENTS_PER_PROGRESS) {
    ssize_t n;
    if (net->n_stash > 0) {
      n = (ssize_t)net->n_stash;
      memcpy(entries, net->stash, net->n_stash * sizeof entries[0]);
      net->n_stash = 0;
    } else if (net->cq_error) {
      n = -FI_EAVAIL;
      net->cq_error = false;
    } else {
      n = zps_ofi_cq_read(net, entries);
    }
    if (n == -FI_EAVAIL) {
      const unsigned handled = drain_error(net);
      n_events += handled;
      if (handled == 0) break;
      continue;
    }
    if (n <= 0) {
      if (n != 0 && n != -FI_EAGAIN) zps_log_warn_limited("cannot read completions: %s", fi_strerror((int)-n));
      break;
    }
    for (ssize_t i = 0; i < n; i++) op_done(net, entries[i].op_context, entries[i].len, 0, "");
    n_events += (unsigned)n;
  }
  return n_events;
}

unsigned zps_ofi_progress(struct zps_net *base) {
  struct ofi_net *net = ofi_net_of(base);
  unsigned n_events = 0;
  if (net->shut) {
    n_events = zps_ofi_quarantine_end(net);
  } else {
    n_events = zps_ofi_cq_drain(net);
    if (n_events > 0) net->retry_at_ns = 0; /* completed operations may have made room */
    zps_ofi_retry(net);
  }
  n_events += zps_ofi_read_report(net);
  n_events += zps_ofi_peer_report(net);
  if (n_events > 0 || net->keepalive_at_ns != ZPS_NEVER || net->end_at_ns != ZPS_NEVER) {
    const uint64_t now_ns = zps_clock_ns();
    if (n_events > 0) net->last_event_ns = now_ns;
    zps_ofi_keep_alive(net, now_ns, n_events > 0);
    zps_ofi_end_cut(net, now_ns);
  }
  return n_events;
}
