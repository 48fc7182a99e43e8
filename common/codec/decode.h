/*
 * From the partitions' sums to the trainer's result: a dense array, or ascending unique COO rows.
 *
 * Dense takes two steps, so that the zeros are written while the sums are still on their way: clear() the array, in
 * pieces that any threads may take, then write each partition's rows over it as its sum arrives. With the gradient in
 * the same array (in place) the clearing must wait for the last zps_encoder_write(). Between clear() and the last
 * partition the array holds neither gradient nor result; so it does after a round that failed in between. Of a tensor
 * of several stripes one is cleared at a time, ahead of its first partition, and is then still in cache.
 */
#ifndef ZPS_CODEC_DECODE_H
#define ZPS_CODEC_DECODE_H

#include <stdatomic.h>

#include "common/base/workpool.h"
#include "common/codec/buffer.h"
#include "common/codec/codec.h"
#include "common/codec/partition.h"
#include "common/codec/sections.h"

/* Zeroes piece `piece` of `n_pieces` equal ones (cut at 4 KiB) of the dense array's `len_bytes`. All pieces must be
 * done before the first zps_decode_dense(). */
void zps_decode_dense_clear(void *dense, uint64_t len_bytes, unsigned piece, unsigned n_pieces);
/* Writes the rows that partition `p`'s view holds into the cleared dense array. Different partitions may be written at
 * once. */
void zps_decode_dense(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view, void *dense);
/* Decodes into an array of `len_bytes` that ends somewhere in the tensor's last row. */
void zps_decode_dense_cut(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view, void *dense,
                          uint64_t len_bytes);
/* Clears the rows of a stripe and writes those that its partitions' views (views[p], of the part->n_parts) hold, chunk
 * by chunk, while that is in cache. Different stripes may be written at once. */
zps_err_t zps_decode_dense_stripe(const struct zps_partition *part, uint32_t stripe, const struct zps_slice_view *views,
                                  void *dense, uint64_t len_bytes) ZPS_MUSTCHECK;

/* Decodes into dense sections in place of the array. Rows that no section holds are left out. */
void zps_decode_sections_clear(const struct zps_sections *sections, uint64_t row_bytes, unsigned piece,
                               unsigned n_pieces);
void zps_decode_sections(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view,
                         const struct zps_sections *sections);
zps_err_t zps_decode_sections_stripe(const struct zps_partition *part, uint32_t stripe,
                                     const struct zps_slice_view *views,
                                     const struct zps_sections *sections) ZPS_MUSTCHECK;

/* Memory that merging rows needs besides: kept from one to the next, all zero at first. */
struct zps_decode_scratch {
  struct zps_buffer starts, indices, windows, pairs;
};
void zps_decode_scratch_fini(struct zps_decode_scratch *scratch);

/* Merges all partitions (views[p], part->n_parts of them) into COO rows in ascending order. `rows` and `values` have
 * room for the sum of the views' z. `pool` (may be NULL) spreads the work over threads. */
zps_err_t zps_decode_rows(const struct zps_partition *part, const struct zps_slice_view *views,
                          struct zps_workpool *pool, struct zps_decode_scratch *scratch, int64_t *rows,
                          void *values) ZPS_MUSTCHECK;

/* Decodes a tensor of several stripes a stripe at a time, for partitions that come stripe by stripe: after the last
 * arrival only a copy is left to do. orders_stripes(): the rows are narrow enough for this to pay. */
bool zps_decode_orders_stripes(const struct zps_partition *part, uint64_t row_bytes);
/* Kept from one result to the next, all zero at first. */
struct zps_decode_stripes {
  struct zps_decode_ordered {
    struct zps_buffer rows, values; /* ascending, counted without the other stripes' rows */
    struct zps_buffer chunks;       /* where each chunk's begin */
    uint64_t n;
  } ordered[ZPS_PARTITION_STRIPES_MAX];
  /* As many as were ever ordered at once: the memory that the one before has used is in a cache still. */
  struct zps_decode_scratch scratch[ZPS_PARTITION_STRIPES_MAX];
  atomic_uint taken; /* a bit for each scratch */
};
void zps_decode_stripes_fini(struct zps_decode_stripes *stripes);
/* Of `views` (as above) the stripe's are read, and not needed afterwards. Different stripes may be ordered at once. */
zps_err_t zps_decode_order_stripe(const struct zps_partition *part, uint32_t stripe, const struct zps_slice_view *views,
                                  struct zps_decode_stripes *stripes) ZPS_MUSTCHECK;
/* Copies all stripes to the result that zps_decode_rows() makes of all views. */
void zps_decode_join_stripes(const struct zps_partition *part, const struct zps_decode_stripes *stripes,
                             uint64_t row_bytes, struct zps_workpool *pool, int64_t *rows, void *values);

#endif
