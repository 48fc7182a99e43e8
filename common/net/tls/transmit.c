/* Outgoing frames. Messages come first, then questions, then answers, as much as makes one record. Questions go
 * over any connection of their link. */
#include <stdlib.h>
#include <string.h>

#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { BYTES_PER_TURN = 1 << 20, DATA_LEAST = 1024, FEW_BYTES = 48 << 10 };

static size_t room(const struct tlsnet_conn *conn) {
  return conn->out_len < TLSNET_OUT_MAX ? TLSNET_OUT_MAX - conn->out_len : 0;
}

size_t zps_tlsnet_frame_room(const struct tlsnet_conn *conn) {
  return room(conn) >= TLSNET_HEAD_BYTES + DATA_LEAST ? room(conn) - TLSNET_HEAD_BYTES : 0;
}

/* The largest message fits into an empty buffer. */
bool zps_tlsnet_frame_fits(const struct tlsnet_conn *conn, size_t len) {
  return TLSNET_HEAD_BYTES + len <= room(conn) || conn->out_len == 0;
}

uint8_t *zps_tlsnet_frame_add(struct tlsnet_conn *conn, enum tlsnet_frame_type type, size_t len) {
  uint8_t *const at = conn->out + conn->out_len;
  zps_tlsnet_head_write(type, len, at);
  conn->out_len += TLSNET_HEAD_BYTES + len;
  return at + TLSNET_HEAD_BYTES;
}

/* ---- messages ---- */

static void message_add(struct tlsnet_conn *conn, struct tlsnet_peer *peer, const void *data, size_t len) {
  uint8_t *const to = zps_tlsnet_frame_add(conn, TLSNET_MESSAGE, len);
  if (len > 0) memcpy(to, data, len);
  if (conn->ahead) conn->ahead->n_ready = conn->ahead->n_out;
  peer->n_out++;
  peer->base.net->counters.msgs_sent++;
  peer->base.net->counters.msg_bytes_sent += len;
}

static void messages_add(struct tlsnet_conn *conn, struct tlsnet_peer *peer) {
  struct tlsnet_message *message;
  while ((message = STAILQ_FIRST(&peer->sends)) != NULL && zps_tlsnet_frame_fits(conn, message->len)) {
    STAILQ_REMOVE_HEAD(&peer->sends, link);
    if (message->type == TLSNET_OFFER) {
      zps_tlsnet_offer_put(conn, message->data);
    } else {
      peer->n_sends--;
      message_add(conn, peer, message->data, message->len);
    }
    free(message);
  }
}

unsigned zps_tlsnet_unsent(const struct zps_net_peer *net_peer) {
  const struct tlsnet_peer *const peer = (const struct tlsnet_peer *)net_peer;
  return peer->n_sends + peer->n_out;
}

unsigned zps_tlsnet_connections(const struct zps_net_peer *net_peer) {
  const struct tlsnet_peer *const peer = (const struct tlsnet_peer *)net_peer;
  unsigned n = 0;
  for (const struct tlsnet_conn *conn = peer->conn; conn; conn = zps_tlsnet_conn_next(conn))
    n += conn->state == TLSNET_OPEN;
  return n > 0 ? n : 1;
}

static zps_err_t push_back(struct tlsnet *net) {
  net->base.counters.again++;
  net->pushed_back = true;
  return ZPS_ERR_AGAIN;
}

bool zps_tlsnet_message_queue(struct tlsnet_peer *peer, enum tlsnet_frame_type type, const void *data, size_t len) {
  struct tlsnet_message *const message = malloc(sizeof *message + len);
  if (!message) return false;
  message->type = type;
  message->len = len;
  if (len > 0) memcpy(message->data, data, len);
  STAILQ_INSERT_TAIL(&peer->sends, message, link);
  return true;
}

zps_err_t zps_tlsnet_send(struct zps_net_peer *net_peer, const void *data, size_t len) {
  struct tlsnet_peer *const peer = tlsnet_peer_of(net_peer);
  struct tlsnet *const net = tlsnet_of(net_peer->net);
  struct tlsnet_conn *const conn = peer->conn;
  if (net->closing) return ZPS_ERR_CLOSED;
  if (peer->state == TLSNET_PEER_FAILED) return peer->in_errors ? ZPS_OK : ZPS_ERR_PEER_LOST;
  if (zps_tlsnet_unsent(net_peer) >= ZPS_NET_SENDS_MAX) return push_back(net);
  if (conn && conn->state == TLSNET_OPEN && !conn->is_full && STAILQ_EMPTY(&peer->sends) &&
      zps_tlsnet_frame_fits(conn, len)) {
    message_add(conn, peer, data, len);
  } else {
    if (!zps_tlsnet_message_queue(peer, TLSNET_MESSAGE, data, len)) return push_back(net);
    peer->n_sends++;
  }
  if (conn) zps_tlsnet_conn_dirty(conn);
  return ZPS_OK;
}

/* ---- reads of ours ---- */

void zps_tlsnet_read_queue(struct tlsnet_peer *peer, struct zps_net_read *read) {
  read->state = TLSNET_READ_QUEUED;
  zps_net_read_push(&peer->reads, read);
  for (struct tlsnet_conn *conn = peer->conn; conn; conn = zps_tlsnet_conn_next(conn)) zps_tlsnet_conn_dirty(conn);
}

