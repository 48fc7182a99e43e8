/* The loops of values_loops.h as text that is the same for every instruction set, eight values at a time. Everything is
 * integer arithmetic, or one rounding of IEEE arithmetic per operation (no contraction): so all compile to the same
 * bits. */
#ifndef ZPS_CODEC_SIMD_VALUES_BODY_H
#define ZPS_CODEC_SIMD_VALUES_BODY_H

#include "common/codec/simd/simd_body.h"
#include "common/codec/simd/values_loops.h"

typedef int32_t zps_vec_i32 __attribute__((vector_size(32)));
typedef float zps_vec_f32 __attribute__((vector_size(32)));
typedef uint8_t zps_vec_u8 __attribute__((vector_size(8)));

/* The bits of eight floats, or of eight doubles rounded to odd floats: towards zero, and the last bit set where
 * something was lost. Rounding that once more, to at most 22 bits, yields what rounding the double would. */
ZPS_SIMD_BODY void zps_values_load_bits(bool is_f64, const char *from, zps_vec_u32 *bits) {
  if (!is_f64) {
    memcpy(bits, from, sizeof *bits);
    return;
  }
  zps_vec_f64 wide;
  memcpy(&wide, from, sizeof wide);
  const zps_vec_f32 near = __builtin_convertvector(wide, zps_vec_f32);
  const zps_vec_f64 back = __builtin_convertvector(near, zps_vec_f64);
  const uint64_t magnitude = UINT64_MAX >> 1;
  const zps_vec_i64 is_over =
      (zps_vec_f64)((zps_vec_u64)back & magnitude) > (zps_vec_f64)((zps_vec_u64)wide & magnitude);
  const zps_vec_i64 is_lossy = back != wide; /* true of NaN, too, whose last bit does not matter */
  *bits = (zps_vec_u32)near;
  *bits += __builtin_convertvector((zps_vec_u64)is_over, zps_vec_u32);
  *bits |= __builtin_convertvector((zps_vec_u64)is_lossy, zps_vec_u32) & 1;
}

/* Eight floats to where floats or doubles belong. */
ZPS_SIMD_BODY void zps_values_store(bool is_f64, const zps_vec_f32 *values, char *to) {
  if (!is_f64) {
    memcpy(to, values, sizeof *values);
    return;
  }
  const zps_vec_f64 wide = __builtin_convertvector(*values, zps_vec_f64);
  memcpy(to, &wide, sizeof wide);
}

/* `yes` where the mask is set, `no` elsewhere. */
ZPS_SIMD_BODY void zps_values_select(const zps_vec_i32 *mask, const zps_vec_u32 *yes, const zps_vec_u32 *no,
                                     zps_vec_u32 *out) {
  *out = (*yes & (zps_vec_u32)*mask) | (*no & ~(zps_vec_u32)*mask);
}

ZPS_SIMD_BODY void zps_values_to_bf16(zps_vec_u32 *bits) {
  const zps_vec_i32 is_nan = (zps_vec_i32)(*bits & 0x7fffffff) > 0x7f800000;
  const zps_vec_u32 rounded = *bits + 0x7fff + (*bits >> 16 & 1), quiet = *bits | 0x400000;
  zps_values_select(&is_nan, &quiet, &rounded, bits);
  *bits >>= 16;
}

ZPS_SIMD_BODY void zps_values_from_bf16(zps_vec_u32 *bits) {
  *bits <<= 16;
  const zps_vec_i32 is_nan = (zps_vec_i32)(*bits & 0x7fffffff) > 0x7f800000;
  *bits |= (zps_vec_u32)is_nan & 0x400000;
}

