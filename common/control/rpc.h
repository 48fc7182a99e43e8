/*
 * JSON-RPC 2.0 over TCP or Unix sockets, one object a line, on a libuv loop. Both ends may call, answer and notify.
 *
 * Everything here belongs to the loop's thread. A connection starts with `hello` in both directions of trust: the
 * client sends protocol version, program version and role; the server answers with its own or refuses naming both
 * versions, or naming who leads instead of it. Lines are limited (ZPS_RPC_LINE_MAX), calls have deadlines,
 * TCP_USER_TIMEOUT and keepalive are set, and a peer that sends garbage gets a JSON-RPC error and is closed.
 *
 * Errors travel as {"code": <zps_err number>, "message": text, "data": {"name": "ERR_..."}}; ZPS_ERR_UNSUPPORTED (no
 * such method) and ZPS_ERR_PROTOCOL (wrong parameters) as JSON-RPC's own codes -32601 and -32602.
 */
#ifndef ZPS_CONTROL_RPC_H
#define ZPS_CONTROL_RPC_H

#include <sys/types.h>
#include <uv.h>

#include "common/control/json.h"
#include "common/control/strangers.h"
#include "common/tls/tls.h"

#define ZPS_RPC_LINE_MAX (4u << 20)
#define ZPS_RPC_PENDING_MAX 1024u /* calls in flight per connection */

struct zps_rpc_conn;
struct zps_rpc_listener;
struct zps_rpc_request; /* a call from the peer that is waiting for our answer */

struct zps_rpc_handler {
  void *ctx;
  struct zps_tls *tls; /* over TCP TLS is spoken, as this process; NULL: none. Borrowed while there are connections */
  /* Server side: the peer has said hello, which is answered with ZPS_OK alone; else the peer hears `error`, and the
   * connection ends. With ZPS_ERR_AGAIN the peer tries again. May be NULL. */
  zps_err_t (*may_open)(void *ctx, struct zps_rpc_conn *conn, struct zps_error *error);
  /* The peer connected (server side) and said hello. Each of the three may be NULL: not interested; calls are then
   * refused. */
  void (*on_open)(void *ctx, struct zps_rpc_conn *conn);
  /* A call (request != NULL: answer it, now or later, exactly once) or a notification (request == NULL). `params` is
   * borrowed during the call, and NULL when the peer sent none (getters take that as missing members). */
  void (*on_message)(void *ctx, struct zps_rpc_conn *conn, const char *method, const zps_json *params,
                     struct zps_rpc_request *request);
  /* The connection is gone; `reason` says why, `code` is ZPS_OK when this side closed it, and ZPS_ERR_TIMEOUT when the
   * network ended it, which the peer's process may have outlived. All pending calls were failed before. The handle is
   * invalid afterwards. */
  void (*on_close)(void *ctx, struct zps_rpc_conn *conn, zps_err_t code, const char *reason);
  /* Client side, ahead of the `connected` that says ZPS_ERR_CONNECT: the peer refused hello since it does not lead;
   * `leader` is the address of the one that does, "" when it does not know. May be NULL. */
  void (*on_moved)(void *ctx, const char *leader);
};

/* `result` is borrowed (NULL on failure); `error->text` is the peer's sentence or ours. */
typedef void (*zps_rpc_result_fn)(void *ctx, const zps_json *result, const struct zps_error *error);

/* Listens on "HOST:PORT", "[V6]:PORT" or "unix:/path" (port 0: any; a stale Unix socket file is replaced). The
 * loop must run once more after a failure, too. */
