/*
 * Payloads on long links: the first bytes of announced memory are sent ahead, without a question.
 *
 * A read gets an offer's bytes only if all messages of the other end come over the offer's connection. Then each
 * announcement comes behind an OFFER of its own, and that replaces earlier offers of these bytes. So no read gets
 * bytes older than its announcement.
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

#define LOOK_NS ZPS_NS_PER_S /* between two looks at how long a path is */
#define INITIAL_CWND 10u     /* packets */
#define QUEUE_US 200000u     /* so long a message may wait behind bytes ahead, beside the trip */

static struct tlsnet_ahead *ahead_of(struct tlsnet_conn *conn) {
  if (conn->ahead) return conn->ahead;
  struct tlsnet_ahead *const ahead = calloc(1, sizeof *ahead);
  if (!ahead) return NULL;
  TAILQ_INIT(&ahead->offers);
  ahead->held.most_bytes = TLSNET_AHEAD_MAX;
  return conn->ahead = ahead;
}

/* ---- out ---- */

/* Between ranks, and between servers, each end has a connection of its own: messages come over one, and reads are asked
 * over the other. */
static bool shares_connection(const struct tlsnet_peer *peer) {
  return tlsnet_of(peer->base.net)->dials != peer->is_rank;
}

static struct tcp_info path_of(const struct tlsnet_conn *conn) {
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  if (getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0) info = (struct tcp_info){0};
  return info;
}

/* The shortest round trip of late: queues and busy processors do not count. */
static bool is_long(struct tlsnet_conn *conn) {
  const uint64_t now_ns = zps_clock_ns();
  if (now_ns < conn->path_ns) return conn->is_long;
  const uint32_t trip_us = path_of(conn).tcpi_min_rtt;
  conn->path_ns = now_ns + LOOK_NS;
  conn->is_long = trip_us != UINT32_MAX && trip_us >= conn->net->long_trip_us;
  return conn->is_long;
}

static bool overlap(uint64_t key, uint64_t at, uint64_t len, const struct tlsnet_offer *by) {
  return by->len == 0 || (key == by->key && at < by->at + by->len && by->at < at + len);
}

/* As many bytes as TCP takes on the way now, and the path carries soon. Later ones could not leave before a question is
 * here, and are asked for over all connections. */
static uint64_t path_bytes(const struct tcp_info *path, bool has_bbr) {
  uint64_t cwnd = path->tcpi_snd_cwnd, idle_us = path->tcpi_last_data_sent * 1000ull;
  /* The kernel shrinks the window after a pause, but not before it sends. */
  for (; !has_bbr && path->tcpi_unacked == 0 && idle_us > path->tcpi_rto && path->tcpi_rto > 0 && cwnd > INITIAL_CWND;
       idle_us -= path->tcpi_rto)
    cwnd = cwnd / 2 > INITIAL_CWND ? cwnd / 2 : INITIAL_CWND;
  uint64_t most = cwnd * path->tcpi_snd_mss;
  if (path->tcpi_delivery_rate > 0 && !path->tcpi_delivery_rate_app_limited) {
    const double soon = (double)path->tcpi_delivery_rate * (path->tcpi_min_rtt + QUEUE_US) / 1e6;
    if (soon < (double)most) most = (uint64_t)soon;
  }
  return most;
}

static uint32_t bytes_ahead(const struct tlsnet_conn *conn, const struct tlsnet_offer *offer) {
  const struct tlsnet_ahead *const ahead = conn->ahead;
  if (conn->is_doubled || ahead->n_out == TLSNET_OFFERS_MAX) return 0;
  const struct tcp_info path = path_of(conn);
  uint64_t most = path_bytes(&path, conn->net->has_bbr);
  uint64_t used = (uint64_t)path.tcpi_unacked * path.tcpi_snd_mss + path.tcpi_notsent_bytes;
  for (unsigned i = 0; i < ahead->n_out; i++) used += ahead->out[(ahead->first_out + i) % TLSNET_OFFERS_MAX].len;
  most = most > used ? most - used : 0;
  if (most > TLSNET_AHEAD_MAX) most = TLSNET_AHEAD_MAX;
  if (most > offer->len) most = offer->len;
  return zps_tlsnet_region_bytes(conn->net, offer->key, offer->at, most) ? (uint32_t)most : 0;
}