ZPS_SIMD_BODY void zps_values_to_f16(zps_vec_u32 *bits) {
  const zps_vec_u32 magnitude = *bits & 0x7fffffff, sign = *bits >> 16 & 0x8000;
  const zps_vec_i32 is_nan = (zps_vec_i32)magnitude > 0x7f800000;
  const zps_vec_i32 is_large = (zps_vec_i32)magnitude >= 0x47800000; /* 2^16: infinite, or NaN */
  const zps_vec_i32 is_small = (zps_vec_i32)magnitude < 0x38800000;  /* 2^-14: subnormal, or zero */
  /* Exponents have another bias, and 13 bits go; a carry out of the fraction belongs into the exponent. */
  zps_vec_u32 half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const zps_vec_u32 infinite = (zps_vec_u32){0} + 0x7c00, quiet = (magnitude >> 13 & 0x3ff) | 0x7e00;
  /* The last bit of 0.5 is worth as much as the last one of a subnormal half: the addition rounds to it. */
  const zps_vec_u32 subnormal = (zps_vec_u32)((zps_vec_f32)magnitude + 0.5f) - 0x3f000000;
  zps_values_select(&is_large, &infinite, &half, &half);
  zps_values_select(&is_nan, &quiet, &half, &half);
  zps_values_select(&is_small, &subnormal, &half, &half);
  *bits = half | sign;
}

ZPS_SIMD_BODY void zps_values_from_f16(zps_vec_u32 *bits) {
  const zps_vec_u32 magnitude = *bits & 0x7fff, sign = (*bits & 0x8000) << 16;
  const zps_vec_i32 is_nan = (zps_vec_i32)magnitude > 0x7c00, is_large = (zps_vec_i32)magnitude >= 0x7c00;
  const zps_vec_i32 is_small = (zps_vec_i32)magnitude < 0x400;
  zps_vec_u32 value = (magnitude << 13) + (112u << 23) + ((zps_vec_u32)is_large & 112u << 23);
  value |= (zps_vec_u32)is_nan & 0x400000;
  const zps_vec_u32 small = (zps_vec_u32)(__builtin_convertvector((zps_vec_i32)magnitude, zps_vec_f32) * 0x1p-24f);
  zps_values_select(&is_small, &small, &value, &value);
  *bits = value | sign;
}

ZPS_SIMD_BODY void zps_values_narrow_8(bool is_bf16, bool is_f64, const char *from, char *to) {
  zps_vec_u32 bits;
  zps_values_load_bits(is_f64, from, &bits);
  if (is_bf16)
    zps_values_to_bf16(&bits);
  else
    zps_values_to_f16(&bits);
  const zps_vec_u16 halves = __builtin_convertvector(bits, zps_vec_u16);
  memcpy(to, &halves, sizeof halves);
}

ZPS_SIMD_BODY void zps_values_widen_8(bool is_bf16, bool is_f64, const char *from, char *to) {
  zps_vec_u16 halves;
  memcpy(&halves, from, sizeof halves);
  zps_vec_u32 bits = __builtin_convertvector(halves, zps_vec_u32);
  if (is_bf16)
    zps_values_from_bf16(&bits);
  else
    zps_values_from_f16(&bits);
  const zps_vec_f32 values = (zps_vec_f32)bits;
  zps_values_store(is_f64, &values, to);
}

ZPS_SIMD_BODY void zps_values_narrow_all(bool is_bf16, bool is_f64, const char *from, uint64_t n, char *to) {
  const uint64_t size = is_f64 ? 8 : 4, whole = n & ~7ull;
  for (uint64_t i = 0; i < whole; i += 8) zps_values_narrow_8(is_bf16, is_f64, from + i * size, to + 2 * i);
  if (whole == n) return;
  char last[64] = {0}, halves[16];
  memcpy(last, from + whole * size, (n - whole) * size);
  zps_values_narrow_8(is_bf16, is_f64, last, halves);
  memcpy(to + 2 * whole, halves, 2 * (n - whole));
}

ZPS_SIMD_BODY void zps_values_widen_all(bool is_bf16, bool is_f64, const char *from, uint64_t n, char *to) {
  const uint64_t size = is_f64 ? 8 : 4, whole = n & ~7ull;
  for (uint64_t i = 0; i < whole; i += 8) zps_values_widen_8(is_bf16, is_f64, from + 2 * i, to + i * size);
  if (whole == n) return;
  char last[16] = {0}, values[64];
  memcpy(last, from + 2 * whole, 2 * (n - whole));
  zps_values_widen_8(is_bf16, is_f64, last, values);
  memcpy(to + whole * size, values, (n - whole) * size);
}

