#include "common/codec/simd/simd.h"

#include <stdatomic.h>
#include <stddef.h>

#include "common/codec/simd/simd_body.h"
#include "common/codec/simd/simd_impl.h"

#if defined __SSE2__
#include <emmintrin.h>

/* Bit i: value i, of a line of 16, has bits in common with the mask, or, on demand, differs from it. */
static inline uint32_t line_of(const char *values, uint32_t mask, bool differs) {
  const __m128i mask4 = _mm_set1_epi32((int)mask), compare = differs ? mask4 : _mm_setzero_si128();
  __m128i is[4];
  for (unsigned j = 0; j < 4; j++) {
    const __m128i lanes = _mm_loadu_si128((const __m128i *)(const void *)values + j);
    is[j] = _mm_cmpeq_epi32(differs ? lanes : _mm_and_si128(lanes, mask4), compare);
  }
  const __m128i all = _mm_packs_epi16(_mm_packs_epi32(is[0], is[1]), _mm_packs_epi32(is[2], is[3]));
  return (uint32_t)_mm_movemask_epi8(all) ^ 0xffff;
}

/* Bit i: value i of 64 has bits in common with the mask, or, on demand, differs from it. */
static inline uint64_t word_of(const char *values, uint32_t mask, bool differs) {
  uint64_t word = 0;
  for (unsigned i = 0; i < 64; i += 16) word |= (uint64_t)line_of(values + 4 * i, mask, differs) << i;
  return word;
}
#elif defined __aarch64__
#include <arm_neon.h>

/* 16 values: all ones in a byte where a value has bits in common with the mask, or differs from it. */
static inline uint8x16_t sixteen_of(const char *values, uint32_t mask, bool differs) {
  const uint32x4_t mask4 = vdupq_n_u32(mask);
  uint16x4_t is[4];
  for (unsigned j = 0; j < 4; j++) {
    const uint32x4_t lanes = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)values + 16 * j));
    is[j] = vmovn_u32(differs ? vmvnq_u32(vceqq_u32(lanes, mask4)) : vtstq_u32(lanes, mask4));
  }
  return vcombine_u8(vmovn_u16(vcombine_u16(is[0], is[1])), vmovn_u16(vcombine_u16(is[2], is[3])));
}

/* A bit for each byte that is all ones: each sum of neighbours halves the bytes, and puts eight lanes' bits into one in
 * the end. */
static inline uint8x16_t weighted(uint8x16_t is) {
  static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return vandq_u8(is, vld1q_u8(weights));
}

static inline uint32_t line_of(const char *values, uint32_t mask, bool differs) {
  uint8x16_t bytes = weighted(sixteen_of(values, mask, differs));
  for (unsigned i = 0; i < 3; i++) bytes = vpaddq_u8(bytes, bytes);
  return vgetq_lane_u16(vreinterpretq_u16_u8(bytes), 0);
}

static inline uint64_t word_of(const char *values, uint32_t mask, bool differs) {
  uint8x16_t is[4];
  for (unsigned i = 0; i < 4; i++) is[i] = weighted(sixteen_of(values + 64 * i, mask, differs));
  const uint8x16_t bytes = vpaddq_u8(vpaddq_u8(is[0], is[1]), vpaddq_u8(is[2], is[3]));
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(bytes, bytes)), 0);
}
#else
static inline uint64_t bits_of(const char *values, unsigned n, uint32_t mask, bool differs) {
  uint64_t word = 0;
  for (unsigned i = 0; i < n; i++) {
    uint32_t value;
    memcpy(&value, values + 4 * i, sizeof value);
    word |= (uint64_t)(differs ? value != mask : (value & mask) != 0) << i;
  }
  return word;
}

static inline uint32_t line_of(const char *values, uint32_t mask, bool differs) {
  return (uint32_t)bits_of(values, 16, mask, differs);
}

static inline uint64_t word_of(const char *values, uint32_t mask, bool differs) {
  return bits_of(values, 64, mask, differs);
}
#endif

