/*
 * The sum of n contributions, in rank order, written straight to the trainer's memory: a dense array in which all other
 * rows are zero. Chunk by chunk in scratch memory that stays in cache; the array is written once, in order, and never
 * read, past the caches where it is larger than they are: clearing it ahead would write all of it as well, and then
 * each row would wait for its line.
 */
#ifndef ZPS_CODEC_DELIVER_H
#define ZPS_CODEC_DELIVER_H

#include "common/codec/codec.h"

/* Of one caller at a time, reused. */
struct zps_deliver_scratch;
zps_err_t zps_deliver_scratch_create(struct zps_deliver_scratch **scratch_p) ZPS_MUSTCHECK;
void zps_deliver_scratch_destroy(struct zps_deliver_scratch *scratch); /* NULL is allowed */

struct zps_deliver {
  const struct zps_slice_view *views; /* n_views >= 1: same m, width and dtype */
  unsigned n_views;
  unsigned divisor;     /* each sum is multiplied by 1/divisor in the views' dtype */
  enum zps_dtype dtype; /* of the array: the views', or halves, to which sums of floats are rounded */
  void *dense;          /* where index 0's row is; aligned to the dtype */
  bool is_rounded;      /* the one view is a sum that was rounded to halves of this dtype: it is put as it is, with each
                           -0.0; divisor 1 */
  bool is_large;        /* the array that this is part of: no cache should hold it */
  uint32_t first, end; /* indices to write; `first` is a multiple of ZPS_DELIVER_ALIGN. Pieces may be written at once */
};
enum { ZPS_DELIVER_ALIGN = 64 };

/* Sums start at +0.0, as everywhere; a single contribution that has all rows is copied as it is, with each -0.0.
 * `nnz_p`: the number of indices that any contribution has. ZPS_ERR_NOMEM. */
zps_err_t zps_deliver(struct zps_deliver_scratch *scratch, const struct zps_deliver *deliver,
                      uint64_t *nnz_p) ZPS_MUSTCHECK;

/* An array of so many bytes is_large. */
bool zps_deliver_is_large(uint64_t dense_bytes);

#endif
