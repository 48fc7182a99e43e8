/* What loops and sockets of the simulation's libuv know of each other. */
#ifndef ZPS_TESTS_SIM_UV_IMPL_H
#define ZPS_TESTS_SIM_UV_IMPL_H

#include "tests/sim/uv.h"

enum { UV_IS_ACTIVE = 1, UV_IS_CLOSING = 2 }; /* flags of a handle */

/* A callback that the loop owes. */
struct owed {
  struct owed *next;
  uint64_t due_ns;
  enum { OWED_POST, OWED_CONNECT, OWED_WRITE, OWED_SHUTDOWN } kind;
  void *of; /* the request */
  uv_handle_t *handle;
  int status;
  void (*run)(void *ctx);
};

struct loop {
  const struct sim_process *process;
  struct owed *owed, **owed_tail;
  uv_timer_t *timers; /* active, by heap_node[0] */
  uv_handle_t *prepares, *checks;
  uv_handle_t *closing; /* by next_closing */
  uv_async_t *asyncs;   /* by queue[0] */
  uv_idle_t *idles;
  unsigned n_handles; /* handles that keep the loop running */
  uint64_t n_timers;  /* ever started: equal times go by this */
};

static inline struct loop *sim_uv_loop(const uv_loop_t *uv) {
  return uv->internal_fields;
}

/* Begins a handle, which keeps its loop running. */
void sim_uv_handle(uv_loop_t *uv, uv_handle_t *handle, uv_handle_type type);
/* The loop runs the callback of the request `of` then; where its handle ends before, with UV_ECANCELED. */
struct owed *sim_uv_owe(uv_loop_t *uv, int kind, void *of, uv_handle_t *handle, int status, uint64_t due_ns);

/* Any one socket that is ready; false: none is. */
bool sim_uv_run_socket(struct loop *loop);
/* When the next one is; ZPS_NEVER: not by itself. */
uint64_t sim_uv_sockets_due_ns(const struct loop *loop);
/* The other end hears of it. */
void sim_uv_tcp_closed(uv_tcp_t *tcp);

#endif
