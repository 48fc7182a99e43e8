/* The server's side: a listening socket and the connections it accepted. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ZPS_LOG_COMPONENT "rpc"
#include "common/base/container.h"
#include "common/base/log.h"
#include "common/base/route.h"
#include "common/control/addresses.h"
#include "common/control/rpc_internal.h"

enum { BACKLOG = 4096 }; /* in which those behind a silent crowd wait; the kernel has a limit of its own */

struct zps_rpc_listener {
  uv_loop_t *loop;
  union zps_rpc_socket socket;
  struct zps_address address;
  char text[300];
  char role[32];
  struct zps_rpc_handler handler;
  uint64_t hello_ms;
  struct zps_rpc_conn *conns;
  struct zps_strangers strangers;
  struct zps_rpc_conn *crowding; /* the stranger that is one too many: until it is not, nobody else is accepted */
  bool has_waiting;              /* libuv has a connection that was not accepted: one stranger is too many */
  uv_timer_t look;               /* at the strangers, again */
  bool is_reading;               /* the look comes in the loop's next turn, when what has arrived is read */
  uint64_t turn_ns, read_ns;     /* when that turn began; all that had arrived by read_ns has been read */
  uv_idle_t more;                /* some connections have lines that wait for the next turn */
  union zps_rpc_socket refused;  /* takes connections that there is no memory for */
  bool refusing, has_refused;
  bool is_private; /* for this user, and root */
  bool closing, held;
  size_t guests_bytes;                         /* upper bound of the unsent bytes for guests */
  unsigned n_handles;                          /* not yet closed, of `socket`, `look` and `more` */
  char why[300], leader[ZPS_ADDRESS_TEXT_MAX]; /* hello is refused; why empty: it is not */
};

static void on_connection(uv_stream_t *server, int status);
static void on_look(uv_timer_t *timer);

static void free_when_unused(struct zps_rpc_listener *listener) {
  if (listener->n_handles == 0 && !listener->conns && !listener->refusing) free(listener);
}

static void on_handle_closed(uv_handle_t *handle) {
  struct zps_rpc_listener *listener = handle->data;
  listener->n_handles--;
  free_when_unused(listener);
}

/* ---- Strangers ---- */

static struct zps_rpc_conn *conn_of(struct zps_stranger *stranger) {
  return zps_container_of(stranger, struct zps_rpc_conn, stranger);
}

/* Whether others may come in after it. */
static void judge(struct zps_rpc_listener *listener, struct zps_rpc_conn *conn) {
  struct zps_stranger *whom = NULL;
  unsigned n = 0;
  uint64_t until_ns = 0;
  listener->crowding = NULL;
  switch (zps_strangers_judge(&listener->strangers, &conn->stranger, listener->read_ns, &whom, &n, &until_ns)) {
    case ZPS_STRANGER_FITS:
      return;
    case ZPS_STRANGER_WAITS: {
      const uint64_t now_ns = zps_clock_ns();
      listener->crowding = conn;
      uv_update_time(listener->loop);
      uv_timer_start(&listener->look, on_look, until_ns > now_ns ? (until_ns - now_ns) / ZPS_NS_PER_MS + 1 : 1, 0);
      return;
    }
    case ZPS_STRANGER_MAKES_ROOM:
      conn = conn_of(whom);
      zps_log_about(.peer = conn->peer);
      zps_log_warn_limited("%s: closed without a hello, to make room: %u other connections have sent none", conn->peer,
                           n);
      zps_rpc_conn_fail(conn, ZPS_ERR_REFUSED, "%s: no hello while there was time", conn->peer);
  }
}

/* Silence is judged by what has been read, so that nobody goes for a sleep of this process: a look reads first. */
static void on_look(uv_timer_t *timer) {
  struct zps_rpc_listener *listener = timer->data;
  if (listener->closing) return;
  if (listener->crowding && !listener->is_reading) {
    listener->is_reading = true;
    listener->turn_ns = zps_clock_ns();
    uv_timer_start(&listener->look, on_look, 1, 0);
    return;
  }
  if (listener->is_reading) listener->read_ns = listener->turn_ns;
  listener->is_reading = false;
  if (listener->crowding) judge(listener, listener->crowding);
  if (listener->crowding || !listener->has_waiting) return;
  listener->has_waiting = false;
  on_connection(&listener->socket.stream, 0);
}

