/* Scratch objects stand beside the pool: tests put another pool in its place and keep these. */
#include <pthread.h>
#include <stdlib.h>

#include "common/base/workpool.h"

struct zps_scratch_pool {
  pthread_mutex_t lock;
  void (*destroy)(void *scratch);
  unsigned n_free;
  void *free[];
};

zps_err_t zps_scratch_pool_create(unsigned n, zps_err_t (*create)(void **scratch_p), void (*destroy)(void *scratch),
                                  struct zps_scratch_pool **pool_p) {
  struct zps_scratch_pool *pool = calloc(1, sizeof *pool + n * sizeof pool->free[0]);
  if (!pool) return ZPS_ERR_NOMEM;
  pthread_mutex_init(&pool->lock, NULL);
  pool->destroy = destroy;
  for (; pool->n_free < n; pool->n_free++) {
    const zps_err_t code = create(&pool->free[pool->n_free]);
    if (code == ZPS_OK) continue;
    zps_scratch_pool_destroy(pool);
    return code;
  }
  *pool_p = pool;
  return ZPS_OK;
}

void zps_scratch_pool_destroy(struct zps_scratch_pool *pool) {
  if (!pool) return;
  while (pool->n_free > 0) pool->destroy(pool->free[--pool->n_free]);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

void *zps_scratch_get(struct zps_scratch_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  void *scratch = pool->free[--pool->n_free];
  pthread_mutex_unlock(&pool->lock);
  return scratch;
}

void zps_scratch_put(struct zps_scratch_pool *pool, void *scratch) {
  pthread_mutex_lock(&pool->lock);
  pool->free[pool->n_free++] = scratch;
  pthread_mutex_unlock(&pool->lock);
}
