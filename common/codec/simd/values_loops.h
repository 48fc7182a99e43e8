/* The loops of the value codecs, one table for each instruction set (simd.h): same bits from all of them. Nothing has
 * to be aligned. `is_f64`: the values are doubles, not floats. */
#ifndef ZPS_CODEC_SIMD_VALUES_LOOPS_H
#define ZPS_CODEC_SIMD_VALUES_LOOPS_H

#include "common/codec/values.h"

struct zps_values_loops {
  /* n values to or from 2 bytes each. */
  void (*narrow)(enum zps_value_codec codec, bool is_f64, const void *values, uint64_t n, void *halves);
  void (*widen)(enum zps_value_codec codec, bool is_f64, const void *halves, uint64_t n, void *values);
  /* The bucket of the n <= ZPS_VALUES_BUCKET values from position `first` (a multiple of 16) on: writes their levels,
   * 4 * ceil(n * bits / 32) bytes, and returns the scale. */
  float (*quantise)(unsigned bits, bool is_f64, const void *values, uint32_t n, uint64_t key, uint64_t first,
                    void *levels);
  /* `n_blocks` blocks of 16 values from their levels. */
  void (*restore)(unsigned bits, bool is_f64, const void *levels, uint32_t n_blocks, float scale, void *values);
};

enum { ZPS_VALUES_BLOCK = 16 };

extern const struct zps_values_loops zps_values_loops_baseline;
#ifdef __x86_64__
extern const struct zps_values_loops zps_values_loops_avx2, zps_values_loops_avx512;
#endif

#endif
