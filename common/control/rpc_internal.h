/* Shared by the files rpc_*.c: the connection behind the handle. */
#ifndef ZPS_CONTROL_RPC_INTERNAL_H
#define ZPS_CONTROL_RPC_INTERNAL_H

#include "common/base/clock.h"
#include "common/base/forked.h"
#include "common/control/address.h"
#include "common/control/lines.h"
#include "common/control/message.h"
#include "common/control/rpc.h"

#define ZPS_RPC_HELLO_LINE_MAX (4u << 10) /* longest line of a peer that has not said hello */
#define ZPS_RPC_TURN_LINES 32u /* lines that a listener reads from one connection before the others have their turn */
#define ZPS_RPC_WRITE_MAX (16u << 20)        /* unsent bytes before a peer that does not read is closed */
#define ZPS_RPC_GUESTS_WRITE_MAX (32u << 20) /* of all guests of a listener, before the greediest is closed */
#define ZPS_RPC_HELLO_MS 5000u               /* for saying hello after connecting to a listener */
#define ZPS_RPC_LINGER_MS 1000u              /* for taking the last messages written, when closing */
#define ZPS_RPC_KEEPALIVE_S 10u
#define ZPS_RPC_USER_TIMEOUT_MS 10000u /* at least: the owner may allow longer silence */

static inline uint64_t zps_rpc_deadline_ns(uint64_t timeout_ms) {
  const uint64_t now_ns = zps_clock_ns();
  return timeout_ms >= (ZPS_NEVER - now_ns) / ZPS_NS_PER_MS ? ZPS_NEVER : now_ns + timeout_ms * ZPS_NS_PER_MS;
}

typedef void (*zps_rpc_connected_fn)(void *ctx, struct zps_rpc_conn *conn, const struct zps_error *error);

enum zps_rpc_state {
  ZPS_RPC_CONNECTING, /* client: resolving and connecting */
  ZPS_RPC_HELLO,      /* connected; the hello or its answer is awaited */
  ZPS_RPC_OPEN,
  ZPS_RPC_LINGERING, /* closing: writes are flushed, bytes that arrive are dropped */
  ZPS_RPC_CLOSED,    /* handles are being closed */
};

union zps_rpc_socket {
  uv_handle_t handle;
  uv_stream_t stream;
  uv_tcp_t tcp;
  uv_pipe_t pipe;
};

struct zps_rpc_pending { /* a call of ours, unanswered */
  struct zps_rpc_pending *next;
  uint64_t number, deadline_ns;
  zps_rpc_result_fn done;
  void *ctx;
  char method[48]; /* for the error text */
};

struct zps_rpc_write { /* a line on its way out */
  uv_write_t write;
  char *line;
  size_t len;
  struct zps_rpc_write *next; /* held back */
};

struct zps_rpc_dial { /* client: on the way to a connection */
  struct zps_address address;
  char text[300]; /* the address as given */
  bool is_own;    /* the present attempt is at this user's own socket for the address */
  uv_getaddrinfo_t resolve;
  uv_connect_t connect;
  bool resolving;
  struct addrinfo *list, *next;
  unsigned left;        /* addresses not yet tried */
  int status;           /* of the last attempt */
  uint64_t deadline_ns; /* of everything up to the answered hello */
  zps_rpc_connected_fn connected;
};

struct zps_rpc_conn {
  uv_loop_t *loop;
  union zps_rpc_socket socket;
  uv_timer_t timer; /* the earliest of `deadline_ns` and the pending calls' */
  uv_shutdown_t shutdown;
  unsigned holds; /* handles and requests that libuv still knows: zero frees the connection */
  bool has_socket;
  struct zps_forked forked; /* the socket, from ZPS_RPC_HELLO on */
  enum zps_rpc_state state;
  uint64_t deadline_ns;    /* of the present state */
  bool flushed, peer_done; /* LINGERING: all is written; the peer has closed its side */
  bool is_deaf;            /* HELLO, OPEN: the peer reads no more; what it said before is read until its end */
  bool announced;          /* the owner knows this connection: on_close is due */

  struct zps_rpc_listener *listener; /* server side */
  struct zps_rpc_conn *prev, *next;  /* among the listener's */
  struct zps_stranger stranger;      /* until the peer has said hello, or the connection ends */
  struct zps_origin origin;
  bool is_let_in;
  struct zps_rpc_dial *dial; /* client side */

  struct zps_rpc_handler handler;
  void *ctx;
  char self_role[32], peer[64], role[32], version[32];
  uint64_t heard_ns;

  struct zps_tls_session *tls; /* between the socket and the lines; NULL: nothing is, or not yet */
  struct zps_lines lines;
  unsigned n_taken; /* lines, in this turn */
  bool has_more;    /* lines may be there that wait for the loop's next turn; nothing is read meanwhile */
  uint64_t last_number;
  struct zps_rpc_pending *pending, **pending_tail;
  unsigned n_pending;
  struct zps_rpc_request *requests;
  unsigned n_requests;

  struct zps_rpc_write *held, **held_tail; /* the listener is held */
  size_t held_bytes;

  zps_err_t close_code;
  char close_reason[400];
};

struct zps_rpc_request {
  struct zps_rpc_conn *conn; /* NULL when it has closed meanwhile */
  struct zps_rpc_request *prev, *next;
  zps_json *id;
};

/* ---- rpc_conn.c: life and bytes ---- */

zps_err_t zps_rpc_conn_create(uv_loop_t *loop, const char *role, const struct zps_rpc_handler *handler,
                              struct zps_rpc_conn **conn_p) ZPS_MUSTCHECK;
