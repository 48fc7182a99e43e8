#include "common/codec/simd/simd_impl.h"

#ifdef __x86_64__
#include <immintrin.h>

#include "common/codec/simd/simd_body.h"

#define AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2")))

AVX2 void zps_simd_locate_avx2(const struct zps_partition *part, uint64_t first, const uint32_t *positions, uint32_t n,
                               uint16_t *parts, uint32_t *locals) {
  zps_simd_body_locate(part, first, positions, n, parts, locals);
}

AVX2 bool zps_simd_deal_avx2(const struct zps_simd_chunks *chunks, const int64_t *rows, const float *values, uint32_t n,
                             uint32_t *buckets, struct zps_simd_entry *entries) {
  return zps_simd_body_deal(chunks, rows, values, n, buckets, entries);
}

/* ------------------------------------------------------------ sixteen rows at a time */

enum { LANES = 16, LANES_64 = 8 };

struct constants {
  __m512d inverse, half_inverse;
  __m512i n_parts, n_parts_32, seed, in_block, mix_1, mix_2, even, odd;
  __m512i in_chunk, in_stripes;
  __m128i block_bits, chunk_bits, turn_bits;
};

AVX512 static inline struct constants constants_of(const struct zps_partition *part) {
  const double inverse = 1.0 / (double)part->stripe_parts;
  return (struct constants){
      .inverse = _mm512_set1_pd(inverse),
      .half_inverse = _mm512_set1_pd(inverse / 2),
      .n_parts = _mm512_set1_epi64(part->stripe_parts),
      .n_parts_32 = _mm512_set1_epi32((int)part->stripe_parts),
      .seed = _mm512_set1_epi64((long long)part->seed),
      .in_block = _mm512_set1_epi64((1ll << part->block_bits) - 1),
      .mix_1 = _mm512_set1_epi64((long long)0xff51afd7ed558ccdull),
      .mix_2 = _mm512_set1_epi64((long long)0xc4ceb9fe1a85ec53ull),
      .even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
      .odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
      .in_chunk = _mm512_set1_epi64((1ll << part->chunk_bits) - 1),
      .in_stripes = _mm512_set1_epi64((1ll << part->stripe_bits) - 1),
      .block_bits = _mm_cvtsi32_si128((int)part->block_bits),
      .chunk_bits = _mm_cvtsi32_si128((int)part->chunk_bits),
      .turn_bits = _mm_cvtsi32_si128((int)(part->chunk_bits + part->stripe_bits)),
  };
}

/* Eight rows of their stripes, whose numbers are where the seed takes them: their indices, their blocks' positions in
 * their groups, and the groups' rotations times 2^32. */
AVX512 static inline void locate_8(const struct constants *with, __m512i rows, __m512i stripes, __m512i *indices,
                                   __m512i *positions, __m512i *rotations) {
  const __m512i blocks = _mm512_srl_epi64(rows, with->block_bits);
  /* (block + 1/2) / n_parts is no nearer to a whole number than 1/2 / n_parts. Blocks are below 2^40, so that what
   * rounding adds, in any mode, is below 2^-10 / n_parts: the whole part is exact. */
  const __m512d quotients = _mm512_fmadd_pd(_mm512_cvtepu64_pd(blocks), with->inverse, with->half_inverse);
  const __m512i groups = _mm512_cvttpd_epu64(quotients); /* below 2^32 */
  *positions = _mm512_sub_epi64(blocks, _mm512_mul_epu32(groups, with->n_parts));
  *indices = _mm512_or_si512(_mm512_sll_epi64(groups, with->block_bits), _mm512_and_si512(rows, with->in_block));
  /* zps_hash_mix64() but for its last step, which leaves the high half as it is */
  __m512i x = _mm512_ternarylogic_epi64(groups, with->seed, stripes, 0x96); /* a ^ b ^ c */
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 33)), with->mix_1);
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 33)), with->mix_2);
  *rotations = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), with->n_parts);
}

AVX512 static inline void locate_16(const struct constants *with, __m512i rows_0, __m512i rows_8, __m512i stripes_0,
                                    __m512i stripes_8, __m512i *parts, __m512i *indices) {
  __m512i indices_0, indices_8, positions_0, positions_8, rotations_0, rotations_8;
  locate_8(with, rows_0, stripes_0, &indices_0, &positions_0, &rotations_0);
  locate_8(with, rows_8, stripes_8, &indices_8, &positions_8, &rotations_8);
  *indices = _mm512_permutex2var_epi32(indices_0, with->even, indices_8);
  const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(positions_0, with->even, positions_8),
                                       _mm512_permutex2var_epi32(rotations_0, with->odd, rotations_8));
  *parts = _mm512_min_epu32(sum, _mm512_sub_epi32(sum, with->n_parts_32)); /* a negative difference is large */
}

