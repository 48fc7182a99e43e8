/* The client's way to a connection: resolve, try one address after the other, say hello. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/control/own_socket.h"
#include "common/control/rpc_internal.h"

static void try_next(struct zps_rpc_conn *conn);
static void begin(struct zps_rpc_conn *conn);

static void give_up(struct zps_rpc_conn *conn) {
  const struct zps_rpc_dial *dial = conn->dial;
  const bool late = zps_clock_ns() >= dial->deadline_ns;
  zps_rpc_conn_fail(conn, late ? ZPS_ERR_TIMEOUT : ZPS_ERR_CONNECT, "cannot connect to %s: %s", dial->text,
                    dial->status < 0 && dial->status != UV_ECANCELED ? uv_strerror(dial->status)
                    : dial->resolving                                ? "its name was not resolved in time"
                                                                     : "no answer in time");
}

static void on_attempt_closed(uv_handle_t *handle) {
  struct zps_rpc_conn *conn = handle->data;
  conn->has_socket = false;
  if (conn->state == ZPS_RPC_CONNECTING) {
    if (zps_clock_ns() >= conn->dial->deadline_ns)
      give_up(conn);
    else if (conn->dial->is_own)
      begin(conn);
    else
      try_next(conn);
  }
  zps_rpc_conn_unhold(conn);
}

static void close_attempt(struct zps_rpc_conn *conn) {
  if (!uv_is_closing(&conn->socket.handle)) uv_close(&conn->socket.handle, on_attempt_closed);
}

static void on_connected(uv_connect_t *request, int status) {
  struct zps_rpc_conn *conn = request->data;
  struct zps_error error;
  if (conn->state != ZPS_RPC_CONNECTING || uv_is_closing(&conn->socket.handle)) return;
  if (status < 0) {
    conn->dial->status = status;
    close_attempt(conn);
    return;
  }
  if (zps_rpc_conn_start(conn, conn->dial->deadline_ns, &error) != ZPS_OK) {
    zps_rpc_conn_fail(conn, error.code, "%s", error.text);
    return;
  }
  const zps_err_t code = zps_rpc_hello_send(conn);
  if (code != ZPS_OK) zps_rpc_conn_fail(conn, code, "%s: cannot say hello: %s", conn->dial->text, zps_err_str(code));
}

/* The socket is initialised: `status` is the outcome of that, and of starting to connect. */
static void attempt_started(struct zps_rpc_conn *conn, int status) {
  conn->socket.handle.data = conn;
  conn->has_socket = true;
  conn->holds++;
  if (status < 0) {
    conn->dial->status = status;
    close_attempt(conn);
  }
}

static void try_next(struct zps_rpc_conn *conn) {
  struct zps_rpc_dial *dial = conn->dial;
  const struct addrinfo *at = dial->next;
  if (!at) {
    give_up(conn);
    return;
  }
  dial->next = at->ai_next;
  const uint64_t now_ns = zps_clock_ns();
  const uint64_t left_ns = dial->deadline_ns > now_ns ? dial->deadline_ns - now_ns : 0;
  conn->deadline_ns = now_ns + left_ns / dial->left--; /* a silent address leaves time for the others */
  const int status = uv_tcp_init(conn->loop, &conn->socket.tcp);
  if (status < 0) {
    dial->status = status;
    give_up(conn);
    return;
  }
  attempt_started(conn, uv_tcp_connect(&dial->connect, &conn->socket.tcp, at->ai_addr, on_connected));
  zps_rpc_conn_arm_timer(conn);
}

static void take_addresses(struct zps_rpc_dial *dial, struct addrinfo *list) {
  dial->list = dial->next = list;
  for (const struct addrinfo *at = list; at; at = at->ai_next) dial->left++;
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *list) {
  struct zps_rpc_conn *conn = request->data;
  struct zps_rpc_dial *dial = conn->dial;
  dial->resolving = false;
  take_addresses(dial, list);
  if (conn->state == ZPS_RPC_CONNECTING) {
    if (status < 0) dial->status = status;
    try_next(conn);
  }
  zps_rpc_conn_unhold(conn);
}

