/* The first exchange on a connection: both sides learn the other's role and version, and refuse another protocol. */
#include <string.h>

#include "config.h"
#define ZPS_LOG_COMPONENT "rpc"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/version.h"
#include "common/control/rpc_internal.h"

static zps_json *self(const struct zps_rpc_conn *conn) {
  zps_json *hello = zps_json_set_u64(zps_json_object(), "protocol", ZPS_PROTOCOL_VERSION);
  hello = zps_json_set_str(hello, "version", PACKAGE_VERSION);
  return zps_json_set_str(hello, "role", conn->self_role);
}

static zps_err_t get_name(const zps_json *hello, const char *key, char *buf, size_t size, struct zps_error *error) {
  const char *name = "";
  const zps_err_t code = zps_json_get_str(hello, key, &name, error);
  if (code != ZPS_OK) return code;
  const size_t len = strlen(name);
  if (len == 0 || len >= size || zps_text_printable(name, len) != len)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' of hello is no printable text of 1 to %zu bytes", key,
                    size - 1);
  memcpy(buf, name, len + 1);
  return ZPS_OK;
}

/* Takes the peer's hello, or its answer to ours. The number is looked at last, so that a refusal can name the peer. */
static zps_err_t check(struct zps_rpc_conn *conn, const zps_json *hello, struct zps_error *error) {
  uint64_t protocol = 0;
  zps_err_t code = get_name(hello, "role", conn->role, sizeof conn->role, error);
  if (code == ZPS_OK) code = get_name(hello, "version", conn->version, sizeof conn->version, error);
  if (code == ZPS_OK) code = zps_rpc_tls_check_role(conn, error);
  if (code == ZPS_OK) code = zps_json_get_u64(hello, "protocol", 0, UINT32_MAX, &protocol, error);
  if (code != ZPS_OK || protocol == ZPS_PROTOCOL_VERSION) return code;
  return zps_fail(error, ZPS_ERR_VERSION,
                  "the %s (zenps %s) speaks protocol version %u, but the %s at %s (zenps %s) speaks version %u: "
                  "run the same release on both",
                  conn->self_role, PACKAGE_VERSION, ZPS_PROTOCOL_VERSION, conn->role, conn->peer, conn->version,
                  (unsigned)protocol);
}

static void opened(struct zps_rpc_conn *conn) {
  conn->state = ZPS_RPC_OPEN;
  zps_rpc_listener_know(conn);
  conn->announced = true;
  if (!conn->is_deaf) conn->deadline_ns = ZPS_NEVER;
  conn->lines.limit = ZPS_RPC_LINE_MAX;
  zps_rpc_conn_arm_timer(conn);
}

/* Not worth a line in the log: each client that comes is told. */
static void refuse(struct zps_rpc_conn *conn, const zps_json *id, const char *why, const char *leader) {
  zps_log_debug("%s: the %s is sent away: %s", conn->peer, conn->role, why);
  if (zps_rpc_conn_write(conn, zps_message_moved(id, why, leader)) == ZPS_OK)
    zps_rpc_conn_linger(conn, ZPS_ERR_CONNECT, "%s: %s", conn->peer, why);
  else
    zps_rpc_conn_fail(conn, ZPS_ERR_CONNECT, "%s: %s", conn->peer, why);
}

/* Tells the peer why, and ends the connection. */
static void turn_away(struct zps_rpc_conn *conn, const struct zps_message *message, const struct zps_error *error) {
  zps_log_warn_limited("%s: refused: %s", conn->peer, error->text);
  const int number = error->code == ZPS_ERR_PROTOCOL ? ZPS_MESSAGE_BAD_REQUEST : (int)error->code;
  const zps_json *id = message->kind == ZPS_MESSAGE_CALL ? message->id : NULL;
  if (zps_rpc_conn_write(conn, zps_message_error(id, number, error->code, error->text)) == ZPS_OK)
    zps_rpc_conn_linger(conn, error->code, "%s: %s", conn->peer, error->text);
  else
    zps_rpc_conn_fail(conn, error->code, "%s: %s", conn->peer, error->text);
}

void zps_rpc_hello_receive(struct zps_rpc_conn *conn, const struct zps_message *message) {
  const struct zps_rpc_handler *const handler = &conn->handler;
  struct zps_error error;
  const bool is_hello = message->kind == ZPS_MESSAGE_CALL && strcmp(message->method, "hello") == 0;
  zps_err_t code = is_hello ? check(conn, message->params, &error)
                            : zps_fail(&error, ZPS_ERR_PROTOCOL, "the first message must be a call of 'hello'");
  const char *leader, *const why = zps_rpc_listener_refusal(conn->listener, &leader);
  if (code == ZPS_OK && !why && handler->may_open) code = handler->may_open(handler->ctx, conn, &error);
  if (code != ZPS_OK) {
    turn_away(conn, message, &error);
    return;
  }
  if (why) {
    refuse(conn, message->id, why, leader);
    return;
  }
  zps_json *answer = zps_json_set(self(conn), "features", zps_json_array());
  code = zps_rpc_conn_write(conn, zps_message_result(message->id, answer));
  if (code != ZPS_OK) {
    zps_rpc_conn_fail(conn, code, "%s: cannot answer hello: %s", conn->peer, zps_err_str(code));
    return;
  }
  opened(conn);
  if (conn->handler.on_open) conn->handler.on_open(conn->handler.ctx, conn);
}

static void on_answer(void *ctx, const zps_json *result, const struct zps_error *error) {
  struct zps_rpc_conn *conn = ctx;
  struct zps_error found;
  if (conn->state != ZPS_RPC_HELLO) return;      /* ended meanwhile: `connected` reports it */
  if (error && error->code == ZPS_ERR_CONNECT) { /* it does not lead: which of several that is, it does not say */
    zps_fail(&found, error->code, "%s: %.400s", conn->dial->text, error->text);
    error = &found;
  }
  if (!error && check(conn, result, &found) != ZPS_OK) error = &found;
  if (error) {
    zps_rpc_conn_fail(conn, error->code, "%s", error->text);
    return;
  }
  opened(conn);
  conn->dial->connected(conn->handler.ctx, conn, NULL);
}

zps_err_t zps_rpc_hello_send(struct zps_rpc_conn *conn) {
  return zps_rpc_call(conn, "hello", self(conn), UINT64_MAX, on_answer,
                      conn); /* the state's deadline watches over it */
}
