/* Threads of a library in somebody else's program, and waits with deadlines of zps_clock_ns(). */
#ifndef ZPS_BASE_THREAD_H
#define ZPS_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "common/base/clock.h"

/* All signals are blocked in the thread: they are the program's, and a closed peer must not raise SIGPIPE. Returns what
 * pthread_create() does. */
static inline int zps_thread_start(pthread_t *thread, void *(*run)(void *ctx), void *ctx) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int status = pthread_create(thread, NULL, run, ctx);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return status;
}

/* A condition for zps_thread_wait(). */
static inline void zps_thread_cond_init(pthread_cond_t *cond) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attr);
  pthread_condattr_destroy(&attr);
}

/* Waits for a change. False: the deadline has passed. ZPS_NEVER: there is none. */
static inline bool zps_thread_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns) {
  if (deadline_ns == ZPS_NEVER) return pthread_cond_wait(cond, lock) == 0;
  const struct timespec until = zps_clock_timespec(deadline_ns);
  return pthread_cond_timedwait(cond, lock, &until) == 0;
}

#endif