void zps_rpc_listener_know(struct zps_rpc_conn *conn) {
  struct zps_rpc_listener *listener = conn->listener;
  if (!listener || !conn->stranger.is_listed) return;
  zps_strangers_remove(&listener->strangers, &conn->stranger);
  if (listener->crowding == conn) listener->crowding = NULL;
  if (!listener->closing && listener->has_waiting && !listener->is_reading)
    uv_timer_start(&listener->look, on_look, 0, 0);
}

/* ---- Guests ---- */

static bool is_guest(const struct zps_rpc_conn *conn) {
  return !conn->is_let_in && (conn->state == ZPS_RPC_HELLO || conn->state == ZPS_RPC_OPEN);
}

/* Counts what waits for guests. Returns the one for which the most waits, with `len` more for `conn`. */
static struct zps_rpc_conn *greediest(struct zps_rpc_listener *listener, const struct zps_rpc_conn *conn, size_t len) {
  struct zps_rpc_conn *found = NULL;
  size_t most = 0;
  listener->guests_bytes = 0;
  for (struct zps_rpc_conn *guest = listener->conns; guest; guest = guest->next) {
    if (!is_guest(guest)) continue;
    const size_t bytes = zps_rpc_conn_unsent(guest) + (guest == conn ? len : 0);
    listener->guests_bytes += bytes;
    if (bytes > most) found = guest;
    if (bytes > most) most = bytes;
  }
  return found;
}

/* What guests have read is found by counting, which is done when all that was ever written would be too much. */
void zps_rpc_listener_make_room(struct zps_rpc_conn *conn, size_t len) {
  struct zps_rpc_listener *listener = conn->listener;
  listener->guests_bytes += len;
  while (listener->guests_bytes > ZPS_RPC_GUESTS_WRITE_MAX && is_guest(conn)) {
    struct zps_rpc_conn *whom = greediest(listener, conn, len);
    if (listener->guests_bytes <= ZPS_RPC_GUESTS_WRITE_MAX) return;
    zps_log_about(.peer = whom->peer);
    zps_log_warn_limited("%s: closed: it does not read, and %zu bytes wait for all clients outside jobs", whom->peer,
                         listener->guests_bytes);
    zps_rpc_conn_fail(whom, ZPS_ERR_CLOSED,
                      "%s: does not read: %zu bytes are waiting for it, of %u for all such clients", whom->peer,
                      zps_rpc_conn_unsent(whom), ZPS_RPC_GUESTS_WRITE_MAX);
  }
}

/* ---- Fairness ---- */

static void on_more(uv_idle_t *idle) {
  struct zps_rpc_listener *listener = idle->data;
  uv_idle_stop(idle);
  for (struct zps_rpc_conn *conn = listener->conns; conn; conn = conn->next)
    if (conn->has_more) zps_rpc_conn_go_on(conn);
}

void zps_rpc_listener_go_on(struct zps_rpc_listener *listener) {
  if (!listener->closing) uv_idle_start(&listener->more, on_more);
}

void zps_rpc_listener_drop(struct zps_rpc_listener *listener, struct zps_rpc_conn *conn) {
  if (conn->prev)
    conn->prev->next = conn->next;
  else
    listener->conns = conn->next;
  if (conn->next) conn->next->prev = conn->prev;
  free_when_unused(listener);
}

bool zps_rpc_listener_is_held(const struct zps_rpc_listener *listener) {
  return listener->held;
}

void zps_rpc_listener_hold(struct zps_rpc_listener *listener, bool held) {
  if (!listener) return;
  listener->held = held;
  for (struct zps_rpc_conn *conn = listener->conns; conn && !held; conn = conn->next) zps_rpc_conn_release(conn);
}

