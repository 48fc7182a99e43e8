/* A connection's life: bytes in, bytes out, deadlines, the close of its handles. */
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "rpc"
#include "common/base/log.h"
#include "common/base/subnet.h"
#include "common/control/rpc_internal.h"

zps_err_t zps_rpc_conn_create(uv_loop_t *loop, const char *role, const struct zps_rpc_handler *handler,
                              struct zps_rpc_conn **conn_p) {
  struct zps_rpc_conn *conn = calloc(1, sizeof *conn);
  if (!conn) return ZPS_ERR_NOMEM;
  conn->loop = loop;
  conn->handler = *handler;
  conn->deadline_ns = ZPS_NEVER;
  conn->pending_tail = &conn->pending;
  conn->held_tail = &conn->held;
  snprintf(conn->self_role, sizeof conn->self_role, "%s", role);
  snprintf(conn->peer, sizeof conn->peer, "?");
  zps_lines_init(&conn->lines, ZPS_RPC_HELLO_LINE_MAX);
  uv_timer_init(loop, &conn->timer); /* cannot fail */
  conn->timer.data = conn;
  conn->holds = 1;
  *conn_p = conn;
  return ZPS_OK;
}

/* ---- The end ---- */

void zps_rpc_conn_unhold(struct zps_rpc_conn *conn) {
  if (--conn->holds > 0) return;
  zps_log_about(.peer = conn->peer);
  const zps_err_t code = conn->close_code == ZPS_OK ? ZPS_ERR_CLOSED : conn->close_code;
  struct zps_error error;
  zps_fail(&error, code, "%s", conn->close_reason);
  zps_rpc_abandon(conn, &error);
  if (conn->announced) {
    if (conn->handler.on_close) conn->handler.on_close(conn->handler.ctx, conn, conn->close_code, conn->close_reason);
  } else if (conn->dial) {
    conn->dial->connected(conn->handler.ctx, NULL, &error);
  } else {
    zps_log_debug("%s: closed before its hello: %s", conn->peer, conn->close_reason);
  }
  zps_rpc_conn_release(conn);
  if (conn->listener) zps_rpc_listener_drop(conn->listener, conn);
  zps_rpc_dial_destroy(conn->dial);
  zps_lines_fini(&conn->lines);
  zps_tls_session_destroy(conn->tls);
  zps_forked_forget(&conn->forked);
  free(conn);
}

static void on_handle_closed(uv_handle_t *handle) {
  zps_rpc_conn_unhold(handle->data);
}

static void end(struct zps_rpc_conn *conn) {
  conn->state = ZPS_RPC_CLOSED;
  zps_rpc_listener_know(conn);
  uv_close((uv_handle_t *)&conn->timer, on_handle_closed);
  if (conn->dial) zps_rpc_dial_cancel(conn);
  if (conn->has_socket && !uv_is_closing(&conn->socket.handle)) uv_close(&conn->socket.handle, on_handle_closed);
}

static void set_reason(struct zps_rpc_conn *conn, zps_err_t code, const char *fmt, va_list args) {
  conn->close_code = code;
  vsnprintf(conn->close_reason, sizeof conn->close_reason, fmt, args);
}

void zps_rpc_conn_fail(struct zps_rpc_conn *conn, zps_err_t code, const char *fmt, ...) {
  if (conn->state == ZPS_RPC_CLOSED) return;
  if (conn->state != ZPS_RPC_LINGERING) { /* LINGERING: the reason is set already */
    va_list args;
    va_start(args, fmt);
    set_reason(conn, code, fmt, args);
    va_end(args);
  }
  end(conn);
}

static void on_shutdown(uv_shutdown_t *request, int status) {
  struct zps_rpc_conn *conn = request->data;
  conn->flushed = true;
  if (conn->state == ZPS_RPC_LINGERING && (status < 0 || conn->peer_done)) end(conn);
  zps_rpc_conn_unhold(conn);
}

void zps_rpc_conn_linger(struct zps_rpc_conn *conn, zps_err_t code, const char *fmt, ...) {
  if (conn->state >= ZPS_RPC_LINGERING) return;
  if (conn->tls) zps_rpc_tls_end(conn);
  if (conn->state == ZPS_RPC_CLOSED) return;
  va_list args;
  va_start(args, fmt);
  set_reason(conn, code, fmt, args);
  va_end(args);
  conn->shutdown.data = conn;
  if (conn->state == ZPS_RPC_CONNECTING || uv_shutdown(&conn->shutdown, &conn->socket.stream, on_shutdown) < 0) {
    end(conn);
    return;
  }
  conn->holds++;
  /* Closing with unread bytes in the kernel would reset the connection and destroy the messages just written: so read
   * on, until the peer closes too. */
  conn->state = ZPS_RPC_LINGERING;
  conn->deadline_ns = zps_rpc_deadline_ns(ZPS_RPC_LINGER_MS);
  zps_rpc_conn_arm_timer(conn);
}

