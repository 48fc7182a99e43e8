/* Elementwise sums in a tensor's dtype: IEEE for floats, modulo 256 for bytes. Lanes are independent of each other, so
 * that no sum depends on how the compiler vectorises. */
#ifndef ZPS_CODEC_ACCUMULATE_H
#define ZPS_CODEC_ACCUMULATE_H

#include "common/codec/codec.h"

/* sums[i] += values[i] for n elements; `values` need not be aligned. Halves are added to sums of floats; the other
 * functions take the floats. */
void zps_accumulate(enum zps_dtype dtype, void *sums, const void *values, uint64_t n);
/* Adds rows of `width` elements: row i of `values` to row slots[indices[i] - base] of `sums`. */
void zps_accumulate_rows(enum zps_dtype dtype, void *sums, const uint32_t *slots, uint32_t base,
                         const zps_lent_index *indices, uint32_t n_rows, uint32_t width, const void *values);
/* Fills `sums` with the value that gives way to every other: for MAX and MIN. */
void zps_accumulate_neutral(enum zps_op op, enum zps_dtype dtype, void *sums, uint64_t n);
/* sums[i] becomes the greater (MAX) or lesser (MIN) of itself and values[i]. */
void zps_accumulate_extreme(enum zps_op op, enum zps_dtype dtype, void *sums, const void *values, uint64_t n);
/* sums[i] *= 1 / divisor in the dtype, which is of floats. */
void zps_accumulate_divide(enum zps_dtype dtype, void *sums, uint64_t n, unsigned divisor);

#endif