void zps_rpc_dial_expired(struct zps_rpc_conn *conn) {
  struct zps_rpc_dial *dial = conn->dial;
  conn->deadline_ns = ZPS_NEVER; /* until the next attempt */
  if (dial->resolving || zps_clock_ns() >= dial->deadline_ns) {
    give_up(conn);
  } else {
    dial->status = UV_ETIMEDOUT;
    close_attempt(conn);
  }
}

void zps_rpc_dial_cancel(struct zps_rpc_conn *conn) {
  if (conn->dial->resolving) uv_cancel((uv_req_t *)&conn->dial->resolve);
}

void zps_rpc_dial_destroy(struct zps_rpc_dial *dial) {
  if (!dial) return;
  uv_freeaddrinfo(dial->list);
  free(dial);
}

static int connect_unix(struct zps_rpc_conn *conn, const char *path) {
  const int status = uv_pipe_init(conn->loop, &conn->socket.pipe, 0);
  if (status < 0) return status;
  attempt_started(conn, 0);
  uv_pipe_connect(&conn->dial->connect, &conn->socket.pipe, path, on_connected);
  return 0;
}

/* The coordinator must know whose process a server or an administrator is. Ranks show a token. */
static bool needs_own(const struct zps_rpc_conn *conn) {
  return !conn->handler.tls && strcmp(conn->self_role, "worker") != 0;
}

static int start(struct zps_rpc_conn *conn) {
  struct zps_rpc_dial *dial = conn->dial;
  if (dial->address.is_unix) return connect_unix(conn, dial->address.path);
  const char *host = dial->address.host[0] ? dial->address.host : "localhost";
  /* A number needs neither a resolver nor the threads that wait for one. */
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST}, *list = NULL;
  if (getaddrinfo(host, dial->address.port, &hints, &list) == 0) {
    take_addresses(dial, list);
    try_next(conn);
    return dial->status;
  }
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  const int status = uv_getaddrinfo(conn->loop, &dial->resolve, on_resolved, host, dial->address.port, &hints);
  if (status < 0) return status;
  dial->resolving = true;
  conn->holds++;
  return 0;
}

/* Past this user's own socket, where there is one. */
static void begin(struct zps_rpc_conn *conn) {
  struct zps_rpc_dial *dial = conn->dial;
  char own[ZPS_OWN_SOCKET_MAX];
  dial->status = 0;
  dial->is_own = !dial->is_own && needs_own(conn) && zps_own_socket_find(&dial->address, own);
  dial->status = dial->is_own ? connect_unix(conn, own) : start(conn);
  if (dial->status < 0)
    give_up(conn); /* `connected` hears of it from the loop */
  else
    zps_rpc_conn_arm_timer(conn);
}

zps_err_t zps_rpc_connect(uv_loop_t *loop, const char *address, const char *role, uint64_t timeout_ms,
                          const struct zps_rpc_handler *handler, zps_rpc_connected_fn connected,
                          struct zps_rpc_conn **conn_p, struct zps_error *error) {
  struct zps_address parsed;
  zps_err_t code = zps_address_parse(address, &parsed, error);
  if (code != ZPS_OK) return code;
  struct zps_rpc_dial *dial = calloc(1, sizeof *dial);
  if (!dial) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to connect to %s", address);
  dial->address = parsed;
  dial->connected = connected;
  dial->deadline_ns = zps_rpc_deadline_ns(timeout_ms);
  snprintf(dial->text, sizeof dial->text, "%s", address);
  struct zps_rpc_conn *conn = NULL;
  code = zps_rpc_conn_create(loop, role, handler, &conn);
  if (code != ZPS_OK) {
    free(dial);
    return zps_fail(error, code, "no memory to connect to %s", address);
  }
  conn->dial = dial;
  conn->state = ZPS_RPC_CONNECTING;
  conn->deadline_ns = dial->deadline_ns;
  dial->connect.data = conn;
  dial->resolve.data = conn;
  begin(conn);
  *conn_p = conn;
  return ZPS_OK;
}