void zps_rpc_listener_refuse(struct zps_rpc_listener *listener, const char *why, const char *leader) {
  if (!listener) return;
  snprintf(listener->why, sizeof listener->why, "%s", why ? why : "");
  snprintf(listener->leader, sizeof listener->leader, "%s", why ? leader : "");
}

const char *zps_rpc_listener_refusal(const struct zps_rpc_listener *listener, const char **leader_p) {
  *leader_p = listener->leader;
  return listener->why[0] ? listener->why : NULL;
}

void zps_rpc_listener_close(struct zps_rpc_listener *listener) {
  if (!listener || listener->closing) return;
  listener->closing = true;
  for (struct zps_rpc_conn *conn = listener->conns; conn; conn = conn->next)
    zps_rpc_conn_fail(conn, ZPS_OK, "the %s is closing", listener->role);
  uv_close(&listener->socket.handle, on_handle_closed);
  uv_close((uv_handle_t *)&listener->look, on_handle_closed);
  uv_close((uv_handle_t *)&listener->more, on_handle_closed);
}

const char *zps_rpc_listener_address(const struct zps_rpc_listener *listener) {
  return listener->text;
}

void zps_rpc_listener_set_hello_ms(struct zps_rpc_listener *listener, uint64_t hello_ms) {
  listener->hello_ms = hello_ms;
}

static int init_socket(uv_loop_t *loop, bool is_unix, union zps_rpc_socket *socket) {
  return is_unix ? uv_pipe_init(loop, &socket->pipe, 0) : uv_tcp_init(loop, &socket->tcp);
}

static void refuse(struct zps_rpc_listener *listener);

static void on_refused_closed(uv_handle_t *handle) {
  struct zps_rpc_listener *listener = handle->data;
  listener->refusing = false;
  if (listener->closing)
    free_when_unused(listener);
  else if (listener->has_refused)
    refuse(listener);
}

/* Takes a connection and closes it: libuv accepts no other before this one is taken. More may have come meanwhile. */
static void refuse(struct zps_rpc_listener *listener) {
  if (listener->refusing || init_socket(listener->loop, listener->address.is_unix, &listener->refused) < 0) return;
  listener->refusing = true;
  listener->refused.handle.data = listener;
  listener->has_refused = uv_accept(&listener->socket.stream, &listener->refused.stream) == 0;
  uv_close(&listener->refused.handle, on_refused_closed);
}

