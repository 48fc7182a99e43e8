/*
 * libuv as the control plane uses it, in the simulation: a loop is a fiber, its sockets are byte streams between the
 * simulation's processes that take some time, its timers are the simulation's. What is defined here takes the place of
 * libuv's own functions; of those that it leaves to libuv none is called.
 */
#ifndef ZPS_TESTS_SIM_UV_H
#define ZPS_TESTS_SIM_UV_H

#include <uv.h>

#include "tests/sim/sched.h"

/* From any fiber of any process: runs on the loop. `ctx` is borrowed until then. */
void sim_uv_post(uv_loop_t *loop, void (*run)(void *ctx), void *ctx);
/* The process is dead: its sockets end, and nobody listens there any more. */
void sim_uv_killed(const struct sim_process *process);
/* The network ends all connections of the process, which lives. */
void sim_uv_cut(const struct sim_process *process);

#endif
