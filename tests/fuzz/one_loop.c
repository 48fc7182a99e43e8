#include "tests/fuzz/one_loop.h"

#include <time.h>

#include "common/base/clock.h"
#include "tests/sim/sched.h"

uint64_t one_loop_now_ns, one_loop_until_ns;

static struct sim_process process = {.name = "fuzz"};
static struct zps_rng rng;
static void (*next)(void *ctx);
static void *next_ctx;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
  if (clock != CLOCK_MONOTONIC) return __real_clock_gettime(clock, now);
  *now = zps_clock_timespec(one_loop_now_ns);
  return 0;
}

void one_loop_begin(uint64_t seed, void (*do_next)(void *ctx), void *ctx) {
  one_loop_now_ns = one_loop_until_ns = ZPS_NS_PER_S;
  rng = (struct zps_rng){.state = seed};
  next = do_next;
  next_ctx = ctx;
}

/* ---- what tests/sim/uv.c asks of tests/sim/sched.h ---- */

uint64_t sim_now_ns(void) {
  return one_loop_now_ns;
}
uint64_t sim_random(uint64_t below) {
  return zps_rng_below(&rng, below);
}
bool sim_chance(uint64_t n) {
  return sim_random(n) == 0;
}
struct sim_process *sim_process_here(void) {
  return &process;
}
void sim_wake_all(const void *on) {
  (void)on;
}
void sim_yield(void) {}

bool sim_wait(const void *on, uint64_t until_ns) {
  (void)on;
  if (until_ns <= one_loop_until_ns)
    one_loop_now_ns = until_ns;
  else if (one_loop_now_ns < one_loop_until_ns)
    one_loop_now_ns = one_loop_until_ns;
  else
    next(next_ctx);
  return false;
}
