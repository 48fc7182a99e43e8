#include "common/codec/simd/rice_block.h"

#ifdef __x86_64__
#include "common/codec/simd/rice_x86.h"

#define AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define VBMI2 __attribute__((target("avx512vbmi,avx512vbmi2,avx512f,avx512dq,avx512bw,avx512vl,avx2,bmi,bmi2,popcnt")))

AVX2 bool zps_rice_list_avx2(const struct zps_rice_block *block, uint32_t *numbers, uint64_t *bit_p, uint64_t *next_p) {
  return zps_rice_body_list(block, numbers, bit_p, next_p);
}

AVX2 bool zps_rice_skip_avx2(const struct zps_rice_block *block, uint64_t *bit_p, uint64_t *next_p) {
  return zps_rice_body_skip(block, bit_p, next_p);
}

/* ------------------------------------------------------------ sixteen gaps at a time */

enum {
  LANES = 16,
  VECTOR_BYTES = 64,
  K_MAX = 25,         /* a gap's low bits lie in four bytes, and those of sixteen gaps in one vector */
  PLACES_MAX = 65535, /* of the ones */
};

/* The way of the low bits of sixteen gaps from the bytes that hold them to their lanes. All groups of sixteen begin at
 * the same bit of a byte. */
struct low_bits {
  __m512i bytes, shifts, mask;
  const unsigned char *at;
  uint32_t step_bytes;
};

VBMI2 static inline __m512i iota(void) {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* False: vectors would reach beyond the end. */
VBMI2 static inline bool low_bits_init(struct low_bits *low, const struct zps_rice_block *block) {
  const uint64_t first = block->low / 8;
  low->step_bytes = LANES / 8 * block->k;
  if (block->k > K_MAX || first + (block->n - 1) / LANES * low->step_bytes + VECTOR_BYTES > block->len_bytes)
    return false;
  const __m512i bits = _mm512_add_epi32(_mm512_mullo_epi32(iota(), _mm512_set1_epi32((int)block->k)),
                                        _mm512_set1_epi32((int)(block->low % 8)));
  const __m512i in_four = _mm512_mullo_epi32(_mm512_srli_epi32(bits, 3), _mm512_set1_epi32(0x01010101));
  low->bytes = _mm512_add_epi32(in_four, _mm512_set1_epi32(0x03020100));
  low->shifts = _mm512_and_si512(bits, _mm512_set1_epi32(7));
  low->mask = _mm512_set1_epi32((int)((1u << block->k) - 1));
  low->at = block->data + first;
  return true;
}

VBMI2 static inline __m512i low_bits_next(struct low_bits *low) {
  const __m512i bytes = _mm512_permutexvar_epi8(low->bytes, _mm512_loadu_si512(low->at));
  low->at += low->step_bytes;
  return _mm512_and_si512(_mm512_srlv_epi32(bytes, low->shifts), low->mask);
}

/* Lists the places of the block's ones, counted from the first byte of its high bits on, and tells the last, on which
 * the next block waits. False: not before the end, or not in 16 bits. */
VBMI2 static inline bool list_places(const struct zps_rice_block *block, uint64_t high, uint16_t *places,
                                     uint64_t *last_p) {
  char all[64];
  for (unsigned i = 0; i < 64; i++) all[i] = (char)i;
  const __m512i bytes = _mm512_loadu_si512(all);
  uint64_t at = high / 8, bits;
  uint32_t base = 0;
  uint64_t mask = UINT64_MAX << (high % 8);
  uint32_t left = block->n;
  for (uint16_t *to = places;; at += 8, base += 64, mask = UINT64_MAX) {
    if (at + 8 > block->len_bytes || base > PLACES_MAX - 64) return false;
    memcpy(&bits, block->data + at, sizeof bits);
    bits &= mask;
    const __m512i kept = _mm512_maskz_compress_epi8(bits, bytes), from = _mm512_set1_epi16((short)base);
    const __m512i low = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(kept));
    const __m512i high_half = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(kept, 1));
    const uint32_t here = (uint32_t)__builtin_popcountll(bits);
    _mm512_storeu_si512(to, _mm512_add_epi16(low, from));
    _mm512_storeu_si512(to + 32, _mm512_add_epi16(high_half, from));
    if (here >= left) break;
    left -= here;
    to += here;
  }
  *last_p = base + (unsigned)__builtin_ctzll(_pdep_u64((uint64_t)1 << (left - 1), bits));
  return true;
}