/* ---- Deadlines ---- */

static void on_timer(uv_timer_t *timer) {
  struct zps_rpc_conn *conn = timer->data;
  zps_log_about(.peer = conn->peer);
  if (conn->deadline_ns <= zps_clock_ns()) {
    switch (conn->state) {
      case ZPS_RPC_CONNECTING:
        zps_rpc_dial_expired(conn);
        break;
      case ZPS_RPC_HELLO:
        zps_rpc_conn_fail(conn, ZPS_ERR_TIMEOUT, "%s: no hello in time", conn->peer);
        break;
      default:
        zps_rpc_conn_fail(conn, ZPS_ERR_TIMEOUT, "%s: does not take the last bytes", conn->peer);
    }
  }
  zps_rpc_conn_arm_timer(conn);
}

void zps_rpc_conn_arm_timer(struct zps_rpc_conn *conn) {
  if (conn->state == ZPS_RPC_CLOSED) return;
  const uint64_t now_ns = zps_clock_ns();
  uint64_t next_ns = zps_rpc_expire(conn, now_ns);
  if (conn->state == ZPS_RPC_CLOSED) return; /* a call's owner has closed it */
  if (conn->deadline_ns < next_ns) next_ns = conn->deadline_ns;
  uv_timer_stop(&conn->timer);
  if (next_ns == ZPS_NEVER) return;
  uv_update_time(conn->loop);
  const uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
  uv_timer_start(&conn->timer, on_timer, (wait_ns + ZPS_NS_PER_MS - 1) / ZPS_NS_PER_MS, 0);
}

/* ---- Reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
  (void)suggested;
  struct zps_rpc_conn *conn = handle->data;
  size_t room = 0;
  buf->base = zps_lines_room(&conn->lines, &room);
  buf->len = room;
}

void zps_rpc_conn_take_lines(struct zps_rpc_conn *conn) {
  const char *line;
  size_t len;
  while (conn->state == ZPS_RPC_HELLO || conn->state == ZPS_RPC_OPEN) {
    if (conn->listener && conn->n_taken == ZPS_RPC_TURN_LINES) {
      conn->has_more = true;
      uv_read_stop(&conn->socket.stream);
      zps_rpc_listener_go_on(conn->listener);
      return;
    }
    switch (zps_lines_next(&conn->lines, &line, &len)) {
      case ZPS_OK:
        conn->n_taken++;
        zps_rpc_dispatch(conn, line, len);
        break;
      case ZPS_ERR_AGAIN:
        zps_lines_settle(&conn->lines);
        return;
      default: {
        char text[160];
        snprintf(text, sizeof text, "line of more than %zu bytes", conn->lines.limit);
        zps_json *message = zps_message_error(NULL, ZPS_MESSAGE_BAD_REQUEST, ZPS_ERR_PROTOCOL, text);
        if (zps_rpc_conn_write(conn, message) == ZPS_OK)
          zps_rpc_conn_linger(conn, ZPS_ERR_PROTOCOL, "%s: %s", conn->peer, text);
        return;
      }
    }
  }
}

/* The end of a process reads as the end of its stream, or as a reset; these errors are the network's. */
static zps_err_t code_of(int status) {
  return status == UV_ETIMEDOUT || status == UV_EHOSTUNREACH || status == UV_ENETUNREACH ? ZPS_ERR_TIMEOUT
                                                                                         : ZPS_ERR_CLOSED;
}

