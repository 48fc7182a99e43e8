/*
 * What the program asks the C library for, and the simulation answers: threads are fibers, time is the simulation's,
 * and so is chance. Linked by --wrap.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "common/base/waits.h"
#include "common/plan/calibration.h"
#include "tests/sim/sched.h"

enum {
  LOOK_NS = 20,         /* cost of asking for the time: a loop that looks until it has passed gets there */
  UNLOCKS_A_YIELD = 64, /* after one in so many another thread runs first */
};

bool sim_logs;

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __real_clock_gettime(clockid_t clock, struct timespec *ts);
pid_t __real_getpid(void);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
  (void)attr;
  *thread = (pthread_t)sim_fiber_start(run, arg);
  return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result) {
  void *const value = sim_fiber_join((struct sim_fiber *)thread);
  if (result) *result = value;
  return 0;
}

int __wrap_pthread_detach(pthread_t thread);
int __wrap_pthread_detach(pthread_t thread) {
  (void)thread;
  return 0;
}

pthread_t __wrap_pthread_self(void);
pthread_t __wrap_pthread_self(void) {
  return (pthread_t)sim_fiber_here();
}

int __wrap_pthread_setname_np(pthread_t thread, const char *name);
int __wrap_pthread_setname_np(pthread_t thread, const char *name) {
  sim_fiber_name((struct sim_fiber *)thread, name);
  return 0;
}

int __wrap_pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *set);
int __wrap_pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *set) {
  (void)thread, (void)size, (void)set;
  return ENOSYS;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
  int status;
  while ((status = pthread_mutex_trylock(mutex)) == EBUSY) sim_yield();
  return status;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
  const int status = __real_pthread_mutex_unlock(mutex);
  const bool logs = sim_logs;
  sim_logs = false;
  if (!logs && sim_fiber_here() && sim_chance(UNLOCKS_A_YIELD)) sim_yield();
  return status;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
  __real_pthread_mutex_unlock(mutex);
  sim_wait(cond, ZPS_NEVER);
  return __wrap_pthread_mutex_lock(mutex);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
  __real_pthread_mutex_unlock(mutex);
  const bool woken = sim_wait(cond, (uint64_t)until->tv_sec * ZPS_NS_PER_S + (uint64_t)until->tv_nsec);
  const int status = __wrap_pthread_mutex_lock(mutex);
  return status || woken ? status : ETIMEDOUT;
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_signal(pthread_cond_t *cond) {
  sim_wake_one(cond);
  return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond) {
  sim_wake_all(cond);
  return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ts) {
  if (!sim_fiber_here()) return __real_clock_gettime(clock, ts);
  sim_spend(LOOK_NS);
  *ts = zps_clock_timespec(sim_now_ns());
  return 0;
}

int __wrap_nanosleep(const struct timespec *span, struct timespec *left);
int __wrap_nanosleep(const struct timespec *span, struct timespec *left) {
  if (left) *left = (struct timespec){0};
  sim_sleep((uint64_t)span->tv_sec * ZPS_NS_PER_S + (uint64_t)span->tv_nsec);
  return 0;
}

int __wrap_sched_yield(void);
int __wrap_sched_yield(void) {
  sim_spend(ZPS_NS_PER_MS / 1000);
  sim_yield();
  return 0;
}

ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags);
ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags) {
  (void)flags;
  for (size_t i = 0; i < len; i++) ((unsigned char *)buf)[i] = (unsigned char)sim_random(256);
  return (ssize_t)len;
}

/* The kernel counts how long the one real thread waits for a processor. */
void __wrap_zps_waits_init(struct zps_waits *waits);
void __wrap_zps_waits_init(struct zps_waits *waits) {
  *waits = (struct zps_waits){.fd = -1};
}

/* The simulation has descriptors enough. Coordinators look at each tick, which took 3% of a seed's time. */
void __wrap_zps_coordinator_check_descriptors(void);
void __wrap_zps_coordinator_check_descriptors(void) {}

/* It has real threads wake each other, and measures true time. */
void __wrap_zps_plan_calibration_measure(struct zps_plan_calibration *calibration);
void __wrap_zps_plan_calibration_measure(struct zps_plan_calibration *calibration) {
  zps_plan_calibration_default(calibration);
}

int __real_gethostname(char *name, size_t size);
int __wrap_gethostname(char *name, size_t size);
int __wrap_gethostname(char *name, size_t size) {
  const struct sim_process *const process = sim_process_here();
  if (!process) return __real_gethostname(name, size);
  snprintf(name, size, "host-%u", process->host);
  return 0;
}

pid_t __wrap_getpid(void);
pid_t __wrap_getpid(void) {
  const struct sim_process *const process = sim_process_here();
  return process ? (pid_t)process->pid : __real_getpid();
}