/* ---- QSGD ---- */

ZPS_SIMD_BODY float zps_values_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#define ZPS_VALUES_NAN 0x7fc00000u /* the scale of a bucket that is not finite */

/* The largest magnitude of `n` values, a multiple of 8, as bits of their type: those order like the magnitudes, with
 * values that are not finite above all others. */
ZPS_SIMD_BODY uint64_t zps_values_largest(bool is_f64, const char *from, uint32_t n) {
  uint64_t largest = 0;
  if (is_f64) {
    zps_vec_i64 most = {0};
    for (uint32_t i = 0; i < n; i += 8) {
      zps_vec_i64 bits;
      memcpy(&bits, from + 8 * (uint64_t)i, sizeof bits);
      bits &= INT64_MAX;
      const zps_vec_i64 is_more = bits > most;
      most = (bits & is_more) | (most & ~is_more);
    }
    for (unsigned lane = 0; lane < 8; lane++) largest = (uint64_t)most[lane] > largest ? (uint64_t)most[lane] : largest;
  } else {
    zps_vec_i32 most = {0};
    for (uint32_t i = 0; i < n; i += 8) {
      zps_vec_i32 bits;
      memcpy(&bits, from + 4 * (uint64_t)i, sizeof bits);
      bits &= INT32_MAX;
      const zps_vec_i32 is_more = bits > most;
      most = (bits & is_more) | (most & ~is_more);
    }
    for (unsigned lane = 0; lane < 8; lane++) largest = (uint32_t)most[lane] > largest ? (uint32_t)most[lane] : largest;
  }
  return largest;
}

/* The least float that is no smaller; NaN when none is finite. */
ZPS_SIMD_BODY float zps_values_scale(bool is_f64, uint64_t largest) {
  uint32_t bits = (uint32_t)largest;
  if (is_f64) {
    double magnitude;
    memcpy(&magnitude, &largest, sizeof magnitude);
    const float near = (float)magnitude;
    memcpy(&bits, &near, sizeof bits);
    bits += (double)near < magnitude;
  }
  return zps_values_float(bits < 0x7f800000 ? bits : ZPS_VALUES_NAN);
}

/* The lowest `bits` of eight bytes, side by side. */
ZPS_SIMD_BODY uint64_t zps_values_pack(unsigned bits, uint64_t bytes) {
  if (bits == 8) return bytes;
  if (bits == 4) {
    bytes &= 0x0f0f0f0f0f0f0f0full;
    bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ffull;
    bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffffull;
    return (bytes | bytes >> 16) & 0xffffffff;
  }
  bytes &= 0x0303030303030303ull;
  bytes = (bytes | bytes >> 6) & 0x000f000f000f000full;
  bytes = (bytes | bytes >> 12) & 0x000000ff000000ffull;
  return (bytes | bytes >> 24) & 0xffff;
}

ZPS_SIMD_BODY uint64_t zps_values_unpack(unsigned bits, uint64_t packed) {
  if (bits == 8) return packed;
  if (bits == 4) {
    packed = (packed | packed << 16) & 0x0000ffff0000ffffull;
    packed = (packed | packed << 8) & 0x00ff00ff00ff00ffull;
    return (packed | packed << 4) & 0x0f0f0f0f0f0f0f0full;
  }
  packed = (packed | packed << 24) & 0x000000ff000000ffull;
  packed = (packed | packed << 12) & 0x000f000f000f000full;
  return (packed | packed << 6) & 0x0303030303030303ull;
}

