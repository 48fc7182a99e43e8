/*
 * The sum of n contributions to one partition, in rank order, coded as one slice.
 *
 * Works through the partition in chunks of local indices that fit the cache: for each chunk the contributions are added
 * in the order given (rank order), each accumulator starting at +0.0, so the result has the same bits under any arrival
 * order, chunk size and number of threads. A row is in the result when at least one contribution holds it, also when
 * its sum is zero.
 */
#ifndef ZPS_CODEC_REDUCE_H
#define ZPS_CODEC_REDUCE_H

#include "common/base/workpool.h"
#include "common/codec/codec.h"

/* Scratch of one caller at a time, reused. */
struct zps_reduce_scratch;
zps_err_t zps_reduce_scratch_create(struct zps_reduce_scratch **scratch_p) ZPS_MUSTCHECK;
void zps_reduce_scratch_destroy(struct zps_reduce_scratch *scratch);

/* An upper bound of the result's bytes, for its buffer (values raw): at most min(m, sum of z) rows. */
uint64_t zps_reduce_bound(const struct zps_slice_view *views, unsigned n_views, enum zps_codec codec);
/* The first row, ascending, that two of the contributions hold, and which two. False: there is none. */
bool zps_reduce_find_repeat(const struct zps_slice_view *views, unsigned n_views, uint32_t *index_p, unsigned pair[2]);
/* Adds `n_views` >= 1 contributions (same m, width, dtype and value codec) and writes the coded result, its values raw,
 * to `out` (8-byte aligned, at least the bound) as COO or BITMAP: the sum's indices decide which takes fewer bytes
 * (zps_slice_recode()). ZPS_OP_MEAN multiplies each sum by 1/n_views in the tensor's dtype; ZPS_OP_MAX and ZPS_OP_MIN
 * take, of the contributions that hold the row, the greatest or least; ZPS_OP_ONE is a sum, and the result has as many
 * rows as the contributions together where no two hold one. Idle threads of `pool` (may be NULL; the caller
 * may be one of its threads) take part in the work. */
zps_err_t zps_reduce(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n_views,
                     enum zps_op op, enum zps_codec codec, struct zps_workpool *pool, void *out, uint32_t *nnz_p,
                     uint64_t *len_bytes_p) ZPS_MUSTCHECK;

#endif