/* Bytes of earlier offers that have not left would be of the new contents. */
static void offer_add(struct tlsnet_conn *conn, struct tlsnet_offer offer) {
  struct tlsnet_ahead *const ahead = conn->ahead;
  for (unsigned i = 0; i < ahead->n_out; i++) {
    struct tlsnet_outgoing *const out = &ahead->out[(ahead->first_out + i) % TLSNET_OFFERS_MAX];
    if (overlap(out->key, out->at, out->len, &offer)) out->is_void = true;
  }
  offer.ahead = offer.len > 0 && is_long(conn) ? bytes_ahead(conn, &offer) : 0;
  zps_tlsnet_offer_write(&offer, zps_tlsnet_frame_add(conn, TLSNET_OFFER, TLSNET_OFFER_BYTES));
  if (offer.ahead > 0)
    ahead->out[(ahead->first_out + ahead->n_out++) % TLSNET_OFFERS_MAX] =
        (struct tlsnet_outgoing){.key = offer.key, .at = offer.at, .len = offer.ahead};
  zps_tlsnet_conn_dirty(conn);
}

void zps_tlsnet_offer_put(struct tlsnet_conn *conn, const void *offer) {
  struct tlsnet_offer copy;
  memcpy(&copy, offer, sizeof copy);
  offer_add(conn, copy);
}

/* In front of all later messages. */
static void offer_send(struct tlsnet_peer *peer, const struct tlsnet_offer *offer) {
  struct tlsnet_conn *const conn = peer->conn;
  if (!conn->is_full && STAILQ_EMPTY(&peer->sends) && zps_tlsnet_frame_fits(conn, TLSNET_OFFER_BYTES))
    offer_add(conn, *offer);
  else if (!zps_tlsnet_message_queue(peer, TLSNET_OFFER, offer, sizeof *offer))
    zps_tlsnet_conn_end(conn, ZPS_ERR_NOMEM, "no memory to replace what was offered over it");
}

/* Once a connection has carried an offer, each announcement has one, though it may be of no bytes. */
void zps_tlsnet_offer(struct zps_net_peer *net_peer, uint64_t addr, uint64_t key, uint64_t len) {
  struct tlsnet_peer *const peer = tlsnet_peer_of(net_peer);
  struct tlsnet_conn *const conn = peer->conn;
  if (!conn || conn->state != TLSNET_OPEN || !shares_connection(peer)) return;
  if (!conn->has_offered && (conn->is_doubled || !is_long(conn) || !ahead_of(conn))) return;
  conn->has_offered = true;
  offer_send(peer, &(struct tlsnet_offer){.key = key, .at = addr, .len = len});
}

/* Its messages may be of memory that the connection's other peers have offered. */
void zps_tlsnet_offers_replace(struct tlsnet_peer *peer) {
  if (peer->conn->has_offered) offer_send(peer, &(struct tlsnet_offer){.len = 0});
}

/* Bytes leave behind the message that announces them: before it no read could take them. */
void zps_tlsnet_ahead_add(struct tlsnet_conn *conn) {
  struct tlsnet_ahead *const ahead = conn->ahead;
  size_t room;
  while (ahead && ahead->n_ready > 0 && (room = zps_tlsnet_frame_room(conn)) > 0) {
    struct tlsnet_outgoing *const out = &ahead->out[ahead->first_out];
    const uint32_t len = out->len < room ? out->len : (uint32_t)room;
    const uint8_t *const from = out->is_void ? NULL : zps_tlsnet_region_bytes(conn->net, out->key, out->at, out->len);
    uint8_t *const to = zps_tlsnet_frame_add(conn, TLSNET_AHEAD, from ? len : 0);
    if (from) memcpy(to, from, len);
    out->at += len;
    out->len -= len;
    if (from && out->len > 0) continue;
    ahead->first_out = (ahead->first_out + 1) % TLSNET_OFFERS_MAX;
    ahead->n_out--;
    ahead->n_ready--;
  }
}