/* The mode of a Unix socket's file can be changed behind the owner's back; who has connected cannot. */
static bool may_connect(const struct zps_rpc_listener *listener, struct zps_rpc_conn *conn, struct zps_error *error) {
  struct ucred peer;
  socklen_t len = sizeof peer;
  uv_os_fd_t fd;
  if (!listener->is_private) return true;
  if (uv_fileno(&conn->socket.handle, &fd) != 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
    zps_fail_errno(error, ZPS_ERR_REFUSED, errno, "%s: cannot tell who connects", listener->text);
  else if (peer.uid == geteuid() || peer.uid == 0)
    return true;
  else
    zps_fail(error, ZPS_ERR_REFUSED,
             "%s: refused: user %lu is neither user %lu nor root, whom the socket's mode lets in", listener->text,
             (unsigned long)peer.uid, (unsigned long)geteuid());
  zps_log_warn_limited("%s", error->text);
  return false;
}

static void on_connection(uv_stream_t *server, int status) {
  struct zps_rpc_listener *listener = server->data;
  struct zps_rpc_conn *conn = NULL;
  struct zps_error error;
  if (listener->closing) return;
  if (listener->crowding) judge(listener, listener->crowding);
  if (status == 0 && listener->crowding) {
    listener->has_waiting = true;
    return;
  }
  if (status < 0) {
    zps_log_warn_limited("%s: cannot accept: %s", listener->text, uv_strerror(status));
    return;
  }
  if (zps_rpc_conn_create(listener->loop, listener->role, &listener->handler, &conn) != ZPS_OK) {
    zps_log_warn_limited("%s: a connection is refused: out of memory", listener->text);
    refuse(listener);
    return;
  }
  conn->listener = listener;
  conn->next = listener->conns;
  if (conn->next) conn->next->prev = conn;
  listener->conns = conn;
  status = init_socket(listener->loop, listener->address.is_unix, &conn->socket);
  if (status == 0) {
    conn->socket.handle.data = conn;
    conn->has_socket = true;
    conn->holds++;
    status = uv_accept(server, &conn->socket.stream);
  }
  if (status < 0)
    zps_rpc_conn_fail(conn, ZPS_ERR_IO, "%s: cannot accept: %s", listener->text, uv_strerror(status));
  else if (!may_connect(listener, conn, &error) ||
           zps_rpc_conn_start(conn, zps_rpc_deadline_ns(listener->hello_ms), &error) != ZPS_OK)
    zps_rpc_conn_fail(conn, error.code, "%s", error.text);
  if (conn->state != ZPS_RPC_HELLO || !conn->origin.is_known) return;
  zps_strangers_add(&listener->strangers, &conn->stranger, conn->origin, zps_clock_ns());
  judge(listener, conn);
}

/* A daemon that was killed leaves its socket file behind; a file that somebody listens on, or that is no socket, is not
 * ours to remove. */
static zps_err_t remove_stale(const char *path, struct zps_error *error) {
  struct stat st;
  if (lstat(path, &st) < 0) return ZPS_OK;
  if (!S_ISSOCK(st.st_mode))
    return zps_fail(error, ZPS_ERR_INVALID, "unix:%s: a file that is no socket is in the way", path);
  struct zps_error why;
  const zps_err_t err = zps_address_probe(path, &why);
  if (err == ZPS_OK) return zps_fail(error, ZPS_ERR_BUSY, "unix:%s: another process listens there", path);
  if (err != ZPS_ERR_CLOSED) return zps_fail(error, err, "%s", why.text);
  unlink(path);
  return ZPS_OK;
}

/* Between bind and listen, when nobody can connect yet. A group that the file has already is left alone: a process
 * without privileges may be forbidden to call chown() at all. */
static zps_err_t grant(const char *path, const struct zps_rpc_access *access, struct zps_error *error) {
  struct stat st;
  if (lstat(path, &st) < 0) return zps_fail_errno(error, ZPS_ERR_IO, errno, "unix:%s: cannot look at the socket", path);
  if (access->group != ZPS_RPC_ANY_GROUP && access->group != st.st_gid && lchown(path, (uid_t)-1, access->group) < 0)
    return zps_fail_errno(error, ZPS_ERR_IO, errno,
                          "unix:%s: cannot give the socket to group %lu (a process without privileges can do so with "
                          "groups that it is in)",
                          path, (unsigned long)access->group);
  if (chmod(path, access->mode) < 0)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "unix:%s: cannot set the socket's mode to %04o", path,
                          (unsigned)access->mode);
  return ZPS_OK;
}

static zps_err_t bind_unix(struct zps_rpc_listener *listener, const struct zps_rpc_access *access,
                           struct zps_error *error) {
  const char *path = listener->address.path;
  const zps_err_t code = remove_stale(path, error);
  if (code != ZPS_OK) return code;
  const int status = uv_pipe_bind(&listener->socket.pipe, path);
  if (status < 0) return zps_fail(error, ZPS_ERR_IO, "cannot bind unix:%s: %s", path, uv_strerror(status));
  snprintf(listener->text, sizeof listener->text, "unix:%s", path);
  static const struct zps_rpc_access own = {.mode = 0600, .group = ZPS_RPC_ANY_GROUP};
  return grant(path, access ? access : &own, error);
}

/* The first address that other hosts may reach, else the first. */
static const struct addrinfo *best_of(const struct addrinfo *list) {
  for (const struct addrinfo *info = list; info; info = info->ai_next)
    if (!zps_route_is_loopback(info->ai_addr)) return info;
  return list;
}

