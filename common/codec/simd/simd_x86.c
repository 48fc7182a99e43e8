#include "common/codec/simd/simd_impl.h"

#ifdef __x86_64__
#include <immintrin.h>

#include "common/codec/simd/simd_body.h"

#define AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi,popcnt")))
#define VBMI2 __attribute__((target("avx512vbmi2,avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi,popcnt")))

/* Bit i: value i of `n` has bits in common with the mask, or, on demand, differs from it. */
AVX2 static inline uint64_t avx2_bits_of(const void *values, unsigned n, uint32_t mask, bool differs) {
  const __m256i mask8 = _mm256_set1_epi32((int)mask), compare = differs ? mask8 : _mm256_setzero_si256();
  uint64_t word = 0;
  for (unsigned i = 0; i < n; i += 8) {
    const __m256i lanes = _mm256_loadu_si256((const __m256i *)((const char *)values + 4 * i));
    const __m256i is = _mm256_cmpeq_epi32(differs ? lanes : _mm256_and_si256(lanes, mask8), compare);
    word |= (uint64_t)((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(is)) ^ 0xff) << i;
  }
  return word;
}

AVX2 static inline uint64_t avx2_word_of(const void *values, uint32_t mask, bool differs) {
  return avx2_bits_of(values, 64, mask, differs);
}

AVX2 static uint32_t avx2_compact(const void *values, uint32_t n, uint32_t mask, const void *next, uint32_t *positions,
                                  uint32_t *kept) {
  const uint32_t whole = n & ~63u;
  uint32_t at = 0;
  for (uint32_t i = 0; i < whole; i += 64) {
    zps_simd_fetch_once((const char *)next + 4 * (uint64_t)i);
    at += zps_simd_pick(values, avx2_word_of((const char *)values + 4 * (uint64_t)i, mask, false), i, positions + at,
                        kept + at);
  }
  return at + zps_simd_compact_rest(values, whole, n, mask, positions + at, kept + at);
}

AVX2 static uint32_t avx2_pack(const void *values, uint32_t n, uint32_t mask, uint32_t *kept, uint64_t *bits) {
  const uint32_t whole = n & ~63u;
  uint32_t at = 0;
  for (uint32_t i = 0; i < whole; i += 64) {
    const char *const from = (const char *)values + 4 * (uint64_t)i;
    zps_simd_fetch_once(from + ZPS_SIMD_AHEAD_BYTES);
    at += zps_simd_pack_word(from, bits[i / 64] = avx2_word_of(from, mask, false), kept + at);
  }
  return at + zps_simd_pack_rest(values, whole, n, mask, kept + at, bits);
}

AVX2 static uint32_t avx2_take(float *sums, uint32_t n_words, float *out, uint64_t *bits) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++) {
    bits[w] = avx2_word_of(sums + 64 * (uint64_t)w, ZPS_SIMD_NEGATIVE_ZERO, true);
    n += zps_simd_take_word(sums + 64 * (uint64_t)w, bits[w], out + n);
  }
  return n;
}

AVX2 static uint32_t avx2_take_marked(float *sums, uint8_t *marks, uint32_t n_lines, uint32_t base, uint32_t *positions,
                                      float *kept) {
  uint32_t n = 0;
  for (uint32_t line = 0; line < n_lines; line += 32) {
    __m256i *const marks32 = (__m256i *)(void *)(marks + line);
    const __m256i is = _mm256_cmpgt_epi8(_mm256_loadu_si256(marks32), _mm256_setzero_si256());
    uint32_t marked = (uint32_t)_mm256_movemask_epi8(is);
    if (marked == 0) continue;
    _mm256_storeu_si256(marks32, _mm256_setzero_si256());
    for (; marked != 0; marked &= marked - 1) {
      const uint32_t at = (line + (unsigned)__builtin_ctz(marked)) * ZPS_SIMD_MARKED;
      const uint32_t word = (uint32_t)avx2_bits_of(sums + at, ZPS_SIMD_MARKED, ~ZPS_SIMD_NEGATIVE_ZERO, false);
      n += zps_simd_take_line(sums, at, word, base, positions + n, kept + n);
    }
  }
  return n;
}

