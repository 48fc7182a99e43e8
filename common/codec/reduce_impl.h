/* The two ways to sum: reduce.c cuts the work into pieces and chooses, reduce_singles.c adds single floats,
 * reduce_rows.c all else. */
#ifndef ZPS_CODEC_REDUCE_IMPL_H
#define ZPS_CODEC_REDUCE_IMPL_H

#include <string.h>

#include "common/codec/buffer.h"
#include "common/codec/reduce.h"

struct zps_reduce_scratch {
  struct zps_buffer singles; /* the accumulators of single floats; -0.0 between chunks */
  struct zps_buffer taken;   /* one chunk's sums of these, where the result has no room to spare */
  struct zps_buffer slots;   /* rows: the place of each of a chunk's indices among its sums */
  struct zps_buffer indices; /* rows: of one chunk of the result */
  struct zps_buffer index;   /* the result's coded set, until its place is known */
  struct zps_buffer widened; /* values that travel narrow: some rows of one contribution */
  struct zps_buffer held;    /* rows of one piece, until their place is known */
  struct zps_buffer cursors, pieces, ahead;
  struct zps_reduce_scratch *helpers; /* of the threads that share one sum */
  unsigned n_helpers;
};

/* The constants of a call and the progress of one piece: indices [first, end), of which a chunk is summed at a time. */
struct zps_reduction {
  struct zps_reduce_scratch *scratch;
  const struct zps_slice_view *views;
  struct zps_index_cursor *cursors; /* one for each view, at the piece's first index */
  unsigned n_views;
  enum zps_dtype dtype;
  uint32_t width;
  uint64_t row_bytes;
  enum zps_codec codec; /* the result's */
  enum zps_op op;       /* SUM for mean, too */
  unsigned divisor;
  uint32_t first, end;   /* `first` is a multiple of 64 */
  uint32_t chunk_rows;   /* a power of two */
  uint32_t rows_widened; /* rows: at once */
  char *out;             /* the piece's rows */
  uint32_t *index;       /* the piece's indices, or the bits of all pieces */
  uint32_t index_words;  /* BITMAP: how many are written, from the piece's first on, and all before */
  uint32_t z, rows_max;  /* of the piece */
};

/* The elements of rows [first, first + n) of a contribution, in the sum's dtype: values that travel narrow are widened
 * here, a part of a chunk at a time. */
static inline const void *zps_reduction_values(const struct zps_reduction *reduction, const struct zps_slice_view *view,
                                               uint32_t first, uint32_t n) {
  return zps_slice_values(view, first, n, reduction->scratch->widened.data);
}

/* Fetches the bytes that follow `at`: contributions are read in turn, in pieces too short for the machine to look ahead
 * by itself. */
static inline void zps_reduction_prefetch(const void *at, uint64_t n_bytes) {
  enum { LINE_BYTES = 64, STEP_BYTES = 256, BYTES_MAX = 8192 }; /* steps whose number varies little */
  for (uint64_t i = 0; i < n_bytes && i < BYTES_MAX; i += STEP_BYTES)
    for (unsigned j = 0; j < STEP_BYTES; j += LINE_BYTES) __builtin_prefetch((const char *)at + i + j);
}

/* The values from row `first` on, `n` rows of them. */
static inline void zps_reduction_prefetch_values(const struct zps_slice_view *view, uint32_t first, uint32_t n) {
  const uint64_t width = view->width;
  const uint64_t at = zps_values_bytes(view->value_codec, view->dtype, first * width);
  zps_reduction_prefetch((const char *)view->values + at, zps_values_bytes(view->value_codec, view->dtype, n * width));
}

static inline void zps_reduction_prefetch_result(void *at, uint64_t n_bytes) {
  enum { LINE_BYTES = 64, BYTES_MAX = 8192 };
  for (uint64_t i = 0; i < n_bytes && i < BYTES_MAX; i += LINE_BYTES) __builtin_prefetch((char *)at + i, 1);
}

/* Zeroes the bitmap's words up to `n_words` that are not yet written. */
static inline void zps_reduction_clear_index(struct zps_reduction *reduction, uint32_t n_words) {
  if (reduction->index_words >= n_words) return;
  memset(reduction->index + reduction->index_words, 0, (n_words - reduction->index_words) * sizeof *reduction->index);
  reduction->index_words = n_words;
}

/* The least index that a contribution has from where its cursor is, or UINT32_MAX. */
static inline uint32_t zps_reduction_peek(struct zps_index_cursor *cursors, unsigned n_views) {
  uint32_t index = UINT32_MAX;
  for (unsigned i = 0; i < n_views; i++) {
    const uint32_t next = zps_index_cursor_peek(&cursors[i]);
    if (next < index) index = next;
  }
  return index;
}

/* Call once the cursors are at the piece's first index. */
zps_err_t zps_reduction_need_singles(struct zps_reduction *reduction) ZPS_MUSTCHECK;
zps_err_t zps_reduction_need_rows(struct zps_reduction *reduction) ZPS_MUSTCHECK;
/* The number of rows of the piece's sum. */
uint32_t zps_reduction_count_rows(const struct zps_reduction *reduction);
/* The first half of zps_reduction_sum_singles(): decodes indices [base, end), of one chunk, of all contributions and
 * adds their values to the accumulators. */
void zps_reduction_add_singles(const struct zps_reduction *reduction, uint32_t base, uint32_t end);
/* Sums indices [base, end), of one chunk, of all contributions and appends them to the result. */
void zps_reduction_sum_singles(struct zps_reduction *reduction, uint32_t base, uint32_t end);
void zps_reduction_sum_rows(struct zps_reduction *reduction, uint32_t base, uint32_t end);

#endif