zps_err_t zps_rpc_listen(uv_loop_t *loop, const char *address, const char *role, const struct zps_rpc_handler *handler,
                         struct zps_rpc_listener **listener_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The processes that may connect to a Unix socket: its file's mode, under any umask, and group. Where the mode lets in
 * its owner alone, processes of other users are refused also when the file's mode has become another one; but not
 * root's. */
struct zps_rpc_access {
  mode_t mode;
  gid_t group; /* ZPS_RPC_ANY_GROUP: the one that the file gets by itself */
};
#define ZPS_RPC_ANY_GROUP ((gid_t)-1)
/* Listens on a socket with these rights. Nobody can connect before the Unix socket's file has them. NULL: 0600, under
 * any umask. */
zps_err_t zps_rpc_listen_for(uv_loop_t *loop, const char *address, const struct zps_rpc_access *access,
                             const char *role, const struct zps_rpc_handler *handler,
                             struct zps_rpc_listener **listener_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The address really bound, "HOST:PORT". */
const char *zps_rpc_listener_address(const struct zps_rpc_listener *listener);
/* While held, what is written to its connections waits here, in order; then it leaves. A connection that
 * is closed meanwhile drops it. NULL is allowed. */
void zps_rpc_listener_hold(struct zps_rpc_listener *listener, bool held);
/* From now on hello is refused with ZPS_ERR_CONNECT, `why` and the address of who leads ("": not known), whatever its
 * role; connections that are open stay. `why` NULL: it is answered again. Texts are copied; a NULL listener is allowed.
 */
void zps_rpc_listener_refuse(struct zps_rpc_listener *listener, const char *why, const char *leader);
/* Closes the listener and its connections; frees when the loop has run their close callbacks. NULL is allowed. */
void zps_rpc_listener_close(struct zps_rpc_listener *listener);

/* Resolves, connects and says hello within `timeout_ms`; `connected` is called once, from the loop, with
 * handler->ctx: `error` is NULL, or `conn` is, the connection is gone and on_close is not called. */
zps_err_t zps_rpc_connect(uv_loop_t *loop, const char *address, const char *role, uint64_t timeout_ms,
                          const struct zps_rpc_handler *handler,
                          void (*connected)(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error),
                          struct zps_rpc_conn **conn_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Closes; on_close follows from the loop. With `flush`, written messages are sent first, for at most a second. */
void zps_rpc_close(struct zps_rpc_conn *conn, bool flush);

/* `params` is consumed. `done` (may be NULL) is called exactly once: result, the peer's error, ZPS_ERR_TIMEOUT or
 * ZPS_ERR_CLOSED; not when an error is returned (ZPS_ERR_AGAIN: too many in flight). */
zps_err_t zps_rpc_call(struct zps_rpc_conn *conn, const char *method, zps_json *params, uint64_t timeout_ms,
                       zps_rpc_result_fn done, void *ctx) ZPS_MUSTCHECK;
zps_err_t zps_rpc_notify(struct zps_rpc_conn *conn, const char *method, zps_json *params) ZPS_MUSTCHECK;
/* `result` is consumed (NULL: an empty object). Safe when the connection has closed meanwhile: the answer is dropped.
 */
void zps_rpc_reply(struct zps_rpc_request *request, zps_json *result);
void zps_rpc_reply_error(struct zps_rpc_request *request, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);

/* The longest line that the peer may send, from the next one on; ZPS_RPC_LINE_MAX at first. */
void zps_rpc_conn_set_line_max(struct zps_rpc_conn *conn, size_t line_max_bytes);
/* Of a listener's connection, which is a guest at first: the owner knows its peer. What waits for guests that do not
 * read has a limit for all of them together; what waits for others has the limit of each. */
void zps_rpc_conn_let_in(struct zps_rpc_conn *conn);
void zps_rpc_conn_set_ctx(struct zps_rpc_conn *conn, void *ctx); /* the owner's object behind this connection */
void *zps_rpc_conn_ctx(const struct zps_rpc_conn *conn);
const char *zps_rpc_conn_peer(const struct zps_rpc_conn *conn); /* "10.0.0.7:41234" or "unix (user 0, pid 17)" */
const char *zps_rpc_conn_role(const struct zps_rpc_conn *conn); /* the role that the peer named in hello */
const char *zps_rpc_conn_version(const struct zps_rpc_conn *conn);
/* What the peer's certificate lets it do, of enum zps_tls_role, and the first name in it; 0 and "" without TLS. */
unsigned zps_rpc_conn_certified(const struct zps_rpc_conn *conn);
const char *zps_rpc_conn_certificate(const struct zps_rpc_conn *conn);
/* When the peer's certificate ends, in seconds of the calendar; 0 without TLS. */
long long zps_rpc_conn_certificate_ends_s(const struct zps_rpc_conn *conn);
/* Whether it lets the peer register as the server of this name, and which names of servers are in it. Without TLS
 * nothing can be told: ZPS_TLS_SERVES_ALL, and "". */
enum zps_tls_serves zps_rpc_conn_serves(const struct zps_rpc_conn *conn, const char *name,
                                        char names_p[ZPS_TLS_SERVERS_MAX]);
struct zps_origin zps_rpc_conn_place(const struct zps_rpc_conn *conn); /* its address */
/* Whom it is counted for: the first name of its certificate, without one its address; the Unix socket. */
struct zps_origin zps_rpc_conn_owner(const struct zps_rpc_conn *conn);
/* The peer came over a Unix socket. The mode and group of its file say who may. */
bool zps_rpc_conn_is_unix(const struct zps_rpc_conn *conn);
/* The peer is on this host: it came over a Unix socket, or from the address that it went to. */
bool zps_rpc_conn_is_near(const struct zps_rpc_conn *conn);
/* What is under way: the peer's calls that are not answered, our calls without an answer, and bytes that the socket has
 * not taken. */
unsigned zps_rpc_conn_unanswered(const struct zps_rpc_conn *conn);
unsigned zps_rpc_conn_pending(const struct zps_rpc_conn *conn);
size_t zps_rpc_conn_unsent(const struct zps_rpc_conn *conn);
/* False once it is ending, also while the calls on it are failed for that. */
bool zps_rpc_conn_is_open(const struct zps_rpc_conn *conn);
/* When the peer was last heard of, by whatever it sent; a peer whose lines wait for their turn here is heard of with
 * each turn of the loop. */
uint64_t zps_rpc_conn_heard_ns(const struct zps_rpc_conn *conn);
/* The owner takes a silence of `dead_ms` for death: TCP gives a connection up, whose packets nobody acknowledges, no
 * earlier, but after 10 s at the earliest. 0: any silence is allowed; TCP then goes by the time of last time. */
void zps_rpc_conn_dead_after(struct zps_rpc_conn *conn, uint64_t dead_ms);
/* The owner ends the connection itself after a silence (silence.h), so TCP sets no time. Linux counts TCP_USER_TIMEOUT
 * from an earlier outage where this host's own card dropped packets, and ends the connection at once in the next one.
 */
void zps_rpc_conn_watched(struct zps_rpc_conn *conn);

#endif
