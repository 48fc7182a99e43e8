/*
 * Arrays for results that are lists of rows, where the trainer brings none: row numbers, and values.
 *
 * A tensor keeps the arrays that requests give back for its next results: fresh memory of some megabytes takes the
 * system as long to hand out as a sum takes to be put in order. Arrays that are in use hold on to the pool that they
 * came from, and may outlive the tensor. Any thread.
 */
#ifndef ZPS_WORKER_ROUND_ROW_ARRAYS_H
#define ZPS_WORKER_ROUND_ROW_ARRAYS_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "common/codec/buffer.h"

#define ZPS_ROW_ARRAYS_SPARE 2u /* a step's result is in use while the next one comes */

/* All zero: there are none. */
struct zps_row_arrays {
  struct zps_buffer rows, values;
  struct zps_row_arrays_pool *pool; /* a reference, while they are in use */
};

struct zps_row_arrays_pool {
  pthread_mutex_t lock;
  unsigned refs; /* the tensor's, and one for all arrays in use each */
  bool is_closed;
  struct zps_row_arrays spare[ZPS_ROW_ARRAYS_SPARE];
};

zps_err_t zps_row_arrays_pool_create(struct zps_row_arrays_pool **pool_p) ZPS_MUSTCHECK;
/* For its tensor, which needs it no more: arrays that are given back are freed from here on, and the pool with the last
 * ones. NULL is allowed. */
void zps_row_arrays_pool_close(struct zps_row_arrays_pool *pool);
/* Frees what is spare. */
void zps_row_arrays_pool_drop(struct zps_row_arrays_pool *pool);
/* For `n` rows of `row_bytes` of values each. On failure there are none. */
zps_err_t zps_row_arrays_take(struct zps_row_arrays_pool *pool, uint64_t n, uint64_t row_bytes,
                              struct zps_row_arrays *arrays) ZPS_MUSTCHECK;
/* Gives them back to where they came from, and leaves none. */
void zps_row_arrays_give(struct zps_row_arrays *arrays);

#endif
