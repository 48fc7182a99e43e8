/* From the partitions' sums to the trainer's result: a dense array, or ascending unique COO rows. */
#ifndef ZPS_CODEC_DECODE_H
#define ZPS_CODEC_DECODE_H

#include "common/codec/codec.h"
#include "common/codec/partition.h"

/* Writes partition `p` of a dense result: the view's rows, and zeros for the partition's other rows. Different
 * partitions may be written at once. */
void zps_decode_dense(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view, void *dense);

/* Merges all partitions (views[p], n_parts of them) into COO rows in ascending order. `rows` and `values` have room for the sum of
 * the views' z. */
zps_err_t zps_decode_rows(const struct zps_partition *part, const struct zps_slice_view *views, int64_t *rows,
                          void *values) ZPS_MUSTCHECK;

#endif
