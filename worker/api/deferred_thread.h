/* What of a job waits for its coordinator, and the thread that goes on with it: started when it is first needed. */
#ifndef ZPS_WORKER_API_DEFERRED_THREAD_H
#define ZPS_WORKER_API_DEFERRED_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_deferred; /* allreduce.c */
struct zps_deferred_thread;

/* Under the lock, which may be given up meanwhile: goes on with one waiter, or the agreements that are made again.
 * False: nothing is due before *until_ns. */
typedef bool (*zps_deferred_thread_serve_fn)(struct zps_deferred_thread *waiting, uint64_t *until_ns);

/* Guarded by the job's lock. */
struct zps_deferred_thread {
  pthread_mutex_t *lock; /* the job's */
  zps_deferred_thread_serve_fn serve;
  pthread_t thread;
  bool has_thread, ends;
  pthread_cond_t due; /* something has come that waiters wait for, or one has come */
  struct zps_deferred *first, **last_p;
  uint64_t again_ns; /* a failed agreement is made again; ZPS_NEVER: none is */
};

void zps_deferred_thread_init(struct zps_deferred_thread *waiting, pthread_mutex_t *lock);
/* Under the lock: starts the thread, unless there is one. */
zps_err_t zps_deferred_thread_start(struct zps_deferred_thread *waiting,
                                    zps_deferred_thread_serve_fn serve) ZPS_MUSTCHECK;
/* The thread serves what is left, which sees `ends`, and is gone. */
void zps_deferred_thread_end(struct zps_deferred_thread *waiting);

#endif
