#include "worker/api/deferred_thread.h"

#include <signal.h>

#include "common/base/clock.h"

void zps_deferred_thread_init(struct zps_deferred_thread *waiting, pthread_mutex_t *lock) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&waiting->due, &attr);
  pthread_condattr_destroy(&attr);
  waiting->lock = lock;
  waiting->last_p = &waiting->first;
  waiting->again_ns = ZPS_NEVER;
}

static void *run(void *ctx) {
  struct zps_deferred_thread *const waiting = ctx;
  uint64_t until_ns;
  pthread_mutex_lock(waiting->lock);
  while (!waiting->ends || waiting->first) {
    if (waiting->serve(waiting, &until_ns)) continue;
    const struct timespec until = zps_clock_timespec(until_ns);
    if (until_ns == ZPS_NEVER)
      pthread_cond_wait(&waiting->due, waiting->lock);
    else
      pthread_cond_timedwait(&waiting->due, waiting->lock, &until);
  }
  pthread_mutex_unlock(waiting->lock);
  return NULL;
}

/* With all signals blocked: they are the program's. */
zps_err_t zps_deferred_thread_start(struct zps_deferred_thread *waiting, zps_deferred_thread_serve_fn serve) {
  sigset_t all, before;
  if (waiting->has_thread) return ZPS_OK;
  waiting->serve = serve;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  waiting->has_thread = pthread_create(&waiting->thread, NULL, run, waiting) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!waiting->has_thread) return ZPS_ERR_NOMEM;
  pthread_setname_np(waiting->thread, "zenps-waiting");
  return ZPS_OK;
}

void zps_deferred_thread_end(struct zps_deferred_thread *waiting) {
  pthread_mutex_lock(waiting->lock);
  waiting->ends = true;
  pthread_cond_broadcast(&waiting->due);
  pthread_mutex_unlock(waiting->lock);
  if (waiting->has_thread) pthread_join(waiting->thread, NULL);
  waiting->has_thread = false;
}
