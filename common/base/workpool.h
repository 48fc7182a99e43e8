/*
 * A small pool of threads for work that is heavier than a message: encode, reduce, decode.
 *
 * A task is a struct zps_work embedded in the caller's object: nothing is allocated for it. Its run() executes on a
 * thread of the pool, and itself says that it is done, as the caller likes. Tasks start in the order submitted, those
 * of flows in their turns (fair.h).
 */
#ifndef ZPS_BASE_WORKPOOL_H
#define ZPS_BASE_WORKPOOL_H

#include "common/base/err.h"
#include "common/base/fair.h"

struct zps_work {
  void (*run)(struct zps_work *work);
  struct zps_fair_item item; /* the pool's */
};

struct zps_workpool;

/* `n_threads` >= 1; `name` prefixes the threads' names (at most 10 characters are kept). */
zps_err_t zps_workpool_create(unsigned n_threads, const char *name, struct zps_workpool **pool_p) ZPS_MUSTCHECK;
/* Runs what was submitted, then joins the threads. NULL is allowed. */
void zps_workpool_destroy(struct zps_workpool *pool);
/* `work` is borrowed until its run() returns. Never fails, never blocks. */
void zps_workpool_submit(struct zps_workpool *pool, struct zps_work *work);
/* Submits a task of this flow, at this cost. `flow` is one pool's; NULL: no flow, as zps_workpool_submit(). */
void zps_workpool_submit_for(struct zps_workpool *pool, struct zps_fair_flow *flow, struct zps_work *work,
                             uint64_t cost);
/* What the flow's tasks have cost that were begun. */
struct zps_fair_served zps_workpool_served(struct zps_workpool *pool, const struct zps_fair_flow *flow);
unsigned zps_workpool_threads(const struct zps_workpool *pool);
/* The number of the pool's threads that were idle just then. NULL has none. */
unsigned zps_workpool_idle(struct zps_workpool *pool);
/* Runs fn(ctx, i) for i in [0, n) on the pool's threads and on the caller's, and returns when all are done. Each thread
 * begins with a stretch of its own, the same from call to call with the same n: what is in its caches stays there. The
 * call never waits for a thread that is busy with something else, so fn and tasks of the pool may also call it. A
 * thread of the pool that does not get a processor may be kept off the caller's for some microseconds. Afterwards
 * sched_setaffinity() gives it the processors that it had before, without those that its cpuset gained meanwhile. */
void zps_workpool_for(struct zps_workpool *pool, unsigned n, void (*fn)(void *ctx, unsigned i), void *ctx);

/*
 * Scratch objects of the threads of a pool: as many as there are threads, so that each task finds one when it begins,
 * and its memory is used again. Any thread may call; a lock is held for a few instructions a task.
 */

struct zps_scratch_pool;

/* `n` objects made by `create` and ended by `destroy`. */
zps_err_t zps_scratch_pool_create(unsigned n, zps_err_t (*create)(void **scratch_p), void (*destroy)(void *scratch),
                                  struct zps_scratch_pool **pool_p) ZPS_MUSTCHECK;
/* All have been put back. NULL is allowed. */
void zps_scratch_pool_destroy(struct zps_scratch_pool *pool);
/* The caller's until it is put back; at most `n` callers have one. */
void *zps_scratch_get(struct zps_scratch_pool *pool);
void zps_scratch_put(struct zps_scratch_pool *pool, void *scratch);

#endif