AVX2 static uint32_t avx2_deliver(float *sums, uint32_t n, float factor, float *out, bool past_caches) {
  const __m256 factors = _mm256_set1_ps(factor);
  const __m256i empty = _mm256_set1_epi32((int)ZPS_SIMD_NEGATIVE_ZERO);
  uint32_t i = zps_simd_ahead_of_line(out, n), n_added = zps_simd_deliver_some(sums, 0, i, factor, out);
  for (; i + 8 <= n; i += 8) {
    const __m256 lanes = _mm256_loadu_ps(sums + i);
    const __m256 result = _mm256_mul_ps(_mm256_add_ps(lanes, _mm256_setzero_ps()), factors);
    const __m256i is_empty = _mm256_cmpeq_epi32(_mm256_castps_si256(lanes), empty);
    n_added += 8 - (uint32_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(is_empty)));
    _mm256_storeu_ps(sums + i, _mm256_castsi256_ps(empty));
    if (past_caches)
      _mm256_stream_ps(out + i, result);
    else
      _mm256_storeu_ps(out + i, result);
  }
  return n_added + zps_simd_deliver_some(sums, i, n, factor, out);
}

/* Both instruction sets compile the shared bodies. */
#define DEFINE_SHARED(NAME, TARGET)                                                                                    \
  TARGET static void NAME##_rows_of(const struct zps_partition *part, uint32_t p, const uint32_t *indices, uint32_t n, \
                                    uint64_t *rows) {                                                                  \
    zps_simd_body_rows_of(part, p, indices, n, rows);                                                                  \
  }                                                                                                                    \
  TARGET static bool NAME##_ascends(const void *numbers, uint32_t n) {                                                 \
    return zps_simd_body_ascends(numbers, n);                                                                          \
  }                                                                                                                    \
  TARGET static uint32_t NAME##_count_below(const void *numbers, uint32_t limit) {                                     \
    return zps_simd_body_count_below(numbers, limit);                                                                  \
  }                                                                                                                    \
  TARGET static uint32_t NAME##_add_below(float *sums, uint32_t base, uint32_t limit, const void *indices, uint32_t n, \
                                          const void *values) {                                                        \
    return zps_simd_body_add_below(sums, base, limit, indices, n, values);                                             \
  }                                                                                                                    \
  TARGET static void NAME##_add_rows(float *sums, const uint32_t *slots, uint32_t base, const void *indices,           \
                                     uint32_t n_rows, uint32_t width, const void *values) {                            \
    zps_simd_body_add_rows(sums, slots, base, indices, n_rows, width, values);                                         \
  }                                                                                                                    \
  TARGET static uint32_t NAME##_take_rows(const uint64_t *bits, uint32_t n_words, const uint32_t *slots,               \
                                          int64_t first, int64_t *rows, void *values) {                                \
    return zps_simd_body_take_rows(bits, n_words, slots, first, rows, values);                                         \
  }

DEFINE_SHARED(avx2, AVX2)
DEFINE_SHARED(avx512, AVX512)

AVX2 static void avx2_add(float *sums, const uint64_t *bits, uint32_t n_words, const void *values, uint32_t n) {
  (void)n;
  zps_simd_body_add(sums, bits, n_words, values);
}

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

