/* What comes over a connection: frames, one after the other. */
#include <stdio.h>

#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

/* So that no connection keeps the others waiting. Bytes are those of TLS; a frame takes one call or more. */
enum { BYTES_PER_TURN = 1 << 20, CALLS_PER_TURN = 4096 };

static struct tlsnet_asked *oldest_asked(struct tlsnet_conn *conn) {
  return conn->asked.n > 0 ? &conn->asked.ring[conn->asked.first] : NULL;
}

static void answer(struct tlsnet_conn *conn, zps_err_t code) {
  struct tlsnet *const net = conn->net;
  const struct tlsnet_asked *const asked = oldest_asked(conn);
  struct zps_net_read *const read = asked->read;
  conn->asked.bytes -= asked->len - asked->got;
  conn->asked.first = (conn->asked.first + 1) % TLSNET_READS_MAX;
  conn->asked.n--;
  zps_tlsnet_conn_dirty(conn); /* others may wait for this place */
  if (!read) return;
  if (code == ZPS_OK) {
    net->base.counters.reads++;
    net->base.counters.read_bytes += read->len;
  } else {
    zps_log_debug("%s: a read of %zu bytes at %llu is refused: it has no such memory", conn->text, read->len,
                  (unsigned long long)read->addr);
  }
  read->done(read, code);
}

/* ---- a head: may such a frame come now? ---- */

static zps_err_t check_frame(struct tlsnet_conn *conn, struct zps_error *error) {
  const struct tlsnet_head *const head = &conn->in->head;
  const struct tlsnet_asked *const asked = oldest_asked(conn);
  const bool says_who = head->type == TLSNET_HELLO;
  if (says_who == (conn->is_dialled || conn->is_named))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "sends a frame of type %u %s", head->type,
                    says_who ? "though it is known" : "before it has said who it is");
  if (head->type == TLSNET_MESSAGE && conn->first)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "sends a message over a further connection: the first one carries them");
  if ((head->type == TLSNET_OFFER || head->type == TLSNET_AHEAD || head->type == TLSNET_DECLINE) && conn->first)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "speaks of offers over a further connection: the first one carries them");
  if (head->type == TLSNET_AHEAD) return zps_tlsnet_ahead_check(conn, head->len, error);
  if ((head->type == TLSNET_DATA || head->type == TLSNET_REFUSED) && !asked)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "answers a read that nobody has asked for");
  if (head->type == TLSNET_DATA && head->len > asked->len - asked->got)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "sends %u bytes of a read that lacks %u", head->len,
                    asked->len - asked->got);
  if (head->type == TLSNET_READ && zps_tlsnet_is_stranger(conn))
    return zps_fail(error, ZPS_ERR_CLOSED, "asks for bytes, and is no peer of this end");
  if (head->type == TLSNET_READ && conn->served.n == TLSNET_READS_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "asks for more than %u reads at a time", TLSNET_READS_MAX);
  return ZPS_OK;
}

/* ---- a whole frame ---- */

static void serve(struct tlsnet_conn *conn) {
  conn->served.ring[(conn->served.first + conn->served.n++) % TLSNET_READS_MAX] = zps_tlsnet_ask_read(conn->in->body);
  zps_tlsnet_conn_dirty(conn);
}

static void take_data(struct tlsnet_conn *conn) {
  struct tlsnet_asked *const asked = oldest_asked(conn);
  asked->got += conn->in->head.len;
  conn->asked.bytes -= conn->in->head.len;
  if (asked->got == asked->len) answer(conn, ZPS_OK);
}

static void take_hello(struct tlsnet_conn *conn) {
  struct tlsnet_hello hello;
  struct zps_error error;
  if (zps_tlsnet_hello_read(conn->in->body, &hello, &error) == ZPS_OK)
    zps_tlsnet_conn_name(conn, &hello);
  else
    zps_tlsnet_conn_end(conn, error.code, "%s", error.text);
}