/* ---- in ---- */

static uint32_t start_of(const struct tlsnet_incoming *in, const struct zps_net_read *read) {
  return (uint32_t)(read->addr - in->at);
}

/* ---- bytes that are kept ---- */

void zps_tlsnet_peer_keep(struct zps_net_peer *net_peer, struct zps_net_keep *keep) {
  tlsnet_peer_of(net_peer)->keep = keep;
}

static bool is_over(const struct zps_net_keep *keep, uint32_t n) {
  return keep && keep->most_bytes > 0 && keep->bytes + n > keep->most_bytes;
}

static void count_held(struct tlsnet_incoming *in, bool is_held) {
  const uint64_t n = in->len - in->base;
  struct zps_net_keep *const keeps[] = {&in->conn->ahead->held, &in->conn->net->keep, in->keep};
  for (unsigned i = 0; i < 3; i++)
    if (keeps[i]) keeps[i]->bytes += is_held ? n : 0 - n;
}

static void buf_free(struct tlsnet_incoming *in) {
  if (!in->buf) return;
  count_held(in, false);
  TAILQ_REMOVE(&in->conn->net->held, in, held_link);
  free(in->buf);
  in->buf = NULL;
}

/* Through with: all bytes have come, and were read or are not wanted. */
static void incoming_end(struct tlsnet_incoming *in) {
  if (in->is_dropped || in->claimed == in->len) buf_free(in);
  if (in->got < in->len || (!in->is_dropped && in->claimed < in->len)) return;
  TAILQ_REMOVE(&in->conn->ahead->offers, in, link);
  in->is_used = false;
}

static void incoming_drop(struct tlsnet_incoming *in) {
  in->is_dropped = true;
  incoming_end(in);
}

/* The oldest offers that hold bytes give way: of the connection, of what has the peer's bytes, or of all. */
static bool has_room(struct tlsnet_conn *conn, const struct zps_net_keep *keep, uint32_t n) {
  struct tlsnet *const net = conn->net;
  struct tlsnet_incoming *old, *next;
  for (old = TAILQ_FIRST(&net->held); old; old = next) {
    next = TAILQ_NEXT(old, held_link);
    if ((old->conn == conn && is_over(&conn->ahead->held, n)) || (old->keep == keep && is_over(keep, n)) ||
        is_over(&net->keep, n))
      incoming_drop(old);
  }
  return !is_over(&conn->ahead->held, n) && !is_over(keep, n) && !is_over(&net->keep, n);
}

/* False: there is no memory for it. */
static bool hold(struct tlsnet_incoming *in) {
  const struct tlsnet_peer *const peer = LIST_FIRST(&in->conn->peers);
  const uint32_t n = in->len - in->claimed;
  in->keep = peer ? peer->keep : NULL;
  in->buf = has_room(in->conn, in->keep, n) ? malloc(n) : NULL;
  if (!in->buf) return false;
  in->base = in->claimed;
  TAILQ_INSERT_TAIL(&in->conn->net->held, in, held_link);
  count_held(in, true);
  return true;
}

/* ---- offers ---- */

static struct tlsnet_incoming *oldest_incomplete(const struct tlsnet_conn *conn) {
  struct tlsnet_incoming *in;
  if (!conn->ahead) return NULL;
  TAILQ_FOREACH(in, &conn->ahead->offers, link) {
    if (in->got < in->len) return in;
  }
  return NULL;
}