zps_err_t zps_tlsnet_read(struct zps_net_peer *net_peer, struct zps_net_read *read) {
  struct tlsnet_peer *const peer = tlsnet_peer_of(net_peer);
  struct tlsnet *const net = tlsnet_of(net_peer->net);
  if (net->closing) return ZPS_ERR_CLOSED;
  read->peer = net_peer;
  if (peer->state == TLSNET_PEER_FAILED) {
    zps_tlsnet_read_lose(net, read);
    return ZPS_OK;
  }
  if (!zps_tlsnet_ahead_read(peer->conn, read)) zps_tlsnet_read_queue(peer, read);
  return ZPS_OK;
}

static bool takes_question(const struct tlsnet_conn *conn) {
  return conn->state == TLSNET_OPEN && !conn->is_full && conn->asked.n < TLSNET_READS_MAX &&
         room(conn) >= TLSNET_HEAD_BYTES + TLSNET_READ_BYTES;
}

/* Of the connections of a link, the first one with few bytes to come, else the one with the fewest; NULL: none takes a
 * question now. A connection that the network slows down has more, and gets no more reads meanwhile. A small round
 * needs few connections, which then have large TCP windows: over all of them each would begin with a small one. */
static struct tlsnet_conn *least_asked(struct tlsnet_conn *first) {
  struct tlsnet_conn *conn, *least = NULL;
  uint64_t least_bytes = 0;
  for (conn = first; conn; conn = zps_tlsnet_conn_next(conn)) {
    if (!takes_question(conn)) continue;
    const uint64_t bytes = conn->asked.bytes + zps_tlsnet_ahead_missing(conn);
    if (bytes < FEW_BYTES) return conn;
    if (!least || bytes < least_bytes) {
      least = conn;
      least_bytes = bytes;
    }
  }
  return least;
}

static void question_add(struct tlsnet_conn *conn, struct zps_net_read *read) {
  const struct tlsnet_ask ask = {.key = read->key, .at = read->addr, .len = (uint32_t)read->len};
  zps_tlsnet_ask_write(&ask, zps_tlsnet_frame_add(conn, TLSNET_READ, TLSNET_READ_BYTES));
  read->state = TLSNET_READ_ASKED;
  conn->asked.bytes += ask.len;
  conn->asked.ring[(conn->asked.first + conn->asked.n++) % TLSNET_READS_MAX] =
      (struct tlsnet_asked){.read = read, .len = ask.len};
  if (conn->asked.n == 1) zps_tlsnet_await_answer(conn);
  zps_tlsnet_conn_dirty(conn);
}

static void questions_add(struct tlsnet_conn *first) {
  struct tlsnet_peer *peer;
  LIST_FOREACH(peer, &first->peers, conn_link) {
    struct tlsnet_conn *conn;
    while (peer->reads.first && (conn = least_asked(first)) != NULL) question_add(conn, zps_net_read_pop(&peer->reads));
  }
}

/* ---- reads of the other end: as much as there is room for, so that messages never wait long ---- */

static void answers_add(struct tlsnet_conn *conn) {
  size_t most;
  while (conn->served.n > 0 && (most = zps_tlsnet_frame_room(conn)) > 0) {
    struct tlsnet_ask *const ask = &conn->served.ring[conn->served.first];
    const size_t len = ask->len < most ? ask->len : most;
    const uint8_t *const from = len > 0 ? zps_tlsnet_region_bytes(conn->net, ask->key, ask->at, ask->len) : NULL;
    if (from)
      memcpy(zps_tlsnet_frame_add(conn, TLSNET_DATA, len), from, len);
    else
      zps_tlsnet_frame_add(conn, TLSNET_REFUSED, 0);
    ask->at += len;
    ask->len -= (uint32_t)len;
    if (from && ask->len > 0) continue;
    conn->served.first = (conn->served.first + 1) % TLSNET_READS_MAX;
    conn->served.n--;
  }
}

/* ---- all of it ---- */

static void fill(struct tlsnet_conn *conn) {
  struct tlsnet_peer *peer;
  LIST_FOREACH(peer, &conn->peers, conn_link) messages_add(conn, peer);
  if (conn->must_decline && !zps_tlsnet_is_stranger(conn) && zps_tlsnet_frame_fits(conn, 0)) {
    zps_tlsnet_frame_add(conn, TLSNET_DECLINE, 0);
    conn->must_decline = false;
  }
  questions_add(conn->first ? conn->first : conn);
  if (conn->ahead_is_next) zps_tlsnet_ahead_add(conn);
  answers_add(conn);
  zps_tlsnet_ahead_add(conn);
  conn->ahead_is_next = !conn->ahead_is_next;
}

static void emptied(struct tlsnet_conn *conn) {
  struct tlsnet_peer *peer;
  conn->out_len = conn->out_sent = 0;
  conn->room_ns = ZPS_NEVER;
  LIST_FOREACH(peer, &conn->peers, conn_link) peer->n_out = 0;
}

void zps_tlsnet_transmit(struct tlsnet_conn *conn) {
  for (size_t given = 0; conn->state == TLSNET_OPEN;) {
    struct zps_error error;
    size_t n = 0;
    if (given >= BYTES_PER_TURN) {
      zps_tlsnet_conn_dirty(conn);
      break;
    }
    if (conn->out_sent == 0) fill(conn);
    if (conn->out_len == 0) break;
    const zps_err_t err =
        zps_tls_socket_write(conn->session, conn->out + conn->out_sent, conn->out_len - conn->out_sent, &n, &error);
    if (err != ZPS_OK) {
      zps_tlsnet_conn_end(conn, err == ZPS_ERR_CLOSED ? ZPS_ERR_PEER_LOST : err, "%s", error.text);
    } else if (n == 0) {
      zps_tlsnet_conn_full(conn, true);
      break;
    }
    conn->out_sent += n;
    given += n;
    if (conn->out_sent == conn->out_len) emptied(conn);
  }
}
