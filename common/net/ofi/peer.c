/* Peers: the address vector behind them, their failure, and their eviction. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/net/ofi/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { ENDED_MAX = 256, PASS_COST = 20 }; /* so the thread is busy with it for 5% of the time at most */

/* An address in text starts with a scheme, as ours does, and ends with a zero; the others all have one length. */
static bool addr_looks_right(const struct ofi_net *net, const char *bytes, size_t len) {
  const char *ours = (const char *)net->base.info.addr;
  if (net->info->addr_format != FI_ADDR_STR) return len == net->base.info.addr_len;
  const size_t scheme_len = strcspn(ours, ":") + 1;
  return len > scheme_len && bytes[len - 1] == '\0' && memcmp(bytes, ours, scheme_len) == 0;
}

static zps_err_t addr_get(struct ofi_net *net, const void *bytes, size_t len, struct ofi_addr **addr_p,
                          struct zps_error *error) {
  struct ofi_addr *addr;
  SLIST_FOREACH(addr, &net->addrs, link) {
    if (addr->len == len && memcmp(addr->bytes, bytes, len) == 0) {
      addr->refs++;
      *addr_p = addr;
      return ZPS_OK;
    }
  }
  if (!addr_looks_right(net, bytes, len))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "a peer's fabric address has %zu bytes where %s (%s) has %zu: do both use the same provider?", len,
                    net->base.info.provider, net->base.info.addr_format, net->base.info.addr_len);
  addr = calloc(1, sizeof *addr);
  if (!addr) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for a peer's address");
  memcpy(addr->bytes, bytes, len);
  addr->len = len;
  addr->refs = 1;
  const int n = fi_av_insert(net->av, addr->bytes, 1, &addr->fi_addr, 0, NULL);
  if (n != 1) {
    free(addr);
    return zps_ofi_fail(error, n < 0 ? n : -FI_EADDRNOTAVAIL, "fi_av_insert", net->info);
  }
  size_t text_len = sizeof addr->text;
  fi_av_straddr(net->av, addr->bytes, addr->text, &text_len);
  addr->text[sizeof addr->text - 1] = '\0';
  SLIST_INSERT_HEAD(&net->addrs, addr, link);
  zps_forked_close_peer(&addr->forked, addr->bytes, len);
  *addr_p = addr;
  return ZPS_OK;
}

static void addr_put(struct ofi_net *net, struct ofi_addr *addr) {
  if (--addr->refs > 0) return;
  SLIST_REMOVE(&net->addrs, addr, ofi_addr, link);
  zps_forked_forget(&addr->forked);
  if (!net->shut && !net->closing && !net->keep_addrs) fi_av_remove(net->av, &addr->fi_addr, 1, 0);
  free(addr);
}

zps_err_t zps_ofi_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx, struct zps_net_peer **peer_p,
                           struct zps_error *error) {
  struct ofi_net *ofi = ofi_net_of(net);
  if (ofi->shut) return zps_fail(error, ZPS_ERR_CLOSED, "the endpoint %s is shut", net->info.address);
  struct ofi_peer *peer = calloc(1, sizeof *peer);
  if (!peer) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for a peer");
  const size_t sends_needed = ofi->reads_only ? 0 : (ofi->n_live + 1) * OFI_SENDS_PER_PEER + ofi->n_sends_stuck;
  zps_err_t code = ZPS_OK;
  if (sends_needed > ofi->sends.n_ops) code = zps_ofi_pool_grow(ofi, &ofi->sends, sends_needed - ofi->sends.n_ops);
  if (code != ZPS_OK) {
    zps_fail(error, code, "out of memory for a peer's %u send buffers of %zu bytes", OFI_SENDS_PER_PEER,
             ofi->sends.buffer_size);
    goto err_peer;
  }
  code = addr_get(ofi, addr, len, &peer->addr, error);
  if (code != ZPS_OK) goto err_peer;
  peer->base.net = net;
  peer->base.ctx = ctx;
  STAILQ_INIT(&peer->sends);
  LIST_INSERT_HEAD(&ofi->peers, peer, all_link);
  ofi->n_live++;
  if (ofi->keepalive_s > 0) ofi->keepalive_at_ns = zps_clock_ns() + ZPS_NS_PER_S; /* it is connected by then */
  zps_log_debug("peer %s added", peer->addr->text);
  *peer_p = &peer->base;
  return ZPS_OK;

err_peer:
  free(peer);
  return code;
}

void zps_ofi_peer_free(struct ofi_peer *peer) {
  struct ofi_net *net = ofi_net_of(peer->base.net);
  LIST_REMOVE(peer, all_link);
  addr_put(net, peer->addr);
  free(peer);
}

void zps_ofi_peer_unref(struct ofi_peer *peer) {
  peer->n_posted--;
  const bool closing = ofi_net_of(peer->base.net)->closing; /* frees all peers at its end */
  if (peer->state == OFI_PEER_EVICTED && peer->n_posted == 0 && !closing) zps_ofi_peer_free(peer);
}

/* Nothing is posted to the peer any more. */
static void peer_silence(struct ofi_peer *peer) {
  struct ofi_net *net = ofi_net_of(peer->base.net);
  struct ofi_op *op;
  while ((op = STAILQ_FIRST(&peer->sends))) {
    STAILQ_REMOVE_HEAD(&peer->sends, link);
    peer->n_sends--;
    zps_ofi_pool_put(&net->sends, op);
  }
  if (peer->in_retry) TAILQ_REMOVE(&net->retry, peer, retry_link);
  peer->in_retry = false;
}