static void on_read(uv_stream_t *stream, ssize_t n_read, const uv_buf_t *buf) {
  struct zps_rpc_conn *conn = stream->data;
  if (n_read == 0) return;
  zps_log_about(.peer = conn->peer);
  if (n_read == UV_EOF && conn->state == ZPS_RPC_LINGERING && !conn->flushed) {
    conn->peer_done = true;
    return;
  }
  if (n_read < 0) {
    if (n_read == UV_EOF)
      zps_rpc_conn_fail(conn, ZPS_ERR_CLOSED, "%s: closed by the peer", conn->peer);
    else if (n_read == UV_ENOBUFS)
      zps_rpc_conn_fail(conn, ZPS_ERR_NOMEM, "%s: out of memory for a line", conn->peer);
    else
      zps_rpc_conn_fail(conn, code_of((int)n_read), "%s: %s", conn->peer, uv_strerror((int)n_read));
    return;
  }
  if (conn->state == ZPS_RPC_LINGERING) {
    conn->lines.start = conn->lines.end = conn->lines.scanned = 0;
    return;
  }
  conn->heard_ns = zps_clock_ns();
  conn->n_taken = 0;
  if (zps_rpc_tls_is_spoken(conn)) {
    zps_rpc_tls_received(conn, buf->base, (size_t)n_read);
    conn->stranger.has_spoken = zps_rpc_conn_certified(conn) != 0;
  } else if (zps_rpc_tls_is_unwanted(conn, buf->base, (size_t)n_read)) {
    zps_rpc_tls_refuse(conn);
  } else {
    conn->stranger.has_spoken = true;
    zps_lines_added(&conn->lines, (size_t)n_read);
    zps_rpc_conn_take_lines(conn);
  }
}

void zps_rpc_conn_go_on(struct zps_rpc_conn *conn) {
  zps_log_about(.peer = conn->peer);
  conn->has_more = false;
  conn->n_taken = 0;
  conn->heard_ns = zps_clock_ns(); /* what waits here was said, and beats may stand behind it */
  zps_rpc_conn_take_lines(conn);
  if (conn->tls && !conn->has_more) zps_rpc_tls_go_on(conn);
  if (conn->has_more || conn->state == ZPS_RPC_CLOSED) return;
  const int status = uv_read_start(&conn->socket.stream, on_alloc, on_read);
  if (status < 0) zps_rpc_conn_fail(conn, ZPS_ERR_IO, "%s: cannot read: %s", conn->peer, uv_strerror(status));
}

/* 0: as long as TCP itself repeats packets. */
static void set_user_timeout(struct zps_rpc_conn *conn, unsigned timeout_ms) {
  uv_os_fd_t fd;
  if (conn->socket.handle.type != UV_TCP || uv_fileno(&conn->socket.handle, &fd) != 0) return;
  if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms) < 0)
    zps_log_debug("%s: cannot set TCP_USER_TIMEOUT: dead peers are found by heartbeats alone", conn->peer);
}

void zps_rpc_conn_watched(struct zps_rpc_conn *conn) {
  set_user_timeout(conn, 0);
}

void zps_rpc_conn_dead_after(struct zps_rpc_conn *conn, uint64_t dead_ms) {
  if (dead_ms == 0) return;
  const unsigned timeout_ms = dead_ms > INT_MAX                   ? INT_MAX
                              : dead_ms > ZPS_RPC_USER_TIMEOUT_MS ? (unsigned)dead_ms
                                                                  : ZPS_RPC_USER_TIMEOUT_MS;
  set_user_timeout(conn, timeout_ms);
}

/* The log says who has changed something. */
static void name_unix_peer(struct zps_rpc_conn *conn, int fd) {
  struct ucred peer;
  socklen_t len = sizeof peer;
  if (conn->listener && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0)
    snprintf(conn->peer, sizeof conn->peer, "unix (user %lu, pid %ld)", (unsigned long)peer.uid, (long)peer.pid);
  else
    snprintf(conn->peer, sizeof conn->peer, "unix");
}

zps_err_t zps_rpc_conn_start(struct zps_rpc_conn *conn, uint64_t deadline_ns, struct zps_error *error) {
  uv_os_fd_t fd = -1;
  const bool has_fd = uv_fileno(&conn->socket.handle, &fd) == 0;
  name_unix_peer(conn, fd);
  if (conn->socket.handle.type == UV_TCP) {
    struct sockaddr_storage addr;
    int len = sizeof addr;
    if (uv_tcp_getpeername(&conn->socket.tcp, (struct sockaddr *)&addr, &len) == 0) {
      zps_address_print((struct sockaddr *)&addr, conn->peer, sizeof conn->peer);
      conn->origin = zps_origin_of((struct sockaddr *)&addr);
    }
    uv_tcp_nodelay(&conn->socket.tcp, 1);
    uv_tcp_keepalive(&conn->socket.tcp, 1, ZPS_RPC_KEEPALIVE_S);
    zps_rpc_conn_dead_after(conn, ZPS_RPC_USER_TIMEOUT_MS);
  }
  if (has_fd) zps_forked_close_socket(&conn->forked, fd);
  const int status = uv_read_start(&conn->socket.stream, on_alloc, on_read);
  if (status < 0) return zps_fail(error, ZPS_ERR_IO, "%s: cannot read: %s", conn->peer, uv_strerror(status));
  conn->state = ZPS_RPC_HELLO;
  conn->heard_ns = zps_clock_ns();
  conn->deadline_ns = deadline_ns;
  zps_rpc_conn_arm_timer(conn);
  return conn->listener ? ZPS_OK : zps_rpc_tls_start(conn, error); /* the client speaks first */
}

