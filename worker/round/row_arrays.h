/*
 * Arrays for results that are lists of rows, where the trainer brings none: row numbers, and values.
 *
 * A tensor keeps the arrays that requests give back for its next results: fresh memory of some megabytes takes the
 * system as long to hand out as a sum takes to be put in order. Any thread.
 */
#ifndef ZPS_WORKER_ROUND_ROW_ARRAYS_H
#define ZPS_WORKER_ROUND_ROW_ARRAYS_H

#include <pthread.h>

#include "common/base/err.h"
#include "common/codec/buffer.h"

#define ZPS_ROW_ARRAYS_SPARE 2u /* so many are kept: a step's result is in use while the next one comes */

struct zps_row_arrays {
  struct zps_buffer rows, values;
};

struct zps_row_arrays_pool {
  pthread_mutex_t lock;
  struct zps_row_arrays spare[ZPS_ROW_ARRAYS_SPARE];
};

void zps_row_arrays_pool_init(struct zps_row_arrays_pool *pool);
void zps_row_arrays_pool_fini(struct zps_row_arrays_pool *pool);
/* Frees what is spare. */
void zps_row_arrays_pool_drop(struct zps_row_arrays_pool *pool);
/* For `n` rows of `row_bytes` of values each. */
zps_err_t zps_row_arrays_take(struct zps_row_arrays_pool *pool, uint64_t n, uint64_t row_bytes,
                              struct zps_row_arrays *arrays) ZPS_MUSTCHECK;
/* Gives them back, and leaves none; NULL instead of a pool frees them. */
void zps_row_arrays_give(struct zps_row_arrays_pool *pool, struct zps_row_arrays *arrays);

#endif
