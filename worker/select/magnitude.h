/* Magnitudes as integers: a float's bits without the sign order as the absolute values do, with Inf above every finite
 * value and NaN above Inf, in a processor that flushes denormals too. f32 and f64 alone. */
#ifndef ZPS_WORKER_SELECT_MAGNITUDE_H
#define ZPS_WORKER_SELECT_MAGNITUDE_H

#include <stdint.h>
#include <string.h>

#include "common/codec/codec.h"

enum { ZPS_MAGNITUDE_BITS_F32 = 31, ZPS_MAGNITUDE_BITS_F64 = 63 };

static inline uint64_t zps_magnitude_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

static inline uint64_t zps_magnitude_f64(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffffffffffull;
}

static inline uint64_t zps_magnitude_at(enum zps_dtype dtype, const void *values, uint64_t i) {
  return dtype == ZPS_DTYPE_F32 ? zps_magnitude_f32(((const float *)values)[i])
                                : zps_magnitude_f64(((const double *)values)[i]);
}

/* The smallest magnitude of the dtype that is at least `value` (>= 0, not NaN), and a magnitude's value. */
static inline uint64_t zps_magnitude_from(enum zps_dtype dtype, double value) {
  if (dtype == ZPS_DTYPE_F64) return zps_magnitude_f64(value);
  const float nearest = (float)value;
  return zps_magnitude_f32(nearest) + ((double)nearest < value);
}

static inline double zps_magnitude_value(enum zps_dtype dtype, uint64_t magnitude) {
  if (dtype == ZPS_DTYPE_F32) {
    const uint32_t bits = (uint32_t)magnitude;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
  }
  double value;
  memcpy(&value, &magnitude, sizeof value);
  return value;
}

#endif
