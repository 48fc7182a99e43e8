#include "worker/round/row_arrays.h"

/* Arrays that are so many times larger than needed are not used up on a small result. */
#define WASTE_MAX 4u
#define WASTE_BYTES (1u << 20)

static void arrays_fini(struct zps_row_arrays *arrays) {
  zps_buffer_fini(&arrays->rows);
  zps_buffer_fini(&arrays->values);
}

void zps_row_arrays_pool_init(struct zps_row_arrays_pool *pool) {
  *pool = (struct zps_row_arrays_pool){0};
  pthread_mutex_init(&pool->lock, NULL);
}

void zps_row_arrays_pool_drop(struct zps_row_arrays_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE; i++) arrays_fini(&pool->spare[i]);
  pthread_mutex_unlock(&pool->lock);
}

void zps_row_arrays_pool_fini(struct zps_row_arrays_pool *pool) {
  zps_row_arrays_pool_drop(pool);
  pthread_mutex_destroy(&pool->lock);
}

static void swap_spare(struct zps_row_arrays_pool *pool, bool has_some, struct zps_row_arrays *arrays) {
  pthread_mutex_lock(&pool->lock);
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE; i++) {
    struct zps_row_arrays *const spare = &pool->spare[i];
    if ((spare->rows.data != NULL) != has_some) continue;
    const struct zps_row_arrays other = *spare;
    *spare = *arrays;
    *arrays = other;
    break;
  }
  pthread_mutex_unlock(&pool->lock);
}

static zps_err_t need(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  if (buffer->size_bytes > WASTE_BYTES && buffer->size_bytes / WASTE_MAX / elem_bytes > n) zps_buffer_fini(buffer);
  return zps_buffer_need(buffer, n, elem_bytes);
}

zps_err_t zps_row_arrays_take(struct zps_row_arrays_pool *pool, uint64_t n, uint64_t row_bytes,
                              struct zps_row_arrays *arrays) {
  *arrays = (struct zps_row_arrays){0};
  swap_spare(pool, true, arrays);
  zps_err_t err = need(&arrays->rows, n, sizeof(int64_t));
  if (err == ZPS_OK) err = need(&arrays->values, n, row_bytes);
  if (err != ZPS_OK) arrays_fini(arrays);
  return err;
}

void zps_row_arrays_give(struct zps_row_arrays_pool *pool, struct zps_row_arrays *arrays) {
  if (pool && arrays->rows.data) swap_spare(pool, false, arrays);
  arrays_fini(arrays);
}
