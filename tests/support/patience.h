/*
 * How long a test waits for something: for progress, not for seconds. On a busy machine a test gets little of the
 * processors, and what it waits for does, too. So the time that counts is that which the waiting thread had a
 * processor. A thread that sleeps between its looks has little of that: for it there is a bound of minutes. Both are
 * for hangs alone: no test is right because such a time has passed.
 *
 *   struct patience patience = {0};
 *   while (!condition) {
 *     if (patience_is_over(&patience)) fail_msg(...);
 *     turn();
 *   }
 */
#ifndef ZPS_TESTS_PATIENCE_H
#define ZPS_TESTS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define PATIENCE_CPU_NS 60000000000ull   /* a minute of a processor, in vain */
#define PATIENCE_WALL_NS 600000000000ull /* ten minutes without progress */
/* For what is tested: a time that is not to pass before what is waited for has happened. */
#define PATIENCE_NEVER_MS 3600000u

struct patience {
  uint64_t cpu_ns, wall_ns; /* when it began, or what is watched moved; 0: it begins with the next look */
  uint64_t moved;           /* what is watched */
};

/* Not zps_clock_ns(), which some tests replace. */
static inline uint64_t patience_now_ns(clockid_t clock) {
  struct timespec now = {0, 0};
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline bool patience_is_over(struct patience *patience) {
  const uint64_t cpu_ns = patience_now_ns(CLOCK_THREAD_CPUTIME_ID), wall_ns = patience_now_ns(CLOCK_MONOTONIC);
  if (patience->wall_ns == 0) {
    patience->cpu_ns = cpu_ns;
    patience->wall_ns = wall_ns;
  }
  return cpu_ns - patience->cpu_ns > PATIENCE_CPU_NS || wall_ns - patience->wall_ns > PATIENCE_WALL_NS;
}

/* Follows a counter that shows progress: the time begins anew whenever it has changed. */
static inline bool patience_is_over_at(struct patience *patience, uint64_t counter) {
  if (counter != patience->moved) *patience = (struct patience){.moved = counter};
  return patience_is_over(patience);
}

/* Between two looks at what another thread does. Looks without a pause keep a core busy, and the other thread too where
 * it answers them. */
static inline void patience_nap(void) {
  nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

#endif
