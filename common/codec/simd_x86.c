#include "common/codec/simd_internal.h"

#ifdef __x86_64__
#include <immintrin.h>

#include "common/codec/simd_body.h"

#define AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi,popcnt")))

AVX2 static inline uint64_t avx2_word_of(const void *values, uint32_t mask, bool differs) {
  const __m256i mask8 = _mm256_set1_epi32((int)mask), compare = differs ? mask8 : _mm256_setzero_si256();
  uint64_t word = 0;
  for (unsigned i = 0; i < 64; i += 8) {
    const __m256i lanes = _mm256_loadu_si256((const __m256i *)((const char *)values + 4 * i));
    const __m256i is = _mm256_cmpeq_epi32(differs ? lanes : _mm256_and_si256(lanes, mask8), compare);
    word |= (uint64_t)((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(is)) ^ 0xff) << i;
  }
  return word;
}

AVX2 static uint32_t avx2_compact(const void *values, uint32_t n, uint32_t mask, uint32_t *positions, uint32_t *kept) {
  const uint32_t whole = n & ~63u;
  uint32_t at = 0;
  for (uint32_t i = 0; i < whole; i += 64)
    at += zps_simd_pick(values, avx2_word_of((const char *)values + 4 * (uint64_t)i, mask, false), i, positions + at,
                        kept + at);
  return at + zps_simd_compact_rest(values, whole, n, mask, positions + at, kept + at);
}

AVX2 static uint32_t avx2_take(float *sums, uint32_t n_words, float *out, uint64_t *bits) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++) {
    bits[w] = avx2_word_of(sums + 64 * (uint64_t)w, ZPS_SIMD_NEGATIVE_ZERO, true);
    n += zps_simd_take_word(sums + 64 * (uint64_t)w, bits[w], out + n);
  }
  return n;
}

/* Both instruction sets compile the shared bodies. */
#define DEFINE_SHARED(NAME, TARGET)                                                                                  \
  TARGET static void NAME##_locate(const struct zps_partition *part, uint64_t first, const uint32_t *positions,      \
                                   uint32_t n, uint16_t *parts, uint32_t *locals) {                                  \
    zps_simd_body_locate(part, first, positions, n, parts, locals);                                                  \
  }                                                                                                                  \
  TARGET static bool NAME##_locate_rows(const struct zps_partition *part, const int64_t *rows, uint32_t n,           \
                                        uint16_t *parts, uint32_t *locals) {                                         \
    return zps_simd_body_locate_rows(part, rows, n, parts, locals);                                                  \
  }                                                                                                                  \
  TARGET static void NAME##_rows_of(const struct zps_partition *part, uint32_t p, const uint32_t *ranks, uint32_t n, \
                                    uint64_t *rows) {                                                                \
    zps_simd_body_rows_of(part, p, ranks, n, rows);                                                                  \
  }

DEFINE_SHARED(avx2, AVX2)
DEFINE_SHARED(avx512, AVX512)

AVX2 static uint32_t avx2_list(const uint64_t *bits, uint32_t n_words, uint32_t base, uint32_t *out) {
  return zps_simd_body_list(bits, n_words, base, out);
}

/* Compressed in a register and stored whole: compressing stores are microcode on some processors. */
AVX512 static inline uint32_t avx512_keep(__mmask16 is, __m512i at, __m512i lanes, uint32_t *positions,
                                          uint32_t *kept) {
  _mm512_storeu_si512(positions, _mm512_maskz_compress_epi32(is, at));
  _mm512_storeu_si512(kept, _mm512_maskz_compress_epi32(is, lanes));
  return (uint32_t)__builtin_popcount(is);
}

AVX512 static uint32_t avx512_compact(const void *values, uint32_t n, uint32_t mask, uint32_t *positions,
                                      uint32_t *kept) {
  const char *from = values;
  const __m512i mask16 = _mm512_set1_epi32((int)mask), step = _mm512_set1_epi32(16);
  __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t found = 0, i = 0;
  for (; i + 64 <= n; i += 64, from += 256) {
    __m512i lanes[4], any;
    for (unsigned j = 0; j < 4; j++) {
      lanes[j] = _mm512_loadu_si512(from + 64 * j);
    }
    any = _mm512_or_si512(_mm512_or_si512(lanes[0], lanes[1]), _mm512_or_si512(lanes[2], lanes[3]));
    if (_mm512_test_epi32_mask(any, mask16)) {
      for (unsigned j = 0; j < 4; j++, at = _mm512_add_epi32(at, step))
        found += avx512_keep(_mm512_test_epi32_mask(lanes[j], mask16), at, lanes[j], positions + found, kept + found);
    } else {
      at = _mm512_add_epi32(at, _mm512_set1_epi32(64));
    }
  }
  for (; i < n; i += 16, from += 64, at = _mm512_add_epi32(at, step)) {
    const __mmask16 here = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
    const __m512i lanes = _mm512_maskz_loadu_epi32(here, from);
    found += avx512_keep(_mm512_test_epi32_mask(lanes, mask16), at, lanes, positions + found, kept + found);
  }
  return found;
}

AVX512 static uint32_t avx512_take(float *sums, uint32_t n_words, float *out, uint64_t *bits) {
  const __m512i empty = _mm512_set1_epi32((int)ZPS_SIMD_NEGATIVE_ZERO);
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++, sums += 64) {
    uint64_t word = 0;
    for (unsigned i = 0; i < 64; i += 16) {
      const __m512i lanes = _mm512_loadu_si512(sums + i);
      const __mmask16 is = _mm512_cmpneq_epi32_mask(lanes, empty);
      _mm512_storeu_si512(out + n, _mm512_maskz_compress_epi32(is, lanes));
      _mm512_storeu_si512(sums + i, empty);
      n += (uint32_t)__builtin_popcount(is);
      word |= (uint64_t)is << i;
    }
    bits[w] = word;
  }
  return n;
}

AVX512 static uint32_t avx512_list(const uint64_t *bits, uint32_t n_words, uint32_t base, uint32_t *out) {
  const __m512i step = _mm512_set1_epi32(16);
  __m512i at = _mm512_add_epi32(_mm512_set1_epi32((int)base),
                                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++) {
    const uint64_t word = bits[w];
    for (unsigned i = 0; i < 64; i += 16, at = _mm512_add_epi32(at, step)) {
      const __mmask16 is = (__mmask16)(word >> i);
      _mm512_storeu_si512(out + n, _mm512_maskz_compress_epi32(is, at));
      n += (uint32_t)__builtin_popcount(is);
    }
  }
  return n;
}

const struct zps_simd zps_simd_avx2 = {"avx2",       avx2_compact, avx2_locate, avx2_locate_rows,
                                       avx2_rows_of, avx2_take,    avx2_list,   &zps_values_loops_avx2};
const struct zps_simd zps_simd_avx512 = {"avx512",       avx512_compact, avx512_locate, avx512_locate_rows,
                                         avx512_rows_of, avx512_take,    avx512_list,   &zps_values_loops_avx512};
#endif