/* Returns the number of events for the owner. */
static unsigned take_frame(struct tlsnet_conn *conn) {
  struct tlsnet *const net = conn->net;
  const struct tlsnet_head head = conn->in->head;
  conn->in->got = 0;
  conn->in->has_head = false;
  if (!conn->is_heard) zps_tlsnet_conn_hear(conn);
  switch ((enum tlsnet_frame_type)head.type) {
    case TLSNET_HELLO:
      take_hello(conn);
      return 0;
    case TLSNET_MESSAGE:
      net->base.counters.msgs_received++;
      net->base.counters.msg_bytes_received += head.len;
      net->base.handler.on_message(net->base.handler.ctx, conn->in->body, head.len);
      return 1;
    case TLSNET_READ:
      serve(conn);
      return 0;
    case TLSNET_DATA:
      take_data(conn);
      return 1;
    case TLSNET_REFUSED:
      answer(conn, ZPS_ERR_FABRIC);
      return 1;
    case TLSNET_OFFER:
      zps_tlsnet_offer_take(conn);
      return 0;
    case TLSNET_AHEAD:
      if (head.len == 0) zps_tlsnet_ahead_withdrawn(conn);
      return 0;
    case TLSNET_DECLINE:
      zps_tlsnet_ahead_declined(conn);
      return 0;
  }
  return 0;
}

/* ---- bytes ---- */

/* Where the next bytes go, and how many of them. Those of a read that was given up go where the next message will. */
static void *next_bytes(struct tlsnet_conn *conn, size_t *len_p) {
  struct tlsnet_in *const in = conn->in;
  if (!in->has_head) {
    *len_p = TLSNET_HEAD_BYTES - in->got;
    return in->head_bytes + in->got;
  }
  *len_p = in->head.len - in->got;
  if (in->head.type == TLSNET_AHEAD) return zps_tlsnet_ahead_place(conn, len_p);
  if (in->head.type != TLSNET_DATA) return in->body + in->got;
  const struct tlsnet_asked *const asked = oldest_asked(conn);
  if (asked->read) return (uint8_t *)asked->read->local + asked->got + in->got;
  if (*len_p > conn->net->base.info.max_msg) *len_p = conn->net->base.info.max_msg;
  return in->body;
}

static zps_err_t take_head(struct tlsnet_conn *conn, struct zps_error *error) {
  struct tlsnet_in *const in = conn->in;
  const zps_err_t err = zps_tlsnet_head_read(in->head_bytes, conn->net->base.info.max_msg, &in->head, error);
  in->has_head = true;
  in->got = 0;
  return err ? err : check_frame(conn, error);
}

unsigned zps_tlsnet_receive(struct tlsnet_conn *conn) {
  struct tlsnet_in *const in = conn->in;
  unsigned n_events = 0;
  size_t n_bytes = 0;
  zps_tls_socket_allow(conn->session, BYTES_PER_TURN);
  for (unsigned n_calls = 0; conn->state == TLSNET_OPEN; n_calls++) {
    struct zps_error error = {0};
    size_t wanted, n = 0;
    if (n_calls == CALLS_PER_TURN) {
      zps_tlsnet_conn_ready(conn);
      break;
    }
    void *const to = next_bytes(conn, &wanted);
    zps_err_t err = zps_tls_socket_read(conn->session, to, wanted, &n, &error);
    if (err == ZPS_OK && n == 0) break;
    in->got += n;
    if (err == ZPS_OK && in->has_head && in->head.type == TLSNET_AHEAD) zps_tlsnet_ahead_came(conn, n);
    n_bytes += n;
    if (err == ZPS_OK && !in->has_head && in->got == TLSNET_HEAD_BYTES) err = take_head(conn, &error);
    if (err != ZPS_OK)
      zps_tlsnet_conn_end(conn, err == ZPS_ERR_CLOSED ? ZPS_ERR_PEER_LOST : err, "%s", error.text);
    else if (in->has_head && in->got == in->head.len)
      n_events += take_frame(conn);
  }
  if (conn->state == TLSNET_OPEN && conn->first && n_bytes > 0) zps_tlsnet_await_answer(conn);
  return n_events;
}
