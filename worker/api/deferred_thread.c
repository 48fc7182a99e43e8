#include "worker/api/deferred_thread.h"

#include "common/base/thread.h"

void zps_deferred_thread_init(struct zps_deferred_thread *waiting, pthread_mutex_t *lock) {
  zps_thread_cond_init(&waiting->due);
  waiting->lock = lock;
  waiting->last_p = &waiting->first;
  waiting->again_ns = ZPS_NEVER;
}

static void *run(void *ctx) {
  struct zps_deferred_thread *const waiting = ctx;
  uint64_t until_ns;
  pthread_mutex_lock(waiting->lock);
  while (!waiting->ends || waiting->first) {
    if (!waiting->serve(waiting, &until_ns)) zps_thread_wait(&waiting->due, waiting->lock, until_ns);
  }
  pthread_mutex_unlock(waiting->lock);
  return NULL;
}

zps_err_t zps_deferred_thread_start(struct zps_deferred_thread *waiting, zps_deferred_thread_serve_fn serve) {
  if (waiting->has_thread) return ZPS_OK;
  waiting->serve = serve;
  waiting->has_thread = zps_thread_start(&waiting->thread, run, waiting) == 0;
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