static uint32_t compact(const void *values, uint32_t n, uint32_t mask, const void *next, uint32_t *positions,
                        uint32_t *kept) {
  const uint32_t whole = n & ~63u;
  uint32_t at = 0;
  for (uint32_t i = 0; i < whole; i += 64) {
    zps_simd_fetch_once((const char *)next + 4 * (uint64_t)i);
    at += zps_simd_pick(values, word_of((const char *)values + 4 * (uint64_t)i, mask, false), i, positions + at,
                        kept + at);
  }
  return at + zps_simd_compact_rest(values, whole, n, mask, positions + at, kept + at);
}

static uint32_t pack(const void *values, uint32_t n, uint32_t mask, uint32_t *kept, uint64_t *bits) {
  const uint32_t whole = n & ~63u;
  uint32_t at = 0;
  for (uint32_t i = 0; i < whole; i += 64) {
    const char *const from = (const char *)values + 4 * (uint64_t)i;
    at += zps_simd_pack_word(from, bits[i / 64] = word_of(from, mask, false), kept + at);
  }
  return at + zps_simd_pack_rest(values, whole, n, mask, kept + at, bits);
}

static uint32_t take(float *sums, uint32_t n_words, float *out, uint64_t *bits) {
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++) {
    bits[w] = word_of((const char *)(sums + 64 * (uint64_t)w), ZPS_SIMD_NEGATIVE_ZERO, true);
    n += zps_simd_take_word(sums + 64 * (uint64_t)w, bits[w], out + n);
  }
  return n;
}

static uint32_t take_marked(float *sums, uint8_t *marks, uint32_t n_lines, uint32_t base, uint32_t *positions,
                            float *kept) {
  uint32_t n = 0;
  for (uint32_t line = 0; line < n_lines; line += 8) {
    uint64_t marked; /* a byte each */
    memcpy(&marked, marks + line, sizeof marked);
    if (marked == 0) continue;
    memset(marks + line, 0, sizeof marked);
    for (; marked != 0; marked &= marked - 1) {
      const uint32_t at = (line + (unsigned)__builtin_ctzll(marked) / 8) * ZPS_SIMD_MARKED;
      const uint32_t word = line_of((const char *)(sums + at), ~ZPS_SIMD_NEGATIVE_ZERO, false);
      n += zps_simd_take_line(sums, at, word, base, positions + n, kept + n);
    }
  }
  return n;
}

static uint32_t deliver(float *sums, uint32_t n, float factor, float *out, bool past_caches) {
#ifdef __SSE2__
  const __m128 factors = _mm_set1_ps(factor);
  const __m128i empty = _mm_set1_epi32((int)ZPS_SIMD_NEGATIVE_ZERO);
  uint32_t i = zps_simd_ahead_of_line(out, n), n_added = zps_simd_deliver_some(sums, 0, i, factor, out);
  __m128i n_empty = _mm_setzero_si128();
  const uint32_t first = i;
  for (; i + 4 <= n; i += 4) {
    const __m128 lanes = _mm_loadu_ps(sums + i);
    const __m128 result = _mm_mul_ps(_mm_add_ps(lanes, _mm_setzero_ps()), factors);
    n_empty = _mm_sub_epi32(n_empty, _mm_cmpeq_epi32(_mm_castps_si128(lanes), empty));
    _mm_storeu_ps(sums + i, _mm_castsi128_ps(empty));
    if (past_caches)
      _mm_stream_ps(out + i, result);
    else
      _mm_storeu_ps(out + i, result);
  }
  uint32_t counts[4];
  memcpy(counts, &n_empty, sizeof counts);
  n_added += i - first - (counts[0] + counts[1] + counts[2] + counts[3]);
  return n_added + zps_simd_deliver_some(sums, i, n, factor, out);
#else
  (void)past_caches;
  return zps_simd_deliver_some(sums, 0, n, factor, out);
#endif
}

static void locate(const struct zps_partition *part, uint64_t first, const uint32_t *positions, uint32_t n,
                   uint16_t *parts, uint32_t *locals) {
  zps_simd_body_locate(part, first, positions, n, parts, locals);
}

static bool deal(const struct zps_simd_chunks *chunks, const int64_t *rows, const float *values, uint32_t n,
                 uint32_t *buckets, struct zps_simd_entry *entries) {
  return zps_simd_body_deal(chunks, rows, values, n, buckets, entries);
}

