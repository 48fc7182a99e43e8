/* Finds the rows of an array that hold a value other than zero (+0.0 or -0.0; 0 for bytes). */
#ifndef ZPS_CODEC_ROWSCAN_H
#define ZPS_CODEC_ROWSCAN_H

#include "common/codec/codec.h"

/* Sets bit i%64 of bits[i/64] when row i of `values` is not zero, clears it when it is; the bits from n_rows on in the
 * last word are cleared. */
void zps_rowscan(enum zps_dtype dtype, uint32_t width, const void *values, uint64_t n_rows, uint64_t *bits);
bool zps_rowscan_is_zero(enum zps_dtype dtype, uint32_t width, const void *row);
/* The bits that make a row of four bytes other than zero, when one of them is set. */
uint32_t zps_rowscan_mask(enum zps_dtype dtype);

#endif
