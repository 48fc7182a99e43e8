#include "common/codec/simd/rice_write.h"

#ifdef __x86_64__
#include "common/codec/simd/rice_x86.h"

#define AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi,bmi2,popcnt")))

#define DEFINE_SHARED(NAME, TARGET)                                                                      \
  TARGET void zps_rice_gaps_##NAME(const uint32_t *indices, uint32_t n, uint32_t next, uint32_t *gaps) { \
    zps_rice_body_gaps(indices, n, next, gaps);                                                          \
  }                                                                                                      \
  TARGET uint32_t zps_rice_zeros_##NAME(const uint32_t *gaps, unsigned k) {                              \
    return zps_rice_body_zeros(gaps, k);                                                                 \
  }

DEFINE_SHARED(avx2, AVX2)
DEFINE_SHARED(avx512, AVX512)

AVX2 void zps_rice_put_avx2(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k) {
  zps_rice_body_put(writer, gaps, n, k);
}

enum { LANES = 16, HALF = 8 };

/* Fields of `field_bits`, of which the low k are kept, out of each eight bytes; `n` is of gaps in all. */
AVX512 static inline void put_fields(struct zps_rice_writer *writer, const void *fields, uint32_t n_words,
                                     unsigned field_bits, uint32_t n, unsigned k) {
  const unsigned per_word = 64 / field_bits;
  uint64_t mask = 0;
  for (unsigned i = 0; i < per_word; i++) mask |= ((1ull << k) - 1) << i * field_bits;
  for (uint32_t i = 0; i < n_words && n > 0; i++) {
    const uint32_t here = n < per_word ? n : per_word;
    uint64_t word;
    memcpy(&word, (const char *)fields + 8 * (uint64_t)i, sizeof word);
    zps_rice_put(writer, _pext_u64(word, mask), here * k);
    n -= here;
  }
}

AVX512 static inline void put_low(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k) {
  if (k > ZPS_RICE_PUT_MAX / 4) { /* two gaps a word, of 32 bits as they are */
    put_fields(writer, gaps, ZPS_RICE_BLOCK / 2, 32, n, k);
    return;
  }
  uint16_t fields[ZPS_RICE_BLOCK] __attribute__((aligned(64)));
  if (k > ZPS_RICE_PUT_MAX / 8) {
    for (uint32_t i = 0; i < ZPS_RICE_BLOCK; i += LANES)
      _mm256_store_si256((__m256i *)(void *)(fields + i), _mm512_cvtepi32_epi16(_mm512_loadu_si512(gaps + i)));
    put_fields(writer, fields, ZPS_RICE_BLOCK / 4, 16, n, k);
    return;
  }
  for (uint32_t i = 0; i < ZPS_RICE_BLOCK; i += LANES)
    _mm_store_si128((__m128i *)(void *)(fields + i / 2), _mm512_cvtepi32_epi8(_mm512_loadu_si512(gaps + i)));
  put_fields(writer, fields, ZPS_RICE_BLOCK / 8, 8, n, k);
}

/* The bits at these places, below 64 or left out. */
AVX512 static inline uint64_t bits_at(__m256i places, __mmask8 are) {
  const __m512i wide = _mm512_cvtepu32_epi64(places);
  return (uint64_t)_mm512_reduce_or_epi64(_mm512_maskz_sllv_epi64(are, _mm512_set1_epi64(1), wide));
}

/* Eight ones in one go where they are that close together. */
AVX512 static inline void put_ones(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k) {
  const __m128i shift = _mm_cvtsi32_si128((int)k);
  const __m512i one = _mm512_set1_epi32(1);
  for (uint32_t i = 0; i < n; i += LANES) {
    const uint32_t here = n - i < LANES ? n - i : LANES;
    const __mmask16 are = (__mmask16)((1u << here) - 1);
    const __m512i zeros = _mm512_srl_epi32(_mm512_loadu_si512(gaps + i), shift);
    const __m512i ends = zps_rice_add_up(_mm512_maskz_add_epi32(are, zeros, one));
    const __m512i places = _mm512_sub_epi32(ends, one);
    const __m256i low = _mm512_castsi512_si256(places), high = _mm512_extracti64x4_epi64(places, 1);
    const uint32_t middle = (uint32_t)_mm256_extract_epi32(_mm512_castsi512_si256(ends), HALF - 1);
    const uint32_t end = (uint32_t)_mm256_extract_epi32(_mm512_extracti64x4_epi64(ends, 1), HALF - 1);
    if (middle > ZPS_RICE_PUT_MAX || end - middle > ZPS_RICE_PUT_MAX) {
      zps_rice_body_put_ones(writer, gaps + i, here, k);
      continue;
    }
    zps_rice_put(writer, bits_at(low, (__mmask8)are), middle);
    zps_rice_put(writer, bits_at(_mm256_sub_epi32(high, _mm256_set1_epi32((int)middle)), (__mmask8)(are >> HALF)),
                 end - middle);
  }
}

AVX512 void zps_rice_put_avx512(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k) {
  struct zps_rice_writer local = *writer;
  if (k > ZPS_RICE_PUT_MAX / 2)
    zps_rice_body_put_low(&local, gaps, n, k);
  else if (k > 0)
    put_low(&local, gaps, n, k);
  put_ones(&local, gaps, n, k);
  *writer = local;
}
#endif