AVX512 static uint32_t avx512_compact(const void *values, uint32_t n, uint32_t mask, const void *next,
                                      uint32_t *positions, uint32_t *kept) {
  const char *from = values;
  const __m512i mask16 = _mm512_set1_epi32((int)mask), step = _mm512_set1_epi32(16);
  __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t found = 0, i = 0;
  for (; i + 64 <= n; i += 64, from += 256) {
    __m512i lanes[4], any;
    zps_simd_fetch_once((const char *)next + 4 * (uint64_t)i);
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

AVX512 static void avx512_add(float *sums, const uint64_t *bits, uint32_t n_words, const void *values, uint32_t n) {
  const char *at = values;
  uint32_t left = n;
  for (uint32_t w = 0; w < n_words; w++, sums += 64) {
    uint64_t word = bits[w];
    for (float *sum = sums; word != 0; sum += 16, word >>= 16) {
      const __mmask16 is = (__mmask16)word;
      const __m512 next = left >= 16 ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps((__mmask16)((1u << left) - 1), at);
      const __m512 added = _mm512_add_ps(_mm512_maskz_expand_ps(is, next), _mm512_setzero_ps());
      const __m512 old = _mm512_loadu_ps(sum);
      _mm512_storeu_ps(sum, _mm512_mask_add_ps(old, is, old, added));
      const uint32_t here = (uint32_t)__builtin_popcount(is);
      at += here * sizeof(float);
      left -= here;
    }
  }
}

/* Four times the same, because not every optimisation level unrolls loops, and indexed vectors stay in memory. */
struct avx512_lanes {
  __m512i at_0, at_16, at_32, at_48;
};

AVX512 static inline struct avx512_lanes avx512_load(const void *at) {
  const char *const from = at;
  return (struct avx512_lanes){_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64), _mm512_loadu_si512(from + 128),
                               _mm512_loadu_si512(from + 192)};
}

AVX512 static inline uint64_t avx512_word(__mmask16 at_0, __mmask16 at_16, __mmask16 at_32, __mmask16 at_48) {
  return _cvtmask64_u64(_mm512_kunpackd(_mm512_kunpackw(at_48, at_32), _mm512_kunpackw(at_16, at_0)));
}

/* Which of 64 values have a bit of the mask set. */
AVX512 static inline uint64_t avx512_kept(const struct avx512_lanes *lanes, __m512i mask16) {
  return avx512_word(_mm512_test_epi32_mask(lanes->at_0, mask16), _mm512_test_epi32_mask(lanes->at_16, mask16),
                     _mm512_test_epi32_mask(lanes->at_32, mask16), _mm512_test_epi32_mask(lanes->at_48, mask16));
}

/* Which of 64 sums something was added to. */
AVX512 static inline uint64_t avx512_added(const struct avx512_lanes *lanes) {
  const __m512i empty = _mm512_set1_epi32((int)ZPS_SIMD_NEGATIVE_ZERO);
  return avx512_word(_mm512_cmpneq_epi32_mask(lanes->at_0, empty), _mm512_cmpneq_epi32_mask(lanes->at_16, empty),
                     _mm512_cmpneq_epi32_mask(lanes->at_32, empty), _mm512_cmpneq_epi32_mask(lanes->at_48, empty));
}

AVX512 static inline void avx512_clear(float *sums) {
  const __m512i empty = _mm512_set1_epi32((int)ZPS_SIMD_NEGATIVE_ZERO);
  _mm512_storeu_si512(sums, empty);
  _mm512_storeu_si512(sums + 16, empty);
  _mm512_storeu_si512(sums + 32, empty);
  _mm512_storeu_si512(sums + 48, empty);
}

AVX512 static inline float *avx512_take_some(__m512i lanes, __mmask16 is, float *out) {
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(is, lanes));
  return out + __builtin_popcount(is);
}

AVX512 static inline void avx512_take_word(const struct avx512_lanes *lanes, uint64_t word, float *out) {
  out = avx512_take_some(lanes->at_0, (__mmask16)word, out);
  out = avx512_take_some(lanes->at_16, (__mmask16)(word >> 16), out);
  out = avx512_take_some(lanes->at_32, (__mmask16)(word >> 32), out);
  avx512_take_some(lanes->at_48, (__mmask16)(word >> 48), out);
}

AVX512 static uint32_t avx512_pack(const void *values, uint32_t n, uint32_t mask, uint32_t *kept, uint64_t *bits) {
  const __m512i mask16 = _mm512_set1_epi32((int)mask);
  const uint32_t whole = n & ~63u;
  uint32_t at = 0;
  for (uint32_t i = 0; i < whole; i += 64) {
    const char *const from = (const char *)values + 4 * (uint64_t)i;
    zps_simd_fetch_once(from + ZPS_SIMD_AHEAD_BYTES);
    const struct avx512_lanes lanes = avx512_load(from);
    const uint64_t word = avx512_kept(&lanes, mask16);
    bits[i / 64] = word;
    avx512_take_word(&lanes, word, (float *)(void *)(kept + at));
    at += (uint32_t)__builtin_popcountll(word);
  }
  return at + zps_simd_pack_rest(values, whole, n, mask, kept + at, bits);
}