VBMI2 bool zps_rice_list_vbmi2(const struct zps_rice_block *block, uint32_t *numbers, uint64_t *bit_p,
                               uint64_t *next_p) {
  struct low_bits low;
  uint16_t places[ZPS_RICE_BLOCK + 64];
  const uint64_t high = block->low + (uint64_t)block->n * block->k;
  uint64_t last_place;
  if (!low_bits_init(&low, block) || !list_places(block, high, places, &last_place))
    return zps_rice_body_list(block, numbers, bit_p, next_p);
  const __m512i last = _mm512_set1_epi32(LANES - 1), step = _mm512_set1_epi32(LANES);
  const __m128i k = _mm_cvtsi32_si128((int)block->k);
  const __m512i next = _mm512_set1_epi32((int)(uint32_t)block->next);
  __m512i before = _mm512_setzero_si512(); /* low bits of earlier gaps */
  __m512i i = iota(), zeros = _mm512_add_epi32(i, _mm512_set1_epi32((int)(high % 8)));
  uint32_t low_sum = 0;
  for (uint32_t at = 0; at < block->n; at += LANES) {
    const uint32_t here = block->n - at;
    __m512i lows = low_bits_next(&low);
    if (here < LANES) lows = _mm512_maskz_mov_epi32((__mmask16)((1u << here) - 1), lows);
    const __m512i sums = _mm512_add_epi32(zps_rice_add_up(lows), before);
    const __m512i ones = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(places + at)));
    const __m512i quotients = _mm512_sll_epi32(_mm512_sub_epi32(ones, zeros), k);
    const __m512i numbers16 = _mm512_add_epi32(_mm512_add_epi32(quotients, sums), _mm512_add_epi32(i, next));
    _mm512_storeu_si512(numbers + at, numbers16);
    before = _mm512_permutexvar_epi32(last, sums);
    i = _mm512_add_epi32(i, step);
    zeros = _mm512_add_epi32(zeros, step);
  }
  low_sum = (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(before));
  return zps_rice_end(block, last_place - high % 8, low_sum, bit_p, next_p);
}

VBMI2 bool zps_rice_skip_vbmi2(const struct zps_rice_block *block, uint64_t *bit_p, uint64_t *next_p) {
  struct low_bits low;
  if (!low_bits_init(&low, block)) return zps_rice_body_skip(block, bit_p, next_p);
  const uint64_t high = block->low + (uint64_t)block->n * block->k;
  uint64_t at = high / 8, mask = UINT64_MAX << (high % 8), bits;
  uint32_t left = block->n;
  for (;; at += 8, mask = UINT64_MAX) {
    if (at + 8 > block->len_bytes) return zps_rice_body_skip(block, bit_p, next_p);
    memcpy(&bits, block->data + at, sizeof bits);
    bits &= mask;
    const uint32_t here = (uint32_t)__builtin_popcountll(bits);
    if (here >= left) break;
    left -= here;
  }
  __m512i sums = _mm512_setzero_si512();
  for (uint32_t i = 0; i < block->n; i += LANES) {
    __m512i lows = low_bits_next(&low);
    if (block->n - i < LANES) lows = _mm512_maskz_mov_epi32((__mmask16)((1u << (block->n - i)) - 1), lows);
    sums = _mm512_add_epi32(sums, lows);
  }
  const uint64_t place = 8 * at + (unsigned)__builtin_ctzll(_pdep_u64((uint64_t)1 << (left - 1), bits)) - high;
  return zps_rice_end(block, place, (uint32_t)_mm512_reduce_add_epi32(sums), bit_p, next_p);
}
#endif
