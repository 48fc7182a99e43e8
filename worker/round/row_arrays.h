/*
 * Arrays for results that are lists of rows, where the trainer brings none: row numbers, and values.
 *
 * A tensor keeps what requests give back for the next ones: fresh memory of some megabytes takes the system as long to
 * hand out as a sum takes to be put in order.
 */
#ifndef ZPS_WORKER_ROUND_ROW_ARRAYS_H
#define ZPS_WORKER_ROUND_ROW_ARRAYS_H

#include "common/base/err.h"
#include "common/codec/buffer.h"

#define ZPS_ROW_ARRAYS_SPARE 2u /* so many are kept: a step's result is in use while the next one comes */

struct zenps_tensor;

struct zps_row_arrays {
  struct zps_buffer rows, values;
};

/* For `n` rows; any thread that does not hold the job's lock. */
zps_err_t zps_row_arrays_take(struct zenps_tensor *tensor, uint64_t n, struct zps_row_arrays *arrays) ZPS_MUSTCHECK;
/* Gives them back, and leaves none; likewise. */
void zps_row_arrays_give(struct zenps_tensor *tensor, struct zps_row_arrays *arrays);
void zps_row_arrays_fini(struct zps_row_arrays *arrays);

#endif
