/*
 * Values are looked at as integers, with the bits that make a value non-zero or'ed together: all but the sign. Sparse
 * gradients are mostly lines of zeros, so 16 narrow rows are only taken apart when not all of their values are zero.
 */
#include "common/codec/rowscan.h"

#include <string.h>

enum { LINE_BYTES = 64, GROUP_ROWS = 16 };

/* Explicit vectors, because not every optimisation level forms them. */
typedef uint64_t vec_t __attribute__((vector_size(16), aligned(1), may_alias));

/* The bits of eight bytes of values that make them non-zero. */
static uint64_t value_bits(enum zps_dtype dtype) {
  switch (dtype) {
    case ZPS_DTYPE_F32:
      return 0x7fffffff7fffffffull;
    case ZPS_DTYPE_F64:
      return 0x7fffffffffffffffull;
    case ZPS_DTYPE_BF16:
    case ZPS_DTYPE_F16:
      return 0x7fff7fff7fff7fffull;
    case ZPS_DTYPE_U8:
      break;
  }
  return UINT64_MAX;
}

static inline bool is_zero(const char *at, uint64_t n_bytes, uint64_t mask) {
  for (; n_bytes >= LINE_BYTES; at += LINE_BYTES, n_bytes -= LINE_BYTES) {
    const vec_t *const line = (const vec_t *)at;
    const vec_t any = line[0] | line[1] | line[2] | line[3];
    if ((any[0] | any[1]) & mask) return false;
  }
  uint64_t word, any = 0;
  for (; n_bytes >= sizeof word; at += sizeof word, n_bytes -= sizeof word) {
    memcpy(&word, at, sizeof word);
    any |= word;
  }
  if (n_bytes) {
    word = 0;
    memcpy(&word, at, n_bytes);
    any |= word;
  }
  return (any & mask) == 0;
}

static inline uint64_t scan_rows(const char *at, uint64_t n_rows, uint64_t row_bytes, uint64_t mask) {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < n_rows; i++) bits |= (uint64_t)!is_zero(at + i * row_bytes, row_bytes, mask) << i;
  return bits;
}

/* Up to 64 rows. */
static inline uint64_t scan_word(const char *at, uint64_t n_rows, uint64_t row_bytes, uint64_t mask) {
  if (row_bytes >= LINE_BYTES) return scan_rows(at, n_rows, row_bytes, mask);
  uint64_t bits = 0, i = 0;
  for (; i + GROUP_ROWS <= n_rows; i += GROUP_ROWS, at += GROUP_ROWS * row_bytes)
    if (!is_zero(at, GROUP_ROWS * row_bytes, mask)) bits |= scan_rows(at, GROUP_ROWS, row_bytes, mask) << i;
  return i < n_rows ? bits | scan_rows(at, n_rows - i, row_bytes, mask) << i : bits;
}

/* Inlined with a constant row size where the size is common. */
static inline __attribute__((always_inline)) void scan(const char *at, uint64_t n_rows, uint64_t row_bytes,
                                                       uint64_t mask, uint64_t *bits) {
  for (; n_rows > 0; bits++) {
    const uint64_t n = n_rows < 64 ? n_rows : 64;
    *bits = scan_word(at, n, row_bytes, mask);
    at += n * row_bytes;
    n_rows -= n;
  }
}

uint32_t zps_rowscan_mask(enum zps_dtype dtype) {
  return (uint32_t)value_bits(dtype);
}

void zps_rowscan(enum zps_dtype dtype, uint32_t width, const void *values, uint64_t n_rows, uint64_t *bits) {
  const uint64_t row_bytes = zps_row_bytes(width, dtype), mask = value_bits(dtype);
  switch (row_bytes) {
    case 2:
      scan(values, n_rows, 2, mask, bits);
      break;
    case 4:
      scan(values, n_rows, 4, mask, bits);
      break;
    case 8:
      scan(values, n_rows, 8, mask, bits);
      break;
    default:
      scan(values, n_rows, row_bytes, mask, bits);
  }
}

bool zps_rowscan_is_zero(enum zps_dtype dtype, uint32_t width, const void *row) {
  return is_zero(row, zps_row_bytes(width, dtype), value_bits(dtype));
}