/* Eight values with eight draws of 32 bits. */
ZPS_SIMD_BODY void zps_values_quantise_8(unsigned bits, bool is_f64, const char *from, double factor,
                                         const zps_vec_u64 *draw, char *to) {
  /* the draw and a half, in units of 2^-32, behind the exponent of 1 */
  const zps_vec_f64 u = (zps_vec_f64)(*draw << 20 | 0x3ff0000000080000ull) - 1.0;
  zps_vec_f64 wide;
  if (is_f64) {
    memcpy(&wide, from, sizeof wide);
  } else {
    zps_vec_f32 narrow;
    memcpy(&narrow, from, sizeof narrow);
    wide = __builtin_convertvector(narrow, zps_vec_f64);
  }
  const zps_vec_f64 level = (zps_vec_f64)((zps_vec_u64)wide & (uint64_t)INT64_MAX) * factor + u;
  const zps_vec_i32 negative = __builtin_convertvector((zps_vec_i64)wide < 0, zps_vec_i32);
  const zps_vec_i32 code = (__builtin_convertvector(level, zps_vec_i32) ^ negative) - negative;
  const zps_vec_u8 narrow_codes = __builtin_convertvector(code, zps_vec_u8);
  uint64_t bytes;
  memcpy(&bytes, &narrow_codes, sizeof bytes);
  bytes = zps_values_pack(bits, bytes);
  memcpy(to, &bytes, bits);
}

/* A block of 16 values: the draws of its positions are hashed from `counter`. */
ZPS_SIMD_BODY void zps_values_quantise_block(unsigned bits, bool is_f64, const char *from, double factor,
                                             uint64_t counter, char *to) {
  zps_vec_u64 hash = (zps_vec_u64){0, 1, 2, 3, 4, 5, 6, 7} + counter;
  zps_simd_mix64(&hash);
  const zps_vec_u64 low = hash & UINT32_MAX, high = hash >> 32;
  zps_values_quantise_8(bits, is_f64, from, factor, &low, to);
  zps_values_quantise_8(bits, is_f64, from + (is_f64 ? 64 : 32), factor, &high, to + bits);
}

ZPS_SIMD_BODY float zps_values_quantise_all(unsigned bits, bool is_f64, const char *from, uint32_t n, uint64_t key,
                                            uint64_t first, char *to) {
  const uint32_t size = is_f64 ? 8 : 4, rest = n % ZPS_VALUES_BLOCK, whole = n - rest;
  char last[8 * ZPS_VALUES_BLOCK] = {0}, block[ZPS_VALUES_BLOCK];
  memcpy(last, from + (uint64_t)whole * size, rest * size);
  const uint64_t largest = zps_values_largest(is_f64, from, whole);
  const uint64_t largest_last = zps_values_largest(is_f64, last, ZPS_VALUES_BLOCK);
  const float scale = zps_values_scale(is_f64, largest > largest_last ? largest : largest_last);
  if (!(scale > 0)) {
    memset(to, 0, 4 * ((n * bits + 31) / 32));
    return scale;
  }
  const double factor = (double)((1u << (bits - 1)) - 1) / (double)scale;
  uint64_t counter = key + 8 * (first / ZPS_VALUES_BLOCK);
  for (uint32_t i = 0; i < whole; i += ZPS_VALUES_BLOCK, counter += 8)
    zps_values_quantise_block(bits, is_f64, from + (uint64_t)i * size, factor, counter, to + i * bits / 8);
  if (rest > 0) {
    zps_values_quantise_block(bits, is_f64, last, factor, counter, block);
    memcpy(to + whole * bits / 8, block, 4 * ((rest * bits + 31) / 32));
  }
  return scale;
}

ZPS_SIMD_BODY void zps_values_restore_all(unsigned bits, bool is_f64, const char *from, uint32_t n_blocks, float scale,
                                          char *to) {
  const double unit = (double)scale / (double)((1u << (bits - 1)) - 1);
  const int32_t sign = 1 << (bits - 1);
  for (uint32_t i = 0; i < 2 * n_blocks; i++, from += bits, to += is_f64 ? 64 : 32) {
    uint64_t bytes = 0;
    memcpy(&bytes, from, bits);
    bytes = zps_values_unpack(bits, bytes);
    zps_vec_u8 codes;
    memcpy(&codes, &bytes, sizeof codes);
    const zps_vec_i32 level = (__builtin_convertvector(codes, zps_vec_i32) ^ sign) - sign;
    const zps_vec_f64 wide = __builtin_convertvector(level, zps_vec_f64) * unit;
    const zps_vec_f32 values = __builtin_convertvector(wide, zps_vec_f32);
    zps_values_store(is_f64, &values, to);
  }
}