AVX512 static uint32_t avx512_take(float *sums, uint32_t n_words, float *out, uint64_t *bits) {
  float *at = out;
  for (uint32_t w = 0; w < n_words; w++, sums += 64) {
    const struct avx512_lanes lanes = avx512_load(sums);
    const uint64_t word = bits[w] = avx512_added(&lanes);
    if (word == 0) continue;
    avx512_clear(sums);
    avx512_take_word(&lanes, word, at);
    at += __builtin_popcountll(word);
  }
  return (uint32_t)(at - out);
}

AVX512 static uint32_t avx512_deliver(float *sums, uint32_t n, float factor, float *out, bool past_caches) {
  const __m512 factors = _mm512_set1_ps(factor);
  const __m512i empty = _mm512_set1_epi32((int)ZPS_SIMD_NEGATIVE_ZERO);
  uint32_t i = zps_simd_ahead_of_line(out, n), n_added = zps_simd_deliver_some(sums, 0, i, factor, out);
  for (; i + 16 <= n; i += 16) {
    const __m512 lanes = _mm512_loadu_ps(sums + i);
    const __m512 result = _mm512_mul_ps(_mm512_add_ps(lanes, _mm512_setzero_ps()), factors);
    n_added += (uint32_t)__builtin_popcount(_mm512_cmpneq_epi32_mask(_mm512_castps_si512(lanes), empty));
    _mm512_storeu_si512(sums + i, empty);
    if (past_caches)
      _mm512_stream_ps(out + i, result);
    else
      _mm512_storeu_ps(out + i, result);
  }
  return n_added + zps_simd_deliver_some(sums, i, n, factor, out);
}

VBMI2 static inline void vbmi2_take_some(const struct avx512_lanes *lanes, __m128i places, float *out) {
  const __m512i at = _mm512_cvtepu8_epi32(places);
  const __m512i low = _mm512_permutex2var_epi32(lanes->at_0, at, lanes->at_16);
  const __m512i high = _mm512_permutex2var_epi32(lanes->at_32, at, lanes->at_48);
  _mm512_storeu_si512(out, _mm512_mask_blend_epi32(_mm512_test_epi32_mask(at, _mm512_set1_epi32(32)), low, high));
}

VBMI2 static inline __m512i vbmi2_places(void) {
  char places[64];
  for (unsigned i = 0; i < 64; i++) places[i] = (char)i;
  return _mm512_loadu_si512(places);
}

/* Moves the sums of one word, with no branch on whether there are any: at densities where one in two has some, a
 * branch would cost more. */
VBMI2 static inline uint32_t vbmi2_take_word(float *sums, __m512i places, float *out, uint64_t *word_p) {
  enum { FEW = 32 };
  const struct avx512_lanes lanes = avx512_load(sums);
  const uint64_t word = *word_p = avx512_added(&lanes);
  const unsigned n = (unsigned)__builtin_popcountll(word);
  avx512_clear(sums);
  if (n > FEW) { /* out of 64: otherwise they are picked by their places, sixteen at a time */
    avx512_take_word(&lanes, word, out);
    return n;
  }
  const __m512i kept = _mm512_maskz_compress_epi8(word, places);
  vbmi2_take_some(&lanes, _mm512_castsi512_si128(kept), out);
  if (n > 16) vbmi2_take_some(&lanes, _mm512_extracti32x4_epi32(kept, 1), out + 16);
  return n;
}

VBMI2 static inline bool vbmi2_is_empty(const float *sums, uint32_t n) {
  const __m512i empty = _mm512_set1_epi32((int)ZPS_SIMD_NEGATIVE_ZERO);
  __m512i any = _mm512_setzero_si512();
  for (uint32_t i = 0; i < n; i += 64) {
    const __m512i a = _mm512_xor_si512(_mm512_loadu_si512(sums + i), empty);
    const __m512i b = _mm512_xor_si512(_mm512_loadu_si512(sums + i + 16), empty);
    const __m512i c = _mm512_xor_si512(_mm512_loadu_si512(sums + i + 32), empty);
    const __m512i d = _mm512_xor_si512(_mm512_loadu_si512(sums + i + 48), empty);
    any = _mm512_or_si512(any, _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d)));
  }
  return _mm512_test_epi32_mask(any, any) == 0;
}

