/* Types of a tensor's elements. */
#ifndef ZPS_CODEC_DTYPE_H
#define ZPS_CODEC_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers are ABI (zenps.h) and wire. */
enum zps_dtype {
  ZPS_DTYPE_F32 = 1,
  ZPS_DTYPE_F64 = 2,
  ZPS_DTYPE_U8 = 3, /* bytes, added modulo 256: carries zenps_broadcast() */
  /* Halves: types of a trainer's arrays alone, which are added up as floats (zps_dtype_sum()). */
  ZPS_DTYPE_BF16 = 4, /* the upper half of an f32 */
  ZPS_DTYPE_F16 = 5,  /* IEEE 754 binary16 */
};

size_t zps_dtype_size(enum zps_dtype dtype); /* 0 for a number that is no dtype */
static inline uint64_t zps_row_bytes(uint32_t width, enum zps_dtype dtype) {
  return width * (uint64_t)zps_dtype_size(dtype);
}
static inline bool zps_dtype_is_half(enum zps_dtype dtype) {
  return dtype == ZPS_DTYPE_BF16 || dtype == ZPS_DTYPE_F16;
}
/* The type in which sums are made: f32 for halves, else the type itself. Halves are widened to it without loss; a sum
 * is rounded to them once, when it is complete. */
static inline enum zps_dtype zps_dtype_sum(enum zps_dtype dtype) {
  return zps_dtype_is_half(dtype) ? ZPS_DTYPE_F32 : dtype;
}
const char *zps_dtype_name(enum zps_dtype dtype);
/* "f32" -> ZPS_DTYPE_F32 and so on; false for unknown names. */
bool zps_dtype_parse(const char *name, enum zps_dtype *dtype_p);

#endif
