/* A connection's bytes over TLS: between the socket and the lines. */
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "rpc"
#include "common/base/log.h"
#include "common/control/rpc_internal.h"

static bool is_alive(const struct zps_rpc_conn *conn) {
  return conn->state == ZPS_RPC_HELLO || conn->state == ZPS_RPC_OPEN;
}

/* What the session has for the peer, to the socket. */
static zps_err_t flush(struct zps_rpc_conn *conn) {
  char *bytes;
  size_t len;
  const zps_err_t code = zps_tls_send(conn->tls, &bytes, &len);
  if (code == ZPS_OK) return bytes ? zps_rpc_conn_write_raw(conn, bytes, len) : ZPS_OK;
  zps_rpc_conn_fail(conn, code, "%s: out of memory for what is to go over TLS", conn->peer);
  return code;
}

bool zps_rpc_tls_is_spoken(const struct zps_rpc_conn *conn) {
  return conn->handler.tls && conn->socket.handle.type == UV_TCP;
}

zps_err_t zps_rpc_tls_start(struct zps_rpc_conn *conn, struct zps_error *error) {
  if (conn->tls || !zps_rpc_tls_is_spoken(conn)) return ZPS_OK;
  const zps_err_t code = zps_tls_session_create(conn->handler.tls, conn->listener, &conn->tls, error);
  if (code == ZPS_OK && flush(conn) != ZPS_OK) return zps_fail(error, ZPS_ERR_CLOSED, "%s: closed", conn->peer);
  return code;
}

/* A last word in plain JSON, to a peer that reads it. */
static void answer_plainly(struct zps_rpc_conn *conn, const char *text) {
  zps_json *message = zps_message_error(NULL, ZPS_MESSAGE_BAD_REQUEST, ZPS_ERR_PROTOCOL, text);
  char *line = message ? zps_json_dump(message) : NULL;
  zps_json_unref(message);
  if (!line) return;
  const size_t len = strlen(line);
  line[len] = '\n'; /* in the place of its end */
  if (zps_rpc_conn_write_raw(conn, line, len + 1) != ZPS_OK) zps_log_debug("%s: has gone already", conn->peer);
}

/* The peer hears why: from TLS itself, in plain words where it speaks without, or in a last message if its certificate
 * is refused after the handshake, for which TLS has no word. */
static void end(struct zps_rpc_conn *conn, const struct zps_error *error) {
  if (!is_alive(conn)) return;
  if (conn->listener) zps_log_warn_limited("%s: refused: %s", conn->peer, error->text);
  if (conn->listener && conn->state == ZPS_RPC_OPEN && error->code == ZPS_ERR_REFUSED &&
      zps_rpc_conn_write(conn, zps_message_error(NULL, (int)error->code, error->code, error->text)) != ZPS_OK)
    zps_log_debug("%s: does not hear why", conn->peer);
  if (!is_alive(conn) || flush(conn) != ZPS_OK) return;
  if (conn->listener && zps_tls_peer_is_plain(conn->tls))
    answer_plainly(conn,
                   "TLS is spoken here: a client needs the files of an authority, a certificate and a key (tls.ca, "
                   "tls.cert and tls.key, or ZENPS_TLS_CA, ZENPS_TLS_CERT and ZENPS_TLS_KEY)");
  zps_rpc_conn_linger(conn, error->code, "%s: %s", conn->peer, error->text);
}

/* What has been received, as lines, until there are enough for one turn. */
static void take(struct zps_rpc_conn *conn, zps_err_t code, struct zps_error *error) {
  size_t n = 1;
  while (code == ZPS_OK && n > 0 && !conn->has_more && is_alive(conn)) {
    size_t room = 0;
    char *buf = zps_lines_room(&conn->lines, &room);
    code = buf ? zps_tls_read(conn->tls, buf, room, &n, error)
               : zps_fail(error, ZPS_ERR_NOMEM, "out of memory for a line");
    if (code != ZPS_OK || n == 0) break;
    zps_lines_added(&conn->lines, n);
    zps_rpc_conn_take_lines(conn);
  }
  if (code != ZPS_OK)
    end(conn, error);
  else if (is_alive(conn) && flush(conn) != ZPS_OK)
    zps_log_debug("%s: has gone already", conn->peer);
  /* The room was for a record: a peer that waits within its handshake needs none, and thousands may wait. */
  if (!conn->has_more) zps_lines_settle(&conn->lines);
}