/* The socket is connected: sets its options, names the peer, reads. The state is HELLO until `deadline_ns`. */
zps_err_t zps_rpc_conn_start(struct zps_rpc_conn *conn, uint64_t deadline_ns, struct zps_error *error) ZPS_MUSTCHECK;
/* Ends the connection at once, saying why; the first reason stays. */
void zps_rpc_conn_fail(struct zps_rpc_conn *conn, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);
/* Ends the connection after the peer has taken the written messages, or the time for lingering is over. */
void zps_rpc_conn_linger(struct zps_rpc_conn *conn, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);
/* Consumes `message`. */
zps_err_t zps_rpc_conn_write(struct zps_rpc_conn *conn, zps_json *message) ZPS_MUSTCHECK;
/* Writes what was held back; a connection that is closing drops it. */
void zps_rpc_conn_release(struct zps_rpc_conn *conn);
/* Bytes as they are, in turn with what was written before. Consumes them. */
zps_err_t zps_rpc_conn_write_raw(struct zps_rpc_conn *conn, char *bytes, size_t len) ZPS_MUSTCHECK;
/* Handles the lines that have come. */
void zps_rpc_conn_take_lines(struct zps_rpc_conn *conn);
/* Takes the lines that had to wait, and reads on. */
void zps_rpc_conn_go_on(struct zps_rpc_conn *conn);
void zps_rpc_conn_arm_timer(struct zps_rpc_conn *conn);
/* Takes one off `holds`; frees the connection with the last. */
void zps_rpc_conn_unhold(struct zps_rpc_conn *conn);

/* ---- rpc.c: calls and answers ---- */

/* Handles a line of the peer's; may end the connection. */
void zps_rpc_dispatch(struct zps_rpc_conn *conn, const char *line, size_t len);
/* Fails the calls whose deadline has come; returns the next deadline. */
uint64_t zps_rpc_expire(struct zps_rpc_conn *conn, uint64_t now_ns);
/* Fails all calls, cuts requests loose. */
void zps_rpc_abandon(struct zps_rpc_conn *conn, const struct zps_error *error);

/* ---- rpc_hello.c ---- */

/* Client: says hello; the answer ends in `dial->connected`. */
zps_err_t zps_rpc_hello_send(struct zps_rpc_conn *conn) ZPS_MUSTCHECK;
/* Server: the first message of a connection. */
void zps_rpc_hello_receive(struct zps_rpc_conn *conn, const struct zps_message *message);

/* ---- rpc_tls.c ---- */

/* Whether the owner has asked for it, and the connection is one of TCP. */
bool zps_rpc_tls_is_spoken(const struct zps_rpc_conn *conn);
/* TLS begins, where it is spoken and has not begun: of a client, which speaks first, with the connection, of a listener
 * with the first bytes, so that peers which say nothing cost no session. */
zps_err_t zps_rpc_tls_start(struct zps_rpc_conn *conn, struct zps_error *error) ZPS_MUSTCHECK;
/* The socket's bytes, which may lie in the room for lines; may end the connection. */
void zps_rpc_tls_received(struct zps_rpc_conn *conn, const char *bytes, size_t len);
/* Takes what had to wait for this turn. */
void zps_rpc_tls_go_on(struct zps_rpc_conn *conn);
/* Whether a peer begins to speak TLS where there is none; then it is told, and the connection ends. */
bool zps_rpc_tls_is_unwanted(const struct zps_rpc_conn *conn, const char *bytes, size_t len);
void zps_rpc_tls_refuse(struct zps_rpc_conn *conn);
/* Consumes a line of ours, which has `len` bytes, and a NUL. */
zps_err_t zps_rpc_tls_write(struct zps_rpc_conn *conn, char *line, size_t len) ZPS_MUSTCHECK;
/* Tells the peer that nothing more follows; may end the connection. */
void zps_rpc_tls_end(struct zps_rpc_conn *conn);
/* Server: whether the certificate is one of the role that the peer has named. */
zps_err_t zps_rpc_tls_check_role(const struct zps_rpc_conn *conn, struct zps_error *error) ZPS_MUSTCHECK;

/* ---- rpc_connect.c ---- */

/* The present attempt has had its share of the time. */
void zps_rpc_dial_expired(struct zps_rpc_conn *conn);
/* The connection is being closed. */
void zps_rpc_dial_cancel(struct zps_rpc_conn *conn);
void zps_rpc_dial_destroy(struct zps_rpc_dial *dial);

/* ---- rpc_listen.c ---- */

/* NULL: hello is answered; else why it is refused, and who leads. */
const char *zps_rpc_listener_refusal(const struct zps_rpc_listener *listener, const char **leader_p);
bool zps_rpc_listener_is_held(const struct zps_rpc_listener *listener);
/* A connection of its has more lines than fit in a turn of the loop. */
void zps_rpc_listener_go_on(struct zps_rpc_listener *listener);
/* `conn` is about to write `len` bytes more. Closes guests that do not read, the greediest first, until there is room
 * for them; it may be `conn` itself. */
void zps_rpc_listener_make_room(struct zps_rpc_conn *conn, size_t len);
/* The peer has said hello, or the connection ends. */
void zps_rpc_listener_know(struct zps_rpc_conn *conn);
void zps_rpc_listener_drop(struct zps_rpc_listener *listener, struct zps_rpc_conn *conn);
/* For tests: another limit than ZPS_RPC_HELLO_MS. */
void zps_rpc_listener_set_hello_ms(struct zps_rpc_listener *listener, uint64_t hello_ms);

#endif
