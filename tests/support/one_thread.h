/*
 * The engine (common/session/engine.h) and the pool (common/base/workpool.h) without threads, for tests that decide
 * themselves what happens next: linked in place of them, with ONE_THREAD among LDFLAGS for the clock. Calls run at
 * once; all else waits for one_thread_turn().
 */
#ifndef ZPS_TESTS_SUPPORT_ONE_THREAD_H
#define ZPS_TESTS_SUPPORT_ONE_THREAD_H

#include "common/session/engine.h"

/* What zps_clock_ns() says. */
extern uint64_t one_thread_now_ns;

/* A turn of the engine's thread, with a tick where something has happened or the time has come for it. False: nothing
 * has. */
bool one_thread_turn(struct zps_engine *engine);
/* Runs the oldest task of all pools; false: there is none. */
bool one_thread_work(void);

#endif
