/* Opening, shutting and closing an endpoint of the encrypted fabric. */
#include <stdlib.h>
#include <unistd.h>

#include "common/base/config.h"
#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { DRAIN_MS = 100 };

/* Messages wait in the sockets: nothing is posted. */
static zps_err_t tlsnet_reserve(struct zps_net *base, int count) {
  struct tlsnet *const net = tlsnet_of(base);
  if (net->n_reserved + count < 0) return ZPS_ERR_INVALID;
  net->n_reserved += count;
  return ZPS_OK;
}

static void listener_close(struct tlsnet *net) {
  if (net->listen_fd < 0) return;
  zps_forked_forget(&net->listen_forked);
  close(net->listen_fd);
  net->listen_fd = -1;
  net->accept_at_ns = ZPS_NEVER;
}

static void tlsnet_shut(struct zps_net *base) {
  struct tlsnet *const net = tlsnet_of(base);
  struct tlsnet_conn *conn;
  struct tlsnet_peer *peer;
  if (net->shut) return;
  net->shut = true;
  listener_close(net);
  while ((conn = LIST_FIRST(&net->conns)) != NULL)
    zps_tlsnet_conn_end(conn, ZPS_ERR_CLOSED, "this process has shut its endpoint");
  LIST_FOREACH(peer, &net->peers, all_link)
  zps_tlsnet_peer_fail(peer, ZPS_ERR_CLOSED, "this process has shut its endpoint");
}

static bool has_unsent(const struct tlsnet *net) {
  const struct tlsnet_conn *conn;
  LIST_FOREACH(conn, &net->conns, all_link) {
    if (conn->state == TLSNET_OPEN && (conn->out_len > 0 || conn->is_dirty)) return true;
  }
  return false;
}

/* Lets sent messages leave, for a short while. */
static void drain(struct tlsnet *net) {
  const uint64_t until_ns = zps_clock_ns() + DRAIN_MS * ZPS_NS_PER_MS;
  struct tlsnet_conn *conn;
  while (!net->shut && has_unsent(net) && zps_clock_ns() < until_ns) {
    LIST_FOREACH(conn, &net->conns, all_link) {
      if (conn->is_full) zps_tlsnet_conn_full(conn, false);
    }
    zps_tlsnet_wait(&net->base, ZPS_NS_PER_MS);
  }
}

static void net_free(struct tlsnet *net) {
  listener_close(net);
  zps_tlsnet_conns_close(net);
  zps_tlsnet_regions_free(net);
  if (net->wake_fd >= 0) close(net->wake_fd);
  if (net->epoll_fd >= 0) close(net->epoll_fd);
  zps_tls_unref(net->tls);
  free(net);
}

/* Reads that were lost before keep that word. */
static void tlsnet_close(struct zps_net *base) {
  struct tlsnet *const net = tlsnet_of(base);
  struct tlsnet_peer *peer;
  drain(net);
  net->closing = true;
  tlsnet_shut(base);
  zps_tlsnet_read_report(net);
  while ((peer = LIST_FIRST(&net->peers)) != NULL) zps_tlsnet_peer_evict(&peer->base);
  net_free(net);
}

static const struct zps_net_ops ops = {
    .close = tlsnet_close,
    .shut = tlsnet_shut,
    .reserve = tlsnet_reserve,
    .peer_add = zps_tlsnet_peer_add,
    .peer_evict = zps_tlsnet_peer_evict,
    .peer_renew = zps_tlsnet_peer_renew,
    .peer_cut = zps_tlsnet_peer_cut,
    .mem_register = zps_tlsnet_mem_register,
    .mem_release = zps_tlsnet_mem_release,
    .send = zps_tlsnet_send,
    .unsent = zps_tlsnet_unsent,
    .peer_connections = zps_tlsnet_connections,
    .offer = zps_tlsnet_offer,
    .offered = zps_tlsnet_offered,
    .peer_keep = zps_tlsnet_peer_keep,
    .read = zps_tlsnet_read,
    .progress = zps_tlsnet_progress,
    .wait = zps_tlsnet_wait,
    .wake = zps_tlsnet_wake,
};

zps_err_t zps_net_tls_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                           struct zps_net **net_p, struct zps_error *error) {
  if (!config->tls)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "provider \"tls\" encrypts gradients, and needs certificates: set tls.ca, tls.cert and tls.key "
                    "(ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY for ranks; zenpsctl certs makes the files)");
  if (config->connections > ZPS_NET_CONNECTIONS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "%s is %u: a peer has 1 to %u connections",
                    zps_config_label("fabric.connections"), config->connections, ZPS_NET_CONNECTIONS_MAX);
  if (config->auth_key_file)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "provider tls does not take the key of %s",
                    zps_config_label("fabric.auth_key"));
  struct tlsnet *const net = calloc(1, sizeof *net);
  if (!net) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for an endpoint of the encrypted fabric");
  net->base.ops = &ops;
  net->base.handler = *handler;
  net->base.info.max_msg = config->max_msg;
  net->tls = zps_tls_ref(config->tls);
  net->dials = config->dials;
  net->connect_timeout_ns =
      (config->connect_timeout_ms ? config->connect_timeout_ms : ZPS_NET_CONNECT_TIMEOUT_MS) * ZPS_NS_PER_MS;
  net->spin_ns = config->spin_us * 1000ull;
  net->long_trip_us = TLSNET_LONG_TRIP_US;
  net->keepalive_s = (config->keepalive_ms + 999) / 1000;
  net->n_connections = config->connections > 0 ? config->connections : 1;
  net->n_reserved = config->n_recv;
  net->epoll_fd = net->wake_fd = net->listen_fd = -1;
  net->next_deadline_ns = net->accept_at_ns = ZPS_NEVER;
  net->keep.most_bytes = config->memory_limit_bytes / ZPS_NET_KEEP_PART;
  net->base.info.offers = true;
  TAILQ_INIT(&net->held);
  TAILQ_INIT(&net->ready);
  TAILQ_INIT(&net->dirty);
  TAILQ_INIT(&net->errors);
  zps_err_t err = zps_tlsnet_wait_open(net, error);
  if (!err) err = zps_tlsnet_listen(net, config, error);
  if (err) {
    net_free(net);
    return err;
  }
  zps_log_info("fabric tls on %s at %s, %s%s", net->base.info.domain, net->base.info.address, net->base.info.why,
               net->dials ? ", dials servers" : "");
  *net_p = &net->base;
  return ZPS_OK;
}