/* ---- Writing ---- */

/* A peer that has closed may have said something before. It is read first: "away" tells a server that connects anew
 * from a dead one. Then the end is read, and ends the connection. A peer that has closed its reading side alone has
 * until the deadline. */
static void write_failed(struct zps_rpc_conn *conn, int status) {
  const bool is_read_first =
      (status == UV_EPIPE || status == UV_ECONNRESET) && (conn->state == ZPS_RPC_HELLO || conn->state == ZPS_RPC_OPEN);
  if (!is_read_first) {
    zps_rpc_conn_fail(conn, code_of(status), "%s: %s", conn->peer, uv_strerror(status));
  } else if (!conn->is_deaf) {
    const uint64_t deadline_ns = zps_rpc_deadline_ns(ZPS_RPC_LINGER_MS);
    conn->is_deaf = true;
    if (deadline_ns < conn->deadline_ns) conn->deadline_ns = deadline_ns;
    zps_rpc_conn_arm_timer(conn);
  }
}

static void on_written(uv_write_t *request, int status) {
  struct zps_rpc_write *write = request->data;
  struct zps_rpc_conn *conn = request->handle->data;
  free(write->line);
  free(write);
  if (status < 0 && status != UV_ECANCELED) write_failed(conn, status);
}

/* Consumes `write`, and its bytes, which are the first of `bufs`. */
static zps_err_t write_out(struct zps_rpc_conn *conn, struct zps_rpc_write *write, const uv_buf_t *bufs, unsigned n) {
  write->write.data = write;
  const int status = uv_write(&write->write, &conn->socket.stream, bufs, n, on_written);
  if (status == 0) return ZPS_OK;
  zps_rpc_conn_fail(conn, ZPS_ERR_CLOSED, "%s: %s", conn->peer, uv_strerror(status));
  free(write->line);
  free(write);
  return ZPS_ERR_CLOSED;
}

zps_err_t zps_rpc_conn_write_raw(struct zps_rpc_conn *conn, char *bytes, size_t len) {
  struct zps_rpc_write *write = malloc(sizeof *write);
  if (!write) {
    free(bytes);
    zps_rpc_conn_fail(conn, ZPS_ERR_NOMEM, "%s: out of memory for a message", conn->peer);
    return ZPS_ERR_CLOSED;
  }
  *write = (struct zps_rpc_write){.line = bytes, .len = len};
  const uv_buf_t buf = uv_buf_init(bytes, (unsigned)len);
  return write_out(conn, write, &buf, 1);
}

/* Consumes `write` and its line. */
static zps_err_t write_line(struct zps_rpc_conn *conn, struct zps_rpc_write *write) {
  static char newline[] = "\n";
  if (zps_rpc_tls_is_spoken(conn)) {
    char *line = write->line;
    const size_t len = write->len;
    free(write);
    return zps_rpc_tls_write(conn, line, len);
  }
  const uv_buf_t bufs[] = {uv_buf_init(write->line, (unsigned)write->len), uv_buf_init(newline, 1)};
  return write_out(conn, write, bufs, 2);
}

void zps_rpc_conn_release(struct zps_rpc_conn *conn) {
  while (conn->held) {
    struct zps_rpc_write *write = conn->held;
    conn->held = write->next;
    conn->held_bytes -= write->len;
    if (conn->state == ZPS_RPC_OPEN) {
      if (write_line(conn, write)) continue; /* it is closing: the rest is dropped */
    } else {
      free(write->line);
      free(write);
    }
  }
  conn->held_tail = &conn->held;
}

