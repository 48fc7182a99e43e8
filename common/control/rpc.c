/* Calls, notifications and answers over a connection. */
#include "common/control/rpc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "rpc"
#include "common/base/log.h"
#include "common/control/rpc_internal.h"

/* ---- Our calls ---- */

zps_err_t zps_rpc_call(struct zps_rpc_conn *conn, const char *method, zps_json *params, uint64_t timeout_ms,
                       zps_rpc_result_fn done, void *ctx) {
  struct zps_rpc_pending *pending = conn->n_pending < ZPS_RPC_PENDING_MAX ? malloc(sizeof *pending) : NULL;
  if (!pending) {
    zps_json_unref(params);
    return conn->n_pending < ZPS_RPC_PENDING_MAX ? ZPS_ERR_NOMEM : ZPS_ERR_AGAIN;
  }
  *pending = (struct zps_rpc_pending){
      .number = ++conn->last_number, .deadline_ns = zps_rpc_deadline_ns(timeout_ms), .done = done, .ctx = ctx};
  snprintf(pending->method, sizeof pending->method, "%s", method);
  const zps_err_t code = zps_rpc_conn_write(conn, zps_message_call(pending->number, method, params));
  if (code != ZPS_OK) {
    free(pending);
    return code;
  }
  *conn->pending_tail = pending;
  conn->pending_tail = &pending->next;
  conn->n_pending++;
  zps_rpc_conn_arm_timer(conn);
  return ZPS_OK;
}

zps_err_t zps_rpc_notify(struct zps_rpc_conn *conn, const char *method, zps_json *params) {
  return zps_rpc_conn_write(conn, zps_message_notification(method, params));
}

/* Takes the pending call at `at` out of the table. */
static struct zps_rpc_pending *take(struct zps_rpc_conn *conn, struct zps_rpc_pending **at) {
  struct zps_rpc_pending *pending = *at;
  *at = pending->next;
  if (!*at) conn->pending_tail = at;
  conn->n_pending--;
  return pending;
}

/* Tells the owner, who may call again from inside. */
static void finish(struct zps_rpc_pending *pending, const zps_json *result, const struct zps_error *error) {
  if (pending->done) pending->done(pending->ctx, result, error);
  free(pending);
}

uint64_t zps_rpc_expire(struct zps_rpc_conn *conn, uint64_t now_ns) {
  uint64_t next_ns;
  struct zps_rpc_pending **at;
restart: /* whenever an owner was told: it may have changed the table */
  next_ns = ZPS_NEVER;
  for (at = &conn->pending; *at; at = &(*at)->next) {
    if ((*at)->deadline_ns <= now_ns) {
      struct zps_rpc_pending *pending = take(conn, at);
      struct zps_error error;
      zps_fail(&error, ZPS_ERR_TIMEOUT, "%s: no answer to '%s' in time", conn->peer, pending->method);
      finish(pending, NULL, &error);
      goto restart;
    }
    if ((*at)->deadline_ns < next_ns) next_ns = (*at)->deadline_ns;
  }
  return next_ns;
}

void zps_rpc_abandon(struct zps_rpc_conn *conn, const struct zps_error *error) {
  while (conn->pending) finish(take(conn, &conn->pending), NULL, error);
  for (struct zps_rpc_request *request = conn->requests; request; request = request->next) request->conn = NULL;
}

static void answered(struct zps_rpc_conn *conn, const struct zps_message *message) {
  struct zps_rpc_pending **at = &conn->pending;
  while (*at && (*at)->number != message->number) at = &(*at)->next;
  if (!*at) { /* its deadline has passed */
    zps_log_debug("%s: late answer to call %llu dropped", conn->peer, (unsigned long long)message->number);
    return;
  }
  struct zps_rpc_pending *pending = take(conn, at);
  if (conn->state == ZPS_RPC_HELLO && message->leader && conn->handler.on_moved)
    conn->handler.on_moved(conn->handler.ctx, message->leader);
  finish(pending, message->result, message->kind == ZPS_MESSAGE_ERROR ? &message->error : NULL);
  if (conn->state < ZPS_RPC_LINGERING) zps_rpc_conn_arm_timer(conn);
}

/* ---- The peer's calls ---- */

static struct zps_rpc_request *new_request(struct zps_rpc_conn *conn, const zps_json *id) {
  struct zps_rpc_request *request = malloc(sizeof *request);
  if (!request) return NULL;
  *request = (struct zps_rpc_request){.conn = conn, .next = conn->requests, .id = zps_json_copy(id)};
  if (!request->id) {
    free(request);
    return NULL;
  }
  if (conn->requests) conn->requests->prev = request;
  conn->requests = request;
  conn->n_requests++;
  return request;
}

static void free_request(struct zps_rpc_request *request) {
  if (request->conn) {
    if (request->prev)
      request->prev->next = request->next;
    else
      request->conn->requests = request->next;
    if (request->next) request->next->prev = request->prev;
    request->conn->n_requests--;
  }
  zps_json_unref(request->id);
  free(request);
}

