/*
 * Scratch objects of threads that work one task after the other: as many as there are threads, so that each thread
 * finds one whenever it begins, and the memory of the objects is used again. Any thread may call; a lock is held for a
 * few instructions a task.
 */
#ifndef ZPS_BASE_SCRATCH_H
#define ZPS_BASE_SCRATCH_H

#include "common/base/err.h"

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