VBMI2 static uint32_t vbmi2_take(float *sums, uint32_t n_words, float *out, uint64_t *bits) {
  enum { GROUP = 4 };
  const __m512i all = vbmi2_places();
  uint32_t n = 0, w = 0;
  for (; w + GROUP <= n_words; w += GROUP, sums += GROUP * 64) {
    if ((w == 0 || bits[w - 1] == 0) && vbmi2_is_empty(sums, GROUP * 64)) {
      memset(bits + w, 0, GROUP * sizeof *bits);
      continue;
    }
    for (unsigned i = 0; i < GROUP; i++) n += vbmi2_take_word(sums + 64 * i, all, out + n, bits + w + i);
  }
  for (; w < n_words; w++, sums += 64) n += vbmi2_take_word(sums, all, out + n, bits + w);
  return n;
}

/* With no branch on whether one of 64 is kept: at densities of about a hundredth that is as likely as not. */
VBMI2 static uint32_t vbmi2_compact(const void *values, uint32_t n, uint32_t mask, const void *next,
                                    uint32_t *positions, uint32_t *kept) {
  enum { FEW = 16 };
  const __m512i mask16 = _mm512_set1_epi32((int)mask), all = vbmi2_places();
  const uint32_t whole = n & ~63u;
  uint32_t found = 0;
  for (uint32_t i = 0; i < whole; i += 64) {
    zps_simd_fetch_once((const char *)next + 4 * (uint64_t)i);
    const struct avx512_lanes lanes = avx512_load((const char *)values + 4 * (uint64_t)i);
    const uint64_t word = avx512_kept(&lanes, mask16);
    const unsigned here = (unsigned)__builtin_popcountll(word);
    if (here > FEW) {
      const __m512i step = _mm512_set1_epi32(16);
      __m512i at = _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm512_castsi512_si128(all)), _mm512_set1_epi32((int)i));
      found += avx512_keep((__mmask16)word, at, lanes.at_0, positions + found, kept + found);
      at = _mm512_add_epi32(at, step);
      found += avx512_keep((__mmask16)(word >> 16), at, lanes.at_16, positions + found, kept + found);
      at = _mm512_add_epi32(at, step);
      found += avx512_keep((__mmask16)(word >> 32), at, lanes.at_32, positions + found, kept + found);
      at = _mm512_add_epi32(at, step);
      found += avx512_keep((__mmask16)(word >> 48), at, lanes.at_48, positions + found, kept + found);
      continue;
    }
    const __m128i places = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(word, all));
    _mm512_storeu_si512(positions + found, _mm512_add_epi32(_mm512_cvtepu8_epi32(places), _mm512_set1_epi32((int)i)));
    vbmi2_take_some(&lanes, places, (float *)(void *)(kept + found));
    found += here;
  }
  return found + zps_simd_compact_rest(values, whole, n, mask, positions + found, kept + found);
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

/* Of words with few bits these are listed at once; there is no branch on how few, or whether any. */
VBMI2 static uint32_t vbmi2_list(const uint64_t *bits, uint32_t n_words, uint32_t base, uint32_t *out) {
  enum { FEW = 16 };
  const __m512i all = vbmi2_places();
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++, base += 64) {
    const uint64_t word = bits[w];
    const unsigned here = (unsigned)__builtin_popcountll(word);
    if (here > FEW) {
      n += avx512_list(&word, 1, base, out + n);
      continue;
    }
    const __m128i places = _mm512_castsi512_si128(_mm512_maskz_compress_epi8(word, all));
    _mm512_storeu_si512(out + n, _mm512_add_epi32(_mm512_cvtepu8_epi32(places), _mm512_set1_epi32((int)base)));
    n += here;
  }
  return n;
}

