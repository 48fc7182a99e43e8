/* Time. Pure code takes `now_ns` as an argument; only loops and threads ask the clock. */
#ifndef ZPS_BASE_CLOCK_H
#define ZPS_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define ZPS_NS_PER_US 1000ull
#define ZPS_NS_PER_MS 1000000ull
#define ZPS_NS_PER_S 1000000000ull
#define ZPS_NEVER UINT64_MAX /* a deadline that does not come */

static inline uint64_t zps_clock_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * ZPS_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* The calendar, in microseconds since 1970, UTC. It may be wrong, and may jump. */
static inline uint64_t zps_clock_utc_us(void) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / ZPS_NS_PER_US;
}

/* A deadline of this clock, or a span of time, as the system's calls want it. */
static inline struct timespec zps_clock_timespec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / ZPS_NS_PER_S), .tv_nsec = (long)(ns % ZPS_NS_PER_S)};
}

#endif