static void rows_of(const struct zps_partition *part, uint32_t p, const uint32_t *indices, uint32_t n, uint64_t *rows) {
  zps_simd_body_rows_of(part, p, indices, n, rows);
}

static uint32_t list(const uint64_t *bits, uint32_t n_words, uint32_t base, uint32_t *out) {
  return zps_simd_body_list(bits, n_words, base, out);
}

static bool ascends(const void *numbers, uint32_t n) {
  return zps_simd_body_ascends(numbers, n);
}

static uint32_t count_below(const void *numbers, uint32_t limit) {
  return zps_simd_body_count_below(numbers, limit);
}

static void add(float *sums, const uint64_t *bits, uint32_t n_words, const void *values, uint32_t n) {
  (void)n;
  zps_simd_body_add(sums, bits, n_words, values);
}

static uint32_t add_below(float *sums, uint32_t base, uint32_t limit, const void *indices, uint32_t n,
                          const void *values) {
  return zps_simd_body_add_below(sums, base, limit, indices, n, values);
}

static void add_rows(float *sums, const uint32_t *slots, uint32_t base, const void *indices, uint32_t n_rows,
                     uint32_t width, const void *values) {
  zps_simd_body_add_rows(sums, slots, base, indices, n_rows, width, values);
}

static uint32_t take_rows(const uint64_t *bits, uint32_t n_words, const uint32_t *slots, int64_t first, int64_t *rows,
                          void *values) {
  return zps_simd_body_take_rows(bits, n_words, slots, first, rows, values);
}

static bool rice_list(const struct zps_rice_block *block, uint32_t *numbers, uint64_t *bit_p, uint64_t *next_p) {
  return zps_rice_body_list(block, numbers, bit_p, next_p);
}

static bool rice_skip(const struct zps_rice_block *block, uint64_t *bit_p, uint64_t *next_p) {
  return zps_rice_body_skip(block, bit_p, next_p);
}

static void rice_gaps(const uint32_t *indices, uint32_t n, uint32_t next, uint32_t *gaps) {
  zps_rice_body_gaps(indices, n, next, gaps);
}

static uint32_t rice_zeros(const uint32_t *gaps, unsigned k) {
  return zps_rice_body_zeros(gaps, k);
}

static void rice_put(struct zps_rice_writer *writer, const uint32_t *gaps, uint32_t n, unsigned k) {
  zps_rice_body_put(writer, gaps, n, k);
}

static const struct zps_simd baseline = {.name = "baseline",
                                         .compact = compact,
                                         .pack = pack,
                                         .locate = locate,
                                         .deal = deal,
                                         .rows_of = rows_of,
                                         .ascends = ascends,
                                         .count_below = count_below,
                                         .add = add,
                                         .add_below = add_below,
                                         .add_rows = add_rows,
                                         .take = take,
                                         .deliver = deliver,
                                         .take_marked = take_marked,
                                         .list = list,
                                         .take_rows = take_rows,
                                         .rice_list = rice_list,
                                         .rice_skip = rice_skip,
                                         .rice_gaps = rice_gaps,
                                         .rice_zeros = rice_zeros,
                                         .rice_put = rice_put,
                                         .values = &zps_values_loops_baseline};

const struct zps_simd *zps_simd_variant(unsigned i) {
  const struct zps_simd *variants[4] = {&baseline};
  unsigned n = 1;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt"))
    variants[n++] = &zps_simd_avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("popcnt")) {
    variants[n++] = &zps_simd_avx512;
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2")) variants[n++] = &zps_simd_vbmi2;
  }
#endif
  return i < n ? variants[i] : NULL;
}

static _Atomic(const struct zps_simd *) used; /* every thread that finds it empty fills in the same */

const struct zps_simd *zps_simd(void) {
  const struct zps_simd *simd = atomic_load_explicit(&used, memory_order_relaxed);
  if (simd) return simd;
  const struct zps_simd *better;
  for (unsigned i = 0; (better = zps_simd_variant(i)) != NULL; i++) simd = better;
  atomic_store_explicit(&used, simd, memory_order_relaxed);
  return simd;
}

void zps_simd_use(const struct zps_simd *simd) {
  atomic_store_explicit(&used, simd, memory_order_relaxed);
}