static void reads_lose(struct ofi_net *net, struct zps_net_read_list *list, enum ofi_read_state state) {
  struct zps_net_read *read;
  while ((read = zps_net_read_pop(list))) {
    read->state = (uint8_t)state;
    zps_net_read_push(&net->failed, read);
  }
}

void zps_ofi_peer_fail(struct ofi_peer *peer, zps_err_t code, const char *fmt, ...) {
  struct ofi_net *net = ofi_net_of(peer->base.net);
  if (peer->state != OFI_PEER_LIVE) return;
  peer->state = OFI_PEER_FAILED;
  peer->error = code;
  const int n = snprintf(peer->error_text, sizeof peer->error_text, "peer %s: ", peer->addr->text);
  va_list args;
  va_start(args, fmt);
  vsnprintf(peer->error_text + n, sizeof peer->error_text - (size_t)n, fmt, args);
  va_end(args);
  zps_log_debug("%s", peer->error_text);
  peer_silence(peer);
  reads_lose(net, &peer->queued, OFI_READ_LOST);
  TAILQ_INSERT_TAIL(&net->errors, peer, error_link);
  peer->in_errors = true;
}

unsigned zps_ofi_peer_report(struct ofi_net *net) {
  unsigned n = 0;
  struct ofi_peer *peer;
  while ((peer = TAILQ_FIRST(&net->errors))) {
    TAILQ_REMOVE(&net->errors, peer, error_link);
    peer->in_errors = false;
    n++;
    net->base.handler.on_peer_error(net->base.handler.ctx, &peer->base, peer->error, peer->error_text);
  }
  return n;
}

void zps_ofi_peers_shut(struct ofi_net *net) {
  struct zps_net_read *read;
  struct ofi_peer *peer, *next;
  for (peer = LIST_FIRST(&net->peers); peer; peer = next) {
    next = LIST_NEXT(peer, all_link);
    zps_ofi_peer_fail(peer, ZPS_ERR_CLOSED, "this process has shut its endpoint");
    reads_lose(net, &peer->posted, OFI_READ_LOST);
    peer->n_posted = peer->n_reads = peer->n_sends = 0;
    if (peer->state == OFI_PEER_EVICTED) zps_ofi_peer_free(peer);
  }
  for (read = net->failed.first; read; read = read->next)
    if (read->state == OFI_READ_LOST_IN_FLIGHT) read->state = OFI_READ_LOST;
  net->n_reads = net->n_sends = net->n_sends_stuck = 0;
  net->base.counters.quarantined = 0;
}

void zps_ofi_peer_evict(struct zps_net_peer *net_peer) {
  struct ofi_peer *peer = ofi_peer_of(net_peer);
  struct ofi_net *net = ofi_net_of(net_peer->net);
  if (peer->state == OFI_PEER_EVICTED) return;
  if (peer->in_errors) TAILQ_REMOVE(&net->errors, peer, error_link);
  peer->in_errors = false;
  peer->state = OFI_PEER_EVICTED;
  peer_silence(peer);
  net->n_live--;
  net->n_sends_stuck += peer->n_sends;
  zps_log_debug("peer %s evicted with %u operations at the fabric", peer->addr->text, peer->n_posted);
  reads_lose(net, &peer->queued, OFI_READ_LOST);
  net->base.counters.quarantined += peer->n_reads;
  reads_lose(net, &peer->posted, OFI_READ_LOST_IN_FLIGHT);
  if (peer->n_posted == 0) zps_ofi_peer_free(peer);
}

/* Operations of the old connection end later, with errors that say nothing of the new one. */
void zps_ofi_peer_renew(struct zps_net_peer *net_peer) {
  struct ofi_peer *peer = ofi_peer_of(net_peer);
  const struct ofi_net *net = ofi_net_of(net_peer->net);
  if (peer->state != OFI_PEER_FAILED || peer->in_errors || net->shut || net->closing) return;
  peer->state = OFI_PEER_LIVE;
  peer->life++;
  peer->addr->is_to_end = false; /* the connection that was to end is gone */
}

/* Many links may find their peers silent at once: one pass over the sockets does for all. */
void zps_ofi_peer_cut(struct zps_net_peer *net_peer) {
  const struct ofi_peer *peer = ofi_peer_of(net_peer);
  struct ofi_net *net = ofi_net_of(net_peer->net);
  if (net->shut || net->closing || !peer->addr->forked.is_listed) return;
  peer->addr->is_to_end = true;
  if (net->end_at_ns == ZPS_NEVER) net->end_at_ns = net->may_end_at_ns;
}

/* Libfabric has no call for it. Its sockets are found by their addresses. An inbound socket shows the peer's host, and
 * not its port. So all inbound connections from that host end. */
void zps_ofi_end_cut(struct ofi_net *net, uint64_t now_ns) {
  const struct zps_forked *ended[ENDED_MAX];
  unsigned n_ended = 0;
  struct ofi_addr *addr;
  if (now_ns < net->end_at_ns || net->shut) return;
  net->end_at_ns = ZPS_NEVER;
  SLIST_FOREACH(addr, &net->addrs, link) {
    if (!addr->is_to_end) continue;
    if (n_ended == ENDED_MAX) break;
    addr->is_to_end = false;
    ended[n_ended++] = &addr->forked;
  }
  if (n_ended == 0) return;
  const uint64_t began_ns = zps_ofi_used_ns();
  zps_forked_end_peers(&net->forked, ended, n_ended);
  net->may_end_at_ns = now_ns + PASS_COST * (zps_ofi_used_ns() - began_ns);
  if (addr) net->end_at_ns = net->may_end_at_ns;
}