static struct tlsnet_incoming *incoming_new(struct tlsnet_ahead *ahead) {
  struct tlsnet_incoming *in;
  for (unsigned i = 0; i < TLSNET_OFFERS_MAX; i++)
    if (!ahead->in[i].is_used) return &ahead->in[i];
  TAILQ_FOREACH(in, &ahead->offers, link) {
    if (in->got < in->len) continue;
    incoming_drop(in);
    return in;
  }
  return NULL;
}

void zps_tlsnet_offer_take(struct tlsnet_conn *conn) {
  struct tlsnet_ahead *const ahead = ahead_of(conn);
  struct tlsnet_incoming *in, *next;
  struct tlsnet_offer offer;
  struct zps_error error;
  if (!ahead) {
    zps_tlsnet_conn_end(conn, ZPS_ERR_NOMEM, "no memory for what it offers");
    return;
  }
  if (zps_tlsnet_offer_read(conn->in->body, &offer, &error) != ZPS_OK) {
    zps_tlsnet_conn_end(conn, error.code, "%s", error.text);
    return;
  }
  for (in = TAILQ_FIRST(&ahead->offers); in; in = next) {
    next = TAILQ_NEXT(in, link);
    if (overlap(in->key, in->at, in->len, &offer)) incoming_drop(in);
  }
  if (offer.ahead == 0) return;
  in = incoming_new(ahead);
  if (!in) {
    zps_tlsnet_conn_end(conn, ZPS_ERR_PROTOCOL, "has more than %u offers at a time", TLSNET_OFFERS_MAX);
    return;
  }
  *in = (struct tlsnet_incoming){
      .is_used = true,
      .conn = conn,
      .key = offer.key,
      .at = offer.at,
      .len = offer.ahead,
      .is_dropped = conn->is_doubled || LIST_EMPTY(&conn->peers) /* nobody reads */
  };
  TAILQ_INSERT_TAIL(&ahead->offers, in, link);
}

zps_err_t zps_tlsnet_ahead_check(const struct tlsnet_conn *conn, uint32_t len, struct zps_error *error) {
  const struct tlsnet_incoming *const in = oldest_incomplete(conn);
  if (!in) return zps_fail(error, ZPS_ERR_PROTOCOL, "sends bytes of an offer that it has not made");
  if (len > in->len - in->got)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "sends %u bytes of an offer that lacks %u", len, in->len - in->got);
  return ZPS_OK;
}

void *zps_tlsnet_ahead_place(struct tlsnet_conn *conn, size_t *len_p) {
  struct tlsnet_incoming *const in = oldest_incomplete(conn);
  const struct zps_net_read *const read = in->reads.first;
  const uint32_t next = read ? start_of(in, read) : in->claimed; /* bytes before it, if any, are of a read given up */
  size_t most = conn->net->base.info.max_msg;
  uint8_t *to = conn->in->body;
  if (read && next <= in->got) {
    most = read->len - (in->got - next);
    to = (uint8_t *)read->local + (in->got - next);
  } else if (in->got < next) {
    if (most > next - in->got) most = next - in->got;
  } else if (!in->is_dropped && (in->buf || hold(in))) {
    most = in->len - in->got;
    to = in->buf + (in->got - in->base);
  } else {
    in->is_dropped = true;
  }
  if (*len_p > most) *len_p = most;
  return to;
}

void zps_tlsnet_ahead_came(struct tlsnet_conn *conn, size_t len) {
  struct tlsnet_incoming *const in = oldest_incomplete(conn);
  in->got += (uint32_t)len;
  while (in->reads.first && start_of(in, in->reads.first) + in->reads.first->len <= in->got)
    zps_tlsnet_read_came(conn->net, zps_net_read_pop(&in->reads));
  incoming_end(in);
}

void zps_tlsnet_ahead_withdrawn(struct tlsnet_conn *conn) {
  struct tlsnet_incoming *const in = oldest_incomplete(conn);
  struct zps_net_read *read;
  while ((read = zps_net_read_pop(&in->reads)) != NULL) zps_tlsnet_read_queue(tlsnet_peer_of(read->peer), read);
  incoming_drop(in);
  in->len = in->got;
  incoming_end(in);
}

