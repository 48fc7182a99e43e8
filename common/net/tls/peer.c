/* Peers: who connects, failure, eviction. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

static void connect_or_wait(struct tlsnet_peer *peer) {
  struct tlsnet *const net = tlsnet_of(peer->base.net);
  peer->deadline_ns = ZPS_NEVER;
  if (peer->dials) {
    zps_tlsnet_dial(peer);
    return;
  }
  struct tlsnet_conn *const conn = zps_tlsnet_conns_know(net, &peer->address);
  if (conn)
    zps_tlsnet_conn_attach(conn, peer);
  else
    zps_tlsnet_deadline_set(net, &peer->deadline_ns, zps_clock_ns() + net->connect_timeout_ns);
}

zps_err_t zps_tlsnet_peer_add(struct zps_net *base, const void *addr, size_t len, void *ctx,
                              struct zps_net_peer **peer_p, struct zps_error *error) {
  struct tlsnet *const net = tlsnet_of(base);
  struct tlsnet_address address;
  bool dials_servers;
  if (net->shut) return zps_fail(error, ZPS_ERR_CLOSED, "the endpoint %s is shut", base->info.address);
  const zps_err_t err = zps_tlsnet_address_read(addr, len, &address, &dials_servers, error);
  if (err) return err;
  struct tlsnet_peer *const peer = calloc(1, sizeof *peer);
  if (!peer) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a peer");
  peer->base = (struct zps_net_peer){.net = base, .ctx = ctx};
  peer->address = address;
  zps_tlsnet_address_text(&address.at, peer->text, sizeof peer->text);
  peer->dials = net->dials || !dials_servers;
  peer->is_rank = dials_servers;
  peer->slot = net->next_slot++;
  STAILQ_INIT(&peer->sends);
  LIST_INSERT_HEAD(&net->peers, peer, all_link);
  connect_or_wait(peer);
  *peer_p = &peer->base;
  return ZPS_OK;
}

/* Nothing leaves to it any more, and what was asked of it is lost. */
static void silence(struct tlsnet_peer *peer) {
  struct tlsnet *const net = tlsnet_of(peer->base.net);
  struct tlsnet_conn *const conn = peer->conn;
  struct tlsnet_message *message;
  struct zps_net_read *read;
  while ((message = STAILQ_FIRST(&peer->sends)) != NULL) {
    STAILQ_REMOVE_HEAD(&peer->sends, link);
    free(message);
  }
  peer->n_sends = peer->n_out = 0;
  peer->deadline_ns = ZPS_NEVER;
  for (struct tlsnet_conn *on = conn; on; on = zps_tlsnet_conn_next(on)) zps_tlsnet_asked_lose(on, peer);
  while ((read = zps_net_read_pop(&peer->reads)) != NULL) zps_tlsnet_read_lose(net, read);
  zps_tlsnet_came_lose(net, peer);
  if (conn) LIST_REMOVE(peer, conn_link);
  if (conn) zps_tlsnet_offers_drop(conn); /* those that others still want are asked for */
  peer->conn = NULL;
}

void zps_tlsnet_peer_fail(struct tlsnet_peer *peer, zps_err_t code, const char *text) {
  struct tlsnet *const net = tlsnet_of(peer->base.net);
  if (peer->state == TLSNET_PEER_FAILED) return;
  silence(peer);
  peer->state = TLSNET_PEER_FAILED;
  peer->error = code;
  snprintf(peer->error_text, sizeof peer->error_text, "peer %s: %.150s", peer->text, text);
  zps_log_debug("%s", peer->error_text);
  TAILQ_INSERT_TAIL(&net->errors, peer, error_link);
  peer->in_errors = true;
}

unsigned zps_tlsnet_peer_report(struct tlsnet *net) {
  unsigned n = 0;
  struct tlsnet_peer *peer;
  for (; (peer = TAILQ_FIRST(&net->errors)) != NULL; n++) {
    TAILQ_REMOVE(&net->errors, peer, error_link);
    peer->in_errors = false;
    net->base.handler.on_peer_error(net->base.handler.ctx, &peer->base, peer->error, peer->error_text);
  }
  return n;
}

/* The end that dialled ends a connection that nobody uses. */
void zps_tlsnet_peer_evict(struct zps_net_peer *net_peer) {
  struct tlsnet_peer *const peer = tlsnet_peer_of(net_peer);
  struct tlsnet *const net = tlsnet_of(net_peer->net);
  struct tlsnet_conn *const conn = peer->conn;
  silence(peer);
  if (peer->in_errors) TAILQ_REMOVE(&net->errors, peer, error_link);
  LIST_REMOVE(peer, all_link);
  zps_tlsnet_conns_know(net, &peer->address);
  zps_tlsnet_conns_serve_none(net);
  if (conn && conn->is_dialled && LIST_EMPTY(&conn->peers)) zps_tlsnet_conn_end(conn, ZPS_ERR_CLOSED, "it is not used");
  free(peer);
}

void zps_tlsnet_peer_renew(struct zps_net_peer *net_peer) {
  struct tlsnet_peer *const peer = tlsnet_peer_of(net_peer);
  const struct tlsnet *const net = tlsnet_of(net_peer->net);
  if (peer->state != TLSNET_PEER_FAILED || peer->in_errors || net->shut || net->closing) return;
  peer->state = TLSNET_PEER_LIVE;
  connect_or_wait(peer);
}

void zps_tlsnet_peer_cut(struct zps_net_peer *net_peer) {
  struct tlsnet_peer *const peer = tlsnet_peer_of(net_peer);
  if (peer->conn) zps_tlsnet_conn_end(peer->conn, ZPS_ERR_PEER_LOST, "this end has ended the connection");
}
