#include "worker/round/row_arrays.h"

#include <stdlib.h>

/* Arrays that are so many times larger than needed are not used up on a small result. */
#define WASTE_MAX 4u
#define WASTE_BYTES (1u << 20)

static void arrays_fini(struct zps_row_arrays *arrays) {
  zps_buffer_fini(&arrays->rows);
  zps_buffer_fini(&arrays->values);
}

zps_err_t zps_row_arrays_pool_create(struct zps_row_arrays_pool **pool_p) {
  struct zps_row_arrays_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return ZPS_ERR_NOMEM;
  pthread_mutex_init(&pool->lock, NULL);
  pool->refs = 1;
  *pool_p = pool;
  return ZPS_OK;
}

static void unref(struct zps_row_arrays_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  const bool is_last = --pool->refs == 0;
  pthread_mutex_unlock(&pool->lock);
  if (!is_last) return;
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

static void drop(struct zps_row_arrays_pool *pool, bool closes) {
  pthread_mutex_lock(&pool->lock);
  pool->is_closed |= closes;
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE; i++) arrays_fini(&pool->spare[i]);
  pthread_mutex_unlock(&pool->lock);
}

void zps_row_arrays_pool_drop(struct zps_row_arrays_pool *pool) {
  drop(pool, false);
}

void zps_row_arrays_pool_close(struct zps_row_arrays_pool *pool) {
  if (!pool) return;
  drop(pool, true);
  unref(pool);
}

/* Some spare arrays become those in use. */
static void take_spare(struct zps_row_arrays_pool *pool, struct zps_row_arrays *arrays) {
  pthread_mutex_lock(&pool->lock);
  pool->refs++;
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE && !arrays->rows.data; i++) {
    *arrays = pool->spare[i];
    pool->spare[i] = (struct zps_row_arrays){0};
  }
  pthread_mutex_unlock(&pool->lock);
  arrays->pool = pool;
}

static zps_err_t need(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  if (buffer->size_bytes > WASTE_BYTES && buffer->size_bytes / WASTE_MAX / elem_bytes > n) zps_buffer_fini(buffer);
  return zps_buffer_need(buffer, n, elem_bytes);
}

zps_err_t zps_row_arrays_take(struct zps_row_arrays_pool *pool, uint64_t n, uint64_t row_bytes,
                              struct zps_row_arrays *arrays) {
  *arrays = (struct zps_row_arrays){0};
  take_spare(pool, arrays);
  zps_err_t err = need(&arrays->rows, n, sizeof(int64_t));
  if (err == ZPS_OK) err = need(&arrays->values, n, row_bytes);
  if (err != ZPS_OK) {
    arrays_fini(arrays);
    zps_row_arrays_give(arrays);
  }
  return err;
}

void zps_row_arrays_give(struct zps_row_arrays *arrays) {
  struct zps_row_arrays_pool *const pool = arrays->pool;
  if (!pool) return;
  struct zps_row_arrays left = {.rows = arrays->rows, .values = arrays->values};
  *arrays = (struct zps_row_arrays){0};
  pthread_mutex_lock(&pool->lock);
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE && left.rows.data && !pool->is_closed; i++) {
    if (pool->spare[i].rows.data) continue;
    pool->spare[i] = left;
    left = (struct zps_row_arrays){0};
  }
  pthread_mutex_unlock(&pool->lock);
  arrays_fini(&left);
  unref(pool);
}
