/* Halves as their definition has them, one by one and in double precision, and a quicker way to them. */
#ifndef ZPS_TESTS_SUPPORT_HALVES_H
#define ZPS_TESTS_SUPPORT_HALVES_H

#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/codec/dtype.h"

static inline int halves_fraction_bits(enum zps_dtype dtype) {
  return dtype == ZPS_DTYPE_BF16 ? 7 : 10;
}
static inline int halves_least_exponent(enum zps_dtype dtype) { /* of normal ones */
  return dtype == ZPS_DTYPE_BF16 ? -126 : -14;
}
static inline uint16_t halves_infinity(enum zps_dtype dtype) {
  return dtype == ZPS_DTYPE_BF16 ? 0x7f80 : 0x7c00;
}

static inline float halves_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t halves_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* NaNs have the quiet bit, and keep the rest of their bits. */
static inline float halves_defined_widen(enum zps_dtype dtype, uint16_t half) {
  const int bits = halves_fraction_bits(dtype), least = halves_least_exponent(dtype);
  const int magnitude = half & 0x7fff, exponent = magnitude >> bits, fraction = magnitude & ((1 << bits) - 1);
  double value =
      exponent == 0 ? ldexp(fraction, least - bits) : ldexp((1 << bits) + fraction, exponent - 1 + least - bits);
  if (magnitude >= halves_infinity(dtype)) {
    uint32_t float_bits = 0x7f800000u | (uint32_t)fraction << (23 - bits) | (fraction ? 0x400000u : 0);
    return halves_float(float_bits | (uint32_t)(half & 0x8000) << 16);
  }
  if (half & 0x8000) value = -value;
  return (float)value;
}

/* To nearest, ties to even. */
static inline uint16_t halves_defined_narrow(enum zps_dtype dtype, float value) {
  const int bits = halves_fraction_bits(dtype), least = halves_least_exponent(dtype);
  const uint32_t float_bits = halves_bits(value);
  const uint16_t sign = (uint16_t)(float_bits >> 16 & 0x8000);
  if (isnan(value)) {
    const uint32_t fraction = (float_bits & 0x7fffff) >> (23 - bits);
    return (uint16_t)(sign | halves_infinity(dtype) | fraction | 1u << (bits - 1));
  }
  if (value == 0) return sign;
  double magnitude = fabs((double)value);
  if (isinf(value)) return sign | halves_infinity(dtype);
  int exponent = ilogb(magnitude);
  if (exponent < least) exponent = least;
  magnitude = ldexp(nearbyint(ldexp(magnitude, bits - exponent)), exponent - bits);
  if (magnitude == 0) return sign;
  exponent = ilogb(magnitude);
  if (exponent < least) return (uint16_t)(sign | (int)ldexp(magnitude, bits - least));
  const int biased = exponent - least + 1;
  if (biased >= halves_infinity(dtype) >> bits) return sign | halves_infinity(dtype);
  return (uint16_t)(sign | biased << bits | ((int)ldexp(magnitude, bits - exponent) - (1 << bits)));
}

/* The two functions above, quicker for normal numbers and zeros. test_halves.c compares them. */
static inline float halves_widen(enum zps_dtype dtype, uint16_t half) {
  const uint32_t magnitude = half & 0x7fff, sign = (uint32_t)(half & 0x8000) << 16;
  const int shift = 23 - halves_fraction_bits(dtype);
  const uint32_t rebias = (uint32_t)(127 - 1 + halves_least_exponent(dtype)) << 23;
  if (magnitude == 0) return halves_float(sign);
  if (magnitude >> halves_fraction_bits(dtype) == 0 || magnitude >= halves_infinity(dtype))
    return halves_defined_widen(dtype, half);
  return halves_float(sign | ((magnitude << shift) + rebias));
}

static inline uint16_t halves_narrow(enum zps_dtype dtype, float value) {
  const uint32_t bits = halves_bits(value), magnitude = bits & 0x7fffffff;
  const int shift = 23 - halves_fraction_bits(dtype);
  const uint32_t rebias = (uint32_t)(127 - 1 + halves_least_exponent(dtype)) << 23;
  const uint32_t rounded = magnitude + (1u << (shift - 1)) - 1 + (magnitude >> shift & 1);
  if (magnitude == 0) return (uint16_t)(bits >> 16);
  if (magnitude >> 23 < (uint32_t)(127 + halves_least_exponent(dtype)) || rounded >= 0x7f800000 ||
      (rounded - rebias) >> shift >= halves_infinity(dtype))
    return halves_defined_narrow(dtype, value);
  return (uint16_t)((bits >> 16 & 0x8000) | (rounded - rebias) >> shift);
}

static inline bool halves_same_float(float a, float b) {
  return memcmp(&a, &b, sizeof a) == 0;
}

static inline bool halves_hold(enum zps_dtype dtype, float value) {
  return isnan(value) || halves_same_float(halves_widen(dtype, halves_narrow(dtype, value)), value);
}

/* Zeros, subnormals, the quiet NaN, infinity of one sign (so that no sum makes another NaN), and numbers. */
static inline uint16_t halves_draw(struct zps_rng *rng, enum zps_dtype dtype) {
  const uint64_t kind = zps_rng_below(rng, 40);
  if (kind == 0) return (uint16_t)(halves_infinity(dtype) | 1u << (halves_fraction_bits(dtype) - 1));
  if (kind == 1) return halves_infinity(dtype);
  if (kind == 2) return 0x8000;
  if (kind == 3) return (uint16_t)(1 + zps_rng_below(rng, 5));
  return halves_narrow(dtype, (float)((zps_rng_unit(rng) - 0.5) * pow(10, (double)zps_rng_below(rng, 6) - 3)));
}

#endif
