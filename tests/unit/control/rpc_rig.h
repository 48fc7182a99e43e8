/* Two ends of a JSON-RPC connection on one loop, and the events that each has seen; or one end, and a plain socket. */
#ifndef ZPS_TESTS_CONTROL_RPC_RIG_H
#define ZPS_TESTS_CONTROL_RPC_RIG_H

#include "common/control/rpc_internal.h"
#include "tests/support/patience.h"

enum { HELD_MAX = 8 };

/* The events that one end has seen. */
struct end {
  struct zps_tls *tls;
  struct zps_rpc_conn *conn;
  int n_open, n_close, n_message, n_connected;
  zps_err_t close_code, connect_code;
  char reason[500], method[64];
  uint64_t param;
  struct zps_rpc_request *held[HELD_MAX];
  int n_held;
  bool hold; /* keep requests instead of answering */
  struct result {
    int n;
    zps_err_t code;
    uint64_t value;
    char text[500];
  } results[HELD_MAX];
};

struct world {
  uv_loop_t loop;
  struct zps_rpc_listener *listener;
  struct end server, client;
};

/* One turn of the loop. Fails the test when the patience is over. */
void rpc_tick(struct world *world, struct patience *patience);

#define SPIN_UNTIL(world, condition) \
  for (struct patience patience_ = {0}; !(condition);) rpc_tick((world), &patience_)

/* A listener at `address` (rpc_world_open(): any port of this host). */
void rpc_world_open_at(struct world *world, const char *address);
void rpc_world_open(struct world *world);
/* Opens a world whose ends speak TLS. */
void rpc_world_open_tls(struct world *world, struct zps_tls *listener, struct zps_tls *client);
/* Begins to connect the client; rpc_world_connect() to the listener, until both ends know. */
zps_err_t rpc_dial(struct world *world, const char *address, uint64_t timeout_ms);
void rpc_world_connect(struct world *world);
void rpc_world_close(struct world *world);

struct zps_rpc_handler rpc_handler_of(struct end *end);
zps_json *rpc_x_is(uint64_t x);
/* A call by the client, whose outcome goes to results[slot]; rpc_on_result() notes it, with a struct result. */
void rpc_call(struct world *world, const char *method, uint64_t x, uint64_t timeout_ms, int slot);
void rpc_on_result(void *ctx, const zps_json *result, const struct zps_error *error);

/* Plain sockets; the loop goes on while they wait. Bytes that the peer no longer takes are dropped. */
int rpc_raw_connect(struct world *world);
void rpc_raw_send(struct world *world, int fd, const char *text, size_t len);
/* Everything the peer sends until it closes. */
void rpc_raw_read_to_end(struct world *world, int fd, char *buf, size_t size);
void rpc_raw_read_line(struct world *world, int fd, char *buf, size_t size);

#endif
