/*
 * One loop of tests/sim/uv.c, without the simulation's fibers: for a fuzz target that decides itself what happens next.
 * Linked with tests/sim/uv.c in place of tests/sim/sched.c, with ONE_THREAD among LDFLAGS for the clock.
 */
#ifndef ZPS_TESTS_FUZZ_ONE_LOOP_H
#define ZPS_TESTS_FUZZ_ONE_LOOP_H

#include <stdint.h>

/* What zps_clock_ns() says; it goes on inside uv_run(), up to `one_loop_until_ns`. */
extern uint64_t one_loop_now_ns, one_loop_until_ns;

/* Begins anew. Whenever all has happened that was to happen until `one_loop_until_ns`, uv_run() calls next(ctx), which
 * does something, or puts that off. */
void one_loop_begin(uint64_t seed, void (*next)(void *ctx), void *ctx);

#endif