AVX512 void zps_simd_locate_avx512(const struct zps_partition *part, uint64_t first, const uint32_t *positions,
                                   uint32_t n, uint16_t *parts, uint32_t *locals) {
  const struct constants with = constants_of(part);
  const __m512i from = _mm512_set1_epi64((long long)first), no_stripes = _mm512_setzero_si512();
  for (uint32_t i = 0; i < n; i += LANES) {
    const __m512i here = _mm512_loadu_si512(positions + i);
    const __m512i rows_0 = _mm512_add_epi64(_mm512_cvtepu32_epi64(_mm512_castsi512_si256(here)), from);
    const __m512i rows_8 = _mm512_add_epi64(_mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(here, 1)), from);
    __m512i in, indices;
    locate_16(&with, rows_0, rows_8, no_stripes, no_stripes, &in, &indices);
    _mm256_storeu_si256((__m256i *)(void *)(parts + i), _mm512_cvtepi32_epi16(in));
    _mm512_storeu_si512(locals + i, indices);
  }
}

/* The stripes of eight rows; which of their stripes' rows they are is left in their place. */
AVX512 static inline __m512i take_stripes(const struct constants *with, __m512i *rows) {
  const __m512i stripes = _mm512_and_si512(_mm512_srl_epi64(*rows, with->chunk_bits), with->in_stripes);
  *rows = _mm512_or_si512(_mm512_sll_epi64(_mm512_srl_epi64(*rows, with->turn_bits), with->chunk_bits),
                          _mm512_and_si512(*rows, with->in_chunk));
  return stripes;
}

/* locate_16() for rows of all stripes. */
AVX512 static inline void locate_any_16(const struct constants *with, __m512i rows_0, __m512i rows_8, __m512i *parts,
                                        __m512i *indices) {
  enum { SHIFT = ZPS_PARTITION_STRIPE_SEED_SHIFT };
  const __m512i stripes_0 = take_stripes(with, &rows_0), stripes_8 = take_stripes(with, &rows_8);
  locate_16(with, rows_0, rows_8, _mm512_slli_epi64(stripes_0, SHIFT), _mm512_slli_epi64(stripes_8, SHIFT), parts,
            indices);
  const __m512i stripes = _mm512_permutex2var_epi32(stripes_0, with->even, stripes_8);
  *parts = _mm512_add_epi32(*parts, _mm512_mullo_epi32(stripes, with->n_parts_32));
}

AVX512 static inline __mmask8 first_of(uint32_t n) {
  return (__mmask8)(n < LANES_64 ? (1u << n) - 1 : UINT8_MAX);
}

AVX512 bool zps_simd_deal_avx512(const struct zps_simd_chunks *chunks, const int64_t *rows, const float *values,
                                 uint32_t n, uint32_t *buckets, struct zps_simd_entry *entries) {
  enum { AHEAD = 768 }; /* beyond the page, where the machine does not look by itself */
  const struct constants with = constants_of(chunks->part);
  const __m512i n_chunks = _mm512_set1_epi32((int)chunks->n_chunks);
  const __m128i chunk_bits = _mm_cvtsi32_si128((int)chunks->chunk_bits);
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const __m512i no_stripes = _mm512_setzero_si512();
  const bool has_stripes = chunks->part->stripe_bits > 0;
  __m512i most = _mm512_setzero_si512();
  for (uint32_t i = 0; i < n; i += LANES) {
    const uint32_t left = n - i;
    __builtin_prefetch(rows + i + AHEAD);
    __builtin_prefetch(rows + i + AHEAD + LANES_64);
    __builtin_prefetch(values + i + AHEAD);
    const __m512i rows_0 = _mm512_maskz_loadu_epi64(first_of(left), rows + i);
    const __m512i rows_8 =
        _mm512_maskz_loadu_epi64(left > LANES_64 ? first_of(left - LANES_64) : 0, rows + i + LANES_64);
    const __mmask16 values_here = (__mmask16)(left < LANES ? (1u << left) - 1 : UINT16_MAX);
    const __m512i values_16 = _mm512_maskz_loadu_epi32(values_here, values + i);
    __m512i parts, indices;
    most = _mm512_max_epu64(most, _mm512_max_epu64(rows_0, rows_8));
    if (has_stripes)
      locate_any_16(&with, rows_0, rows_8, &parts, &indices);
    else
      locate_16(&with, rows_0, rows_8, no_stripes, no_stripes, &parts, &indices);
    const __m512i in_part = _mm512_srl_epi32(indices, chunk_bits);
    _mm512_storeu_si512(buckets + i, _mm512_add_epi32(_mm512_mullo_epi32(parts, n_chunks), in_part));
    _mm512_storeu_si512(entries + i, _mm512_permutex2var_epi32(indices, low, values_16));
    _mm512_storeu_si512(entries + i + LANES_64, _mm512_permutex2var_epi32(indices, high, values_16));
  }
  return _mm512_cmpge_epu64_mask(most, _mm512_set1_epi64((long long)chunks->part->rows)) == 0;
}
#endif