/* A table of these loops, compiled for TARGET. */
#define ZPS_VALUES_DEFINE_LOOPS(NAME, TARGET)                                                                       \
  TARGET static void NAME##_narrow(enum zps_value_codec codec, bool is_f64, const void *values, uint64_t n,         \
                                   void *halves) {                                                                  \
    if (codec == ZPS_VALUES_BF16 && is_f64)                                                                         \
      zps_values_narrow_all(true, true, values, n, halves);                                                         \
    else if (codec == ZPS_VALUES_BF16)                                                                              \
      zps_values_narrow_all(true, false, values, n, halves);                                                        \
    else if (is_f64)                                                                                                \
      zps_values_narrow_all(false, true, values, n, halves);                                                        \
    else                                                                                                            \
      zps_values_narrow_all(false, false, values, n, halves);                                                       \
  }                                                                                                                 \
  TARGET static void NAME##_widen(enum zps_value_codec codec, bool is_f64, const void *halves, uint64_t n,          \
                                  void *values) {                                                                   \
    if (codec == ZPS_VALUES_BF16 && is_f64)                                                                         \
      zps_values_widen_all(true, true, halves, n, values);                                                          \
    else if (codec == ZPS_VALUES_BF16)                                                                              \
      zps_values_widen_all(true, false, halves, n, values);                                                         \
    else if (is_f64)                                                                                                \
      zps_values_widen_all(false, true, halves, n, values);                                                         \
    else                                                                                                            \
      zps_values_widen_all(false, false, halves, n, values);                                                        \
  }                                                                                                                 \
  TARGET static float NAME##_quantise(unsigned bits, bool is_f64, const void *values, uint32_t n, uint64_t key,     \
                                      uint64_t first, void *levels) {                                               \
    switch (bits | (unsigned)is_f64) {                                                                              \
      case 2:                                                                                                       \
        return zps_values_quantise_all(2, false, values, n, key, first, levels);                                    \
      case 3:                                                                                                       \
        return zps_values_quantise_all(2, true, values, n, key, first, levels);                                     \
      case 4:                                                                                                       \
        return zps_values_quantise_all(4, false, values, n, key, first, levels);                                    \
      case 5:                                                                                                       \
        return zps_values_quantise_all(4, true, values, n, key, first, levels);                                     \
      case 8:                                                                                                       \
        return zps_values_quantise_all(8, false, values, n, key, first, levels);                                    \
      default:                                                                                                      \
        return zps_values_quantise_all(8, true, values, n, key, first, levels);                                     \
    }                                                                                                               \
  }                                                                                                                 \
  TARGET static void NAME##_restore(unsigned bits, bool is_f64, const void *levels, uint32_t n_blocks, float scale, \
                                    void *values) {                                                                 \
    switch (bits | (unsigned)is_f64) {                                                                              \
      case 2:                                                                                                       \
        zps_values_restore_all(2, false, levels, n_blocks, scale, values);                                          \
        break;                                                                                                      \
      case 3:                                                                                                       \
        zps_values_restore_all(2, true, levels, n_blocks, scale, values);                                           \
        break;                                                                                                      \
      case 4:                                                                                                       \
        zps_values_restore_all(4, false, levels, n_blocks, scale, values);                                          \
        break;                                                                                                      \
      case 5:                                                                                                       \
        zps_values_restore_all(4, true, levels, n_blocks, scale, values);                                           \
        break;                                                                                                      \
      case 8:                                                                                                       \
        zps_values_restore_all(8, false, levels, n_blocks, scale, values);                                          \
        break;                                                                                                      \
      default:                                                                                                      \
        zps_values_restore_all(8, true, levels, n_blocks, scale, values);                                           \
    }                                                                                                               \
  }                                                                                                                 \
  const struct zps_values_loops zps_values_loops_##NAME = {NAME##_narrow, NAME##_widen, NAME##_quantise,            \
                                                           NAME##_restore};

#endif