static zps_err_t bind_tcp(struct zps_rpc_listener *listener, const char *text, struct zps_error *error) {
  const struct zps_address *address = &listener->address;
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  struct addrinfo *list = NULL;
  int status = getaddrinfo(address->host[0] ? address->host : NULL, address->port, &hints, &list);
  if (status != 0) return zps_fail(error, ZPS_ERR_INVALID, "cannot listen on %s: %s", text, gai_strerror(status));
  const struct addrinfo *const at = best_of(list);
  char number[300];
  zps_address_print(at->ai_addr, number, sizeof number);
  const bool is_lost = zps_route_is_loopback(at->ai_addr) && !zps_address_is_loopback(address);
  status = is_lost ? 0 : uv_tcp_bind(&listener->socket.tcp, at->ai_addr, 0);
  freeaddrinfo(list);
  if (is_lost)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "cannot listen on %.260s: that is %s here (/etc/hosts), which no other host reaches: give an "
                    "address of a network, or 0.0.0.0:%s for all, or 127.0.0.1:%s for this host alone",
                    text, number, address->port, address->port);
  if (status < 0) return zps_fail(error, ZPS_ERR_IO, "cannot bind %s: %s", text, uv_strerror(status));
  return ZPS_OK;
}

/* libuv reports an address in use only when it listens. */
static zps_err_t start(struct zps_rpc_listener *listener, const char *text, struct zps_error *error) {
  const int status = uv_listen(&listener->socket.stream, BACKLOG, on_connection);
  if (status == UV_EADDRINUSE) return zps_fail(error, ZPS_ERR_BUSY, "cannot listen on %s: already in use", text);
  if (status < 0) return zps_fail(error, ZPS_ERR_IO, "cannot listen on %s: %s", text, uv_strerror(status));
  if (!listener->address.is_unix) {
    struct sockaddr_storage addr;
    int len = sizeof addr;
    if (uv_tcp_getsockname(&listener->socket.tcp, (struct sockaddr *)&addr, &len) == 0)
      zps_address_print((struct sockaddr *)&addr, listener->text, sizeof listener->text);
  }
  return ZPS_OK;
}

zps_err_t zps_rpc_listen(uv_loop_t *loop, const char *address, const char *role, const struct zps_rpc_handler *handler,
                         struct zps_rpc_listener **listener_p, struct zps_error *error) {
  return zps_rpc_listen_for(loop, address, NULL, role, handler, listener_p, error);
}

zps_err_t zps_rpc_listen_for(uv_loop_t *loop, const char *address, const struct zps_rpc_access *access,
                             const char *role, const struct zps_rpc_handler *handler,
                             struct zps_rpc_listener **listener_p, struct zps_error *error) {
  struct zps_rpc_listener *listener = calloc(1, sizeof *listener);
  if (!listener) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to listen on %s", address);
  listener->loop = loop;
  listener->handler = *handler;
  listener->hello_ms = ZPS_RPC_HELLO_MS;
  snprintf(listener->role, sizeof listener->role, "%s", role);
  snprintf(listener->text, sizeof listener->text, "%s", address);
  zps_err_t code = zps_address_parse(address, &listener->address, error);
  if (code != ZPS_OK) goto err_free;
  const int status = init_socket(loop, listener->address.is_unix, &listener->socket);
  if (status < 0) {
    code = zps_fail(error, ZPS_ERR_IO, "cannot listen on %s: %s", address, uv_strerror(status));
    goto err_free;
  }
  listener->is_private = listener->address.is_unix && !(access && access->mode & (S_IRWXG | S_IRWXO));
  uv_timer_init(loop, &listener->look); /* cannot fail */
  uv_idle_init(loop, &listener->more);
  listener->socket.handle.data = listener->look.data = listener->more.data = listener;
  listener->n_handles = 3;
  code = listener->address.is_unix ? bind_unix(listener, access, error) : bind_tcp(listener, address, error);
  if (code == ZPS_OK) code = start(listener, address, error);
  if (code != ZPS_OK) {
    zps_rpc_listener_close(listener); /* frees it from the loop */
    return code;
  }
  *listener_p = listener;
  return ZPS_OK;

err_free:
  free(listener);
  return code;
}
