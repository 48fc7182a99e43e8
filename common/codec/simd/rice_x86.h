/* Shared by reading and writing Rice codes sixteen gaps at a time. */
#ifndef ZPS_CODEC_SIMD_RICE_X86_H
#define ZPS_CODEC_SIMD_RICE_X86_H

#include <immintrin.h>

/* Each lane and those below it. */
__attribute__((target("avx512f"))) static inline __m512i zps_rice_add_up(__m512i x) {
  const __m512i zero = _mm512_setzero_si512();
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 15));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 14));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 12));
  return _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 8));
}

#endif