zps_err_t zps_rpc_conn_write(struct zps_rpc_conn *conn, zps_json *message) {
  if (conn->state != ZPS_RPC_HELLO && conn->state != ZPS_RPC_OPEN) {
    zps_json_unref(message);
    return ZPS_ERR_CLOSED;
  }
  char *line = message ? zps_json_dump(message) : NULL;
  zps_json_unref(message);
  struct zps_rpc_write *write = line ? malloc(sizeof *write) : NULL;
  if (!write) {
    free(line);
    return ZPS_ERR_NOMEM;
  }
  const size_t len = strlen(line);
  zps_err_t code;
  if (conn->listener && !conn->is_let_in) zps_rpc_listener_make_room(conn, len);
  *write = (struct zps_rpc_write){.line = line, .len = len};
  if (conn->state == ZPS_RPC_CLOSED) {
    code = ZPS_ERR_CLOSED;
  } else if (len > ZPS_RPC_LINE_MAX) {
    code = ZPS_ERR_TRUNCATED;
  } else if (zps_rpc_conn_unsent(conn) + len > ZPS_RPC_WRITE_MAX) {
    zps_rpc_conn_fail(conn, ZPS_ERR_CLOSED, "%s: does not read: %u bytes are waiting for it", conn->peer,
                      ZPS_RPC_WRITE_MAX);
    code = ZPS_ERR_CLOSED;
  } else if (conn->listener && conn->state == ZPS_RPC_OPEN && zps_rpc_listener_is_held(conn->listener)) {
    *conn->held_tail = write;
    conn->held_tail = &write->next;
    conn->held_bytes += len;
    return ZPS_OK;
  } else {
    return write_line(conn, write);
  }
  free(write);
  free(line);
  return code;
}

void zps_rpc_close(struct zps_rpc_conn *conn, bool flush) {
  if (flush)
    zps_rpc_conn_linger(conn, ZPS_OK, "closed here");
  else
    zps_rpc_conn_fail(conn, ZPS_OK, "closed here");
}

void zps_rpc_conn_set_line_max(struct zps_rpc_conn *conn, size_t line_max_bytes) {
  conn->lines.limit = line_max_bytes;
}
void zps_rpc_conn_let_in(struct zps_rpc_conn *conn) {
  conn->is_let_in = true;
}
void zps_rpc_conn_set_ctx(struct zps_rpc_conn *conn, void *ctx) {
  conn->ctx = ctx;
}
void *zps_rpc_conn_ctx(const struct zps_rpc_conn *conn) {
  return conn->ctx;
}
const char *zps_rpc_conn_peer(const struct zps_rpc_conn *conn) {
  return conn->peer;
}
const char *zps_rpc_conn_role(const struct zps_rpc_conn *conn) {
  return conn->role;
}
const char *zps_rpc_conn_version(const struct zps_rpc_conn *conn) {
  return conn->version;
}
bool zps_rpc_conn_is_open(const struct zps_rpc_conn *conn) {
  return conn->state == ZPS_RPC_OPEN;
}
uint64_t zps_rpc_conn_heard_ns(const struct zps_rpc_conn *conn) {
  return conn->heard_ns;
}
struct zps_origin zps_rpc_conn_place(const struct zps_rpc_conn *conn) {
  return conn->origin;
}
bool zps_rpc_conn_is_unix(const struct zps_rpc_conn *conn) {
  return conn->socket.handle.type == UV_NAMED_PIPE;
}
struct zps_origin zps_rpc_conn_owner(const struct zps_rpc_conn *conn) {
  if (zps_rpc_conn_is_unix(conn)) return zps_origin_named(ZPS_ORIGIN_UNIX, "");
  return zps_rpc_conn_certified(conn) ? zps_origin_named(ZPS_ORIGIN_CERTIFICATE, zps_rpc_conn_certificate(conn))
                                      : conn->origin;
}
bool zps_rpc_conn_is_near(const struct zps_rpc_conn *conn) {
  struct sockaddr_storage here, there;
  const uint8_t *here_bytes, *there_bytes;
  int here_len = sizeof here, there_len = sizeof there;
  if (conn->socket.handle.type != UV_TCP) return true;
  if (uv_tcp_getsockname(&conn->socket.tcp, (struct sockaddr *)&here, &here_len) != 0 ||
      uv_tcp_getpeername(&conn->socket.tcp, (struct sockaddr *)&there, &there_len) != 0)
    return false;
  const size_t n = zps_subnet_bytes(&here, &here_bytes);
  return n > 0 && zps_subnet_bytes(&there, &there_bytes) == n && memcmp(here_bytes, there_bytes, n) == 0;
}
unsigned zps_rpc_conn_unanswered(const struct zps_rpc_conn *conn) {
  return conn->n_requests;
}
unsigned zps_rpc_conn_pending(const struct zps_rpc_conn *conn) {
  return conn->n_pending;
}
size_t zps_rpc_conn_unsent(const struct zps_rpc_conn *conn) {
  return uv_stream_get_write_queue_size(&conn->socket.stream) + conn->held_bytes;
}