/* Up to sixteen rows, whose places in a word are given, and what lies there. */
VBMI2 static inline void vbmi2_take_rows_some(const struct avx512_lanes *lanes, __m128i places, unsigned n,
                                              __m512i first, int64_t *rows, float *values) {
  vbmi2_take_some(lanes, places, values);
  _mm512_storeu_si512(rows, _mm512_add_epi64(_mm512_cvtepu8_epi64(places), first));
  if (n > 8) _mm512_storeu_si512(rows + 8, _mm512_add_epi64(_mm512_cvtepu8_epi64(_mm_srli_si128(places, 8)), first));
}

VBMI2 static uint32_t vbmi2_take_rows(const uint64_t *bits, uint32_t n_words, const uint32_t *slots, int64_t first,
                                      int64_t *rows, void *values) {
  const __m512i all = vbmi2_places();
  float *const out = values;
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++, slots += 64, first += 64) {
    const struct avx512_lanes lanes = avx512_load(slots);
    const unsigned here = (unsigned)__builtin_popcountll(bits[w]);
    const __m512i kept = _mm512_maskz_compress_epi8(bits[w], all), from = _mm512_set1_epi64(first);
    vbmi2_take_rows_some(&lanes, _mm512_castsi512_si128(kept), here, from, rows + n, out + n);
    if (here > 16) { /* few words are so full */
      char places[64];
      _mm512_storeu_si512(places, kept);
      for (unsigned i = 16; i < here; i += 16)
        vbmi2_take_rows_some(&lanes, _mm_loadu_si128((const __m128i *)(const void *)(places + i)), here - i, from,
                             rows + n + i, out + n + i);
    }
    n += here;
  }
  return n;
}

AVX512 static uint32_t avx512_take_marked(float *sums, uint8_t *marks, uint32_t n_lines, uint32_t base,
                                          uint32_t *positions, float *kept) {
  const __m512i mask16 = _mm512_set1_epi32((int)~ZPS_SIMD_NEGATIVE_ZERO), zero = _mm512_setzero_si512();
  const __m512i first = _mm512_add_epi32(_mm512_set1_epi32((int)base),
                                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  uint32_t n = 0;
  for (uint32_t line = 0; line < n_lines; line += 64) {
    const __m512i marks64 = _mm512_loadu_si512(marks + line);
    uint64_t marked = _mm512_test_epi8_mask(marks64, marks64);
    if (marked == 0) continue;
    _mm512_storeu_si512(marks + line, zero);
    for (; marked != 0; marked &= marked - 1) {
      const uint32_t at = (line + (unsigned)__builtin_ctzll(marked)) * ZPS_SIMD_MARKED;
      const __m512i lanes = _mm512_loadu_si512(sums + at);
      _mm512_storeu_si512(sums + at, zero);
      n += avx512_keep(_mm512_test_epi32_mask(lanes, mask16), _mm512_add_epi32(first, _mm512_set1_epi32((int)at)),
                       lanes, positions + n, (uint32_t *)(void *)(kept + n));
    }
  }
  return n;
}

#define TABLE(NAME, TITLE, BEST, RICE)                                                                                \
  {                                                                                                                   \
    .name = TITLE, .compact = BEST##_compact, .pack = NAME##_pack, .locate = zps_simd_locate_##NAME,                  \
    .deal = zps_simd_deal_##NAME, .rows_of = NAME##_rows_of, .ascends = NAME##_ascends,                               \
    .count_below = NAME##_count_below, .add = NAME##_add, .add_below = NAME##_add_below, .add_rows = NAME##_add_rows, \
    .take = BEST##_take, .deliver = NAME##_deliver, .take_marked = NAME##_take_marked, .list = BEST##_list,           \
    .take_rows = BEST##_take_rows, .rice_list = zps_rice_list_##RICE, .rice_skip = zps_rice_skip_##RICE,              \
    .rice_gaps = zps_rice_gaps_##NAME, .rice_zeros = zps_rice_zeros_##NAME, .rice_put = zps_rice_put_##NAME,          \
    .values = &zps_values_loops_##NAME                                                                                \
  }

const struct zps_simd zps_simd_avx2 = TABLE(avx2, "avx2", avx2, avx2);
const struct zps_simd zps_simd_avx512 = TABLE(avx512, "avx512", avx512, avx2);
const struct zps_simd zps_simd_vbmi2 = TABLE(avx512, "avx512-vbmi2", vbmi2, vbmi2);
#endif