/* The peer waits for this answer: when it cannot be sent, it must see the connection end. */
static void send_answer(struct zps_rpc_request *request, zps_json *message) {
  struct zps_rpc_conn *conn = request->conn;
  zps_err_t code = zps_rpc_conn_write(conn, message);
  if (code == ZPS_ERR_TRUNCATED)
    code = zps_rpc_conn_write(conn, zps_message_error(request->id, ZPS_ERR_TRUNCATED, ZPS_ERR_TRUNCATED,
                                                      "the answer is longer than a line may be (4 MiB)"));
  if (code == ZPS_ERR_NOMEM) zps_rpc_conn_fail(conn, code, "%s: out of memory for an answer", conn->peer);
}

void zps_rpc_reply(struct zps_rpc_request *request, zps_json *result) {
  if (request->conn)
    send_answer(request, zps_message_result(request->id, result ? result : zps_json_object()));
  else
    zps_json_unref(result);
  free_request(request);
}

/* JSON-RPC has numbers of its own for two of our errors. */
static int error_number(zps_err_t code) {
  if (code == ZPS_ERR_PROTOCOL) return ZPS_MESSAGE_BAD_PARAMS;
  return code == ZPS_ERR_UNSUPPORTED ? ZPS_MESSAGE_NO_METHOD : (int)code;
}

void zps_rpc_reply_error(struct zps_rpc_request *request, zps_err_t code, const char *fmt, ...) {
  if (request->conn) {
    struct zps_error error;
    va_list args;
    va_start(args, fmt);
    zps_vfail(&error, code, fmt, args);
    va_end(args);
    send_answer(request, zps_message_error(request->id, error_number(code), code, error.text));
  }
  free_request(request);
}

/* ---- Incoming lines ---- */

/* Answers a message that cannot be understood, then closes. */
static void reject(struct zps_rpc_conn *conn, int number, const struct zps_error *error) {
  zps_log_warn_limited("%s: %s: closing", conn->peer, error->text);
  const zps_err_t code = zps_rpc_conn_write(conn, zps_message_error(NULL, number, ZPS_ERR_PROTOCOL, error->text));
  if (code == ZPS_OK)
    zps_rpc_conn_linger(conn, error->code, "%s: %s", conn->peer, error->text);
  else
    zps_rpc_conn_fail(conn, error->code, "%s: %s", conn->peer, error->text);
}

static void received(struct zps_rpc_conn *conn, const struct zps_message *message) {
  struct zps_rpc_request *request = NULL;
  switch (message->kind) {
    case ZPS_MESSAGE_CALL:
      if (conn->n_requests >= ZPS_RPC_PENDING_MAX) {
        zps_rpc_conn_fail(conn, ZPS_ERR_PROTOCOL, "%s: more than %u calls in flight", conn->peer, ZPS_RPC_PENDING_MAX);
        return;
      }
      request = new_request(conn, message->id);
      if (!request) {
        zps_rpc_conn_fail(conn, ZPS_ERR_NOMEM, "%s: out of memory for a call", conn->peer);
        return;
      }
      if (!conn->handler.on_message) {
        zps_rpc_reply_error(request, ZPS_ERR_UNSUPPORTED, "no method '%.100s' here", message->method);
        return;
      }
      /* fall through */
    case ZPS_MESSAGE_NOTIFICATION:
      if (conn->handler.on_message)
        conn->handler.on_message(conn->handler.ctx, conn, message->method, message->params, request);
      return;
    default:
      if (message->has_number)
        answered(conn, message);
      else if (message->kind == ZPS_MESSAGE_ERROR && message->error.code == ZPS_ERR_REFUSED)
        zps_rpc_conn_fail(conn, ZPS_ERR_REFUSED, "%s: the peer refuses this end: %.300s", conn->peer,
                          message->error.text);
      else
        zps_rpc_conn_fail(conn, ZPS_ERR_PROTOCOL, "%s: the peer did not understand us: %.300s", conn->peer,
                          message->kind == ZPS_MESSAGE_ERROR ? message->error.text : "answer without a number");
  }
}

void zps_rpc_dispatch(struct zps_rpc_conn *conn, const char *line, size_t len) {
  if (len == 0) return;
  zps_json *root = NULL;
  struct zps_message message;
  struct zps_error error;
  int number = ZPS_MESSAGE_BAD_JSON;
  zps_err_t code = zps_json_parse(line, len, &root, &error);
  if (code == ZPS_OK) {
    number = ZPS_MESSAGE_BAD_REQUEST;
    code = zps_message_read(root, &message, &error);
  }
  if (code != ZPS_OK)
    reject(conn, number, &error);
  else if (conn->state == ZPS_RPC_HELLO && conn->listener)
    zps_rpc_hello_receive(conn, &message);
  else if (conn->state == ZPS_RPC_HELLO && message.kind < ZPS_MESSAGE_RESULT)
    zps_rpc_conn_fail(conn, ZPS_ERR_PROTOCOL, "%s: sent '%.50s' before it answered hello", conn->peer, message.method);
  else
    received(conn, &message);
  zps_json_unref(root);
}