void zps_rpc_tls_received(struct zps_rpc_conn *conn, const char *bytes, size_t len) {
  struct zps_error error;
  zps_err_t code = zps_rpc_tls_start(conn, &error);
  if (code != ZPS_OK) {
    zps_rpc_conn_fail(conn, code, "%s: %s", conn->peer, error.text);
    return;
  }
  code = zps_tls_take(conn->tls, bytes, len, &error); /* copies: `bytes` are in the room for lines */
  take(conn, code, &error);
}

void zps_rpc_tls_go_on(struct zps_rpc_conn *conn) {
  struct zps_error error;
  take(conn, ZPS_OK, &error);
}

bool zps_rpc_tls_is_unwanted(const struct zps_rpc_conn *conn, const char *bytes, size_t len) {
  return conn->state == ZPS_RPC_HELLO && conn->lines.start == conn->lines.end && zps_tls_is_greeting(bytes, len);
}

void zps_rpc_tls_refuse(struct zps_rpc_conn *conn) {
  static const char text[] = "speaks TLS, but without it is spoken here: it must not have tls.ca, tls.cert and tls.key";
  if (conn->listener) zps_log_warn_limited("%s: refused: %s", conn->peer, text);
  answer_plainly(conn, "plain JSON-RPC is spoken here, not TLS");
  zps_rpc_conn_linger(conn, ZPS_ERR_PROTOCOL, "%s: %s", conn->peer, text);
}

zps_err_t zps_rpc_tls_write(struct zps_rpc_conn *conn, char *line, size_t len) {
  struct zps_error error;
  line[len] = '\n'; /* in the place of its end */
  zps_err_t code = zps_rpc_tls_start(conn, &error);
  if (code == ZPS_OK) code = zps_tls_write(conn->tls, line, len + 1, &error);
  free(line);
  if (code == ZPS_OK) return flush(conn);
  zps_rpc_conn_fail(conn, code, "%s: %s", conn->peer, error.text);
  return ZPS_ERR_CLOSED;
}

void zps_rpc_tls_end(struct zps_rpc_conn *conn) {
  zps_tls_end(conn->tls);
  if (flush(conn) != ZPS_OK) zps_log_debug("%s: has gone already", conn->peer);
}

zps_err_t zps_rpc_tls_check_role(const struct zps_rpc_conn *conn, struct zps_error *error) {
  if (!conn->tls || !conn->listener) return ZPS_OK;
  const unsigned wanted = strcmp(conn->role, "server") == 0   ? ZPS_TLS_SERVER
                          : strcmp(conn->role, "worker") == 0 ? ZPS_TLS_WORKER | ZPS_TLS_ADMIN
                                                              : ~0u;
  if (zps_tls_peer_roles(conn->tls) & wanted) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_REFUSED, "the certificate of %s lets nobody in as a %s", zps_tls_peer_name(conn->tls),
                  conn->role);
}

unsigned zps_rpc_conn_certified(const struct zps_rpc_conn *conn) {
  return conn->tls ? zps_tls_peer_roles(conn->tls) : 0;
}

const char *zps_rpc_conn_certificate(const struct zps_rpc_conn *conn) {
  return conn->tls ? zps_tls_peer_name(conn->tls) : "";
}

long long zps_rpc_conn_certificate_ends_s(const struct zps_rpc_conn *conn) {
  return conn->tls ? zps_tls_peer_ends_s(conn->tls) : 0;
}

enum zps_tls_serves zps_rpc_conn_serves(const struct zps_rpc_conn *conn, const char *name,
                                        char names_p[ZPS_TLS_SERVERS_MAX]) {
  names_p[0] = '\0';
  return conn->tls ? zps_tls_peer_serves(conn->tls, name, names_p) : ZPS_TLS_SERVES_ALL;
}