static struct tlsnet_incoming *offer_of(const struct tlsnet_conn *conn, uint64_t addr, uint64_t key) {
  struct tlsnet_incoming *in;
  if (!conn || !conn->ahead) return NULL;
  TAILQ_FOREACH(in, &conn->ahead->offers, link) {
    if (in->key == key && !in->is_dropped && in->claimed < in->len && addr == in->at + in->claimed) return in;
  }
  return NULL;
}

uint64_t zps_tlsnet_offered(const struct zps_net_peer *net_peer, uint64_t addr, uint64_t key) {
  const struct tlsnet_incoming *const in = offer_of(((const struct tlsnet_peer *)net_peer)->conn, addr, key);
  return in ? in->len - in->claimed : 0;
}

bool zps_tlsnet_ahead_read(struct tlsnet_conn *conn, struct zps_net_read *read) {
  struct tlsnet_incoming *const in = offer_of(conn, read->addr, read->key);
  if (!in || read->len > in->len - in->claimed) return false;
  const uint32_t come = in->got > in->claimed ? in->got - in->claimed : 0;
  const uint32_t here = come < read->len ? come : (uint32_t)read->len;
  if (here > 0) memcpy(read->local, in->buf + (in->claimed - in->base), here);
  in->claimed += (uint32_t)read->len;
  read->is_offered = true;
  read->here = here;
  read->state = TLSNET_READ_ASKED;
  if (here == read->len)
    zps_tlsnet_read_came(conn->net, read);
  else
    zps_net_read_push(&in->reads, read);
  incoming_end(in);
  return true;
}

void zps_tlsnet_ahead_lose(struct tlsnet_conn *conn, const struct tlsnet_peer *of) {
  struct tlsnet_incoming *in;
  if (!conn->ahead) return;
  TAILQ_FOREACH(in, &conn->ahead->offers, link) {
    struct zps_net_read_list reads = in->reads;
    struct zps_net_read *read;
    in->reads = (struct zps_net_read_list){0};
    while ((read = zps_net_read_pop(&reads)) != NULL) {
      if (read->peer == &of->base)
        zps_tlsnet_read_lose(conn->net, read);
      else
        zps_net_read_push(&in->reads, read);
    }
  }
}

void zps_tlsnet_offers_drop(struct tlsnet_conn *conn) {
  struct tlsnet_incoming *in, *next;
  if (!conn->ahead) return;
  for (unsigned i = 0; i < conn->ahead->n_out; i++)
    conn->ahead->out[(conn->ahead->first_out + i) % TLSNET_OFFERS_MAX].is_void = true;
  for (in = TAILQ_FIRST(&conn->ahead->offers); in; in = next) {
    next = TAILQ_NEXT(in, link);
    incoming_drop(in);
  }
}

void zps_tlsnet_ahead_declined(struct tlsnet_conn *conn) {
  conn->is_doubled = true;
  zps_tlsnet_offers_drop(conn);
}

void zps_tlsnet_ahead_double(struct tlsnet_conn *conn) {
  conn->must_decline |= !conn->is_doubled;
  zps_tlsnet_ahead_declined(conn);
  zps_tlsnet_conn_dirty(conn);
}

uint64_t zps_tlsnet_ahead_missing(const struct tlsnet_conn *conn) {
  const struct tlsnet_incoming *in;
  uint64_t n = 0;
  if (!conn->ahead) return 0;
  TAILQ_FOREACH(in, &conn->ahead->offers, link) n += in->len - in->got;
  return n;
}

void zps_tlsnet_ahead_free(struct tlsnet_conn *conn) {
  if (!conn->ahead) return;
  for (unsigned i = 0; i < TLSNET_OFFERS_MAX; i++)
    if (conn->ahead->in[i].is_used) buf_free(&conn->ahead->in[i]);
  free(conn->ahead);
}
