/* Elementwise sums in a tensor's dtype: IEEE for floats, modulo 256 for bytes. Lanes are independent of each other, so
 * that no sum depends on how the compiler vectorises. */
#ifndef ZPS_CODEC_ACCUMULATE_H
#define ZPS_CODEC_ACCUMULATE_H

#include "common/codec/codec.h"

/* sums[i] += values[i] for n elements; `values` need not be aligned. */
void zps_accumulate(enum zps_dtype dtype, void *sums, const void *values, uint64_t n);
/* The same for rows: row i of `values` (`width` elements) is added to row ranks[i] - base of `sums`. */
void zps_accumulate_rows(enum zps_dtype dtype, void *sums, uint32_t base, const uint32_t *ranks, uint32_t n_rows,
                         uint32_t width, const void *values);
/* Moves rows ranks[i] - base of `sums` to rows i of `out` (aligned), each multiplied by 1/divisor in the dtype when
 * `divisor` is not 1, and leaves zeros. Floats only are divided. */
void zps_accumulate_take_rows(enum zps_dtype dtype, void *sums, uint32_t base, const uint32_t *ranks, uint32_t n_rows,
                              uint32_t width, unsigned divisor, void *out);

#endif
