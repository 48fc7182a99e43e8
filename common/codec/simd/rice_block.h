/*
 * One block of a Rice code (codec_rice.h): its numbers, or only where it ends and whether they are below m. A loop for
 * each instruction set (simd.h); all find the same, and trust no byte that they read.
 */
#ifndef ZPS_CODEC_SIMD_RICE_BLOCK_H
#define ZPS_CODEC_SIMD_RICE_BLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/codec/bits.h"
#include "common/codec/codec_rice.h"

struct zps_rice_block {
  const unsigned char *data; /* borrowed: the whole code */
  uint64_t len_bytes;
  uint64_t low; /* the bit at which the low bits begin */
  uint64_t next;
  uint32_t n; /* gaps: 1 to ZPS_RICE_BLOCK */
  uint32_t m;
  unsigned k;
};

/* False: the bytes end too early, or lead beyond m. Otherwise fills `numbers` (ZPS_RICE_BLOCK of them) and says which
 * bit follows the block, and which number may. */
typedef bool zps_rice_list_fn(const struct zps_rice_block *block, uint32_t *numbers, uint64_t *bit_p, uint64_t *next_p);
/* Skips a block: finds where it ends, and writes no numbers. */
typedef bool zps_rice_skip_fn(const struct zps_rice_block *block, uint64_t *bit_p, uint64_t *next_p);

#ifdef __x86_64__
bool zps_rice_list_avx2(const struct zps_rice_block *block, uint32_t *numbers, uint64_t *bit_p, uint64_t *next_p);
bool zps_rice_skip_avx2(const struct zps_rice_block *block, uint64_t *bit_p, uint64_t *next_p);
bool zps_rice_list_vbmi2(const struct zps_rice_block *block, uint32_t *numbers, uint64_t *bit_p, uint64_t *next_p);
bool zps_rice_skip_vbmi2(const struct zps_rice_block *block, uint64_t *bit_p, uint64_t *next_p);
#endif

/* ------------------------------------------------------------ the same text for every instruction set */

#define ZPS_RICE_BODY static inline __attribute__((always_inline))
enum { ZPS_RICE_WINDOW_BITS = 56 };

/* At least ZPS_RICE_WINDOW_BITS + 1 bits from `bit` on; zeros beyond the end. */
ZPS_RICE_BODY uint64_t zps_rice_window(const unsigned char *data, uint64_t len_bytes, uint64_t bit) {
  const uint64_t at = bit / 8;
  uint64_t bits = 0;
  if (at + 8 <= len_bytes)
    memcpy(&bits, data + at, 8);
  else if (at < len_bytes)
    memcpy(&bits, data + at, len_bytes - at);
  return bits >> (bit % 8);
}

/* The window `base` bits behind the low bits. False: the bytes have ended, or count more zeros than m allows. */
ZPS_RICE_BODY bool zps_rice_ones(const struct zps_rice_block *block, uint64_t base, uint64_t *bits_p) {
  const uint64_t bit = block->low + (uint64_t)block->n * block->k + base;
  if (base >= (uint64_t)(block->m >> block->k) + block->n || bit >= 8 * block->len_bytes) return false;
  *bits_p = zps_rice_window(block->data, block->len_bytes, bit) & ((1ull << ZPS_RICE_WINDOW_BITS) - 1);
  return true;
}

/* The low bits of gap `i`. `is_inside`: eight bytes can be read from there on. */
ZPS_RICE_BODY uint32_t zps_rice_low(const struct zps_rice_block *block, uint32_t i, bool is_inside) {
  const uint64_t bit = block->low + (uint64_t)i * block->k;
  uint64_t bits;
  if (is_inside)
    memcpy(&bits, block->data + bit / 8, sizeof bits), bits >>= bit % 8;
  else
    bits = zps_rice_window(block->data, block->len_bytes, bit);
  return (uint32_t)bits & ((1u << block->k) - 1);
}

/* The number after the block when its last one is at `place` among the high bits and its low bits add up to `low_sum`.
 */
ZPS_RICE_BODY bool zps_rice_end(const struct zps_rice_block *block, uint64_t place, uint64_t low_sum, uint64_t *bit_p,
                                uint64_t *next_p) {
  const uint64_t zeros = place + 1 - block->n;
  if (zeros > block->m >> block->k) return false;
  const uint64_t next = block->next + (zeros << block->k) + low_sum + block->n;
  if (next > block->m) return false;
  *next_p = next;
  *bit_p = block->low + (uint64_t)block->n * block->k + place + 1;
  return true;
}

ZPS_RICE_BODY void zps_rice_body_numbers(const struct zps_rice_block *block, const uint32_t *places, bool is_inside,
                                         uint32_t *numbers, uint64_t *low_sum_p) {
  const struct zps_rice_block local = *block; /* a copy that stores cannot change */
  uint64_t low_sum = 0;
  for (uint32_t i = 0; i < local.n; i++) {
    low_sum += zps_rice_low(&local, i, is_inside);
    numbers[i] = (uint32_t)(local.next + ((uint64_t)(places[i] - i) << local.k) + low_sum + i);
  }
  *low_sum_p = low_sum;
}

/* Whether eight bytes can be read wherever low bits begin. */
ZPS_RICE_BODY bool zps_rice_is_inside(const struct zps_rice_block *block) {
  return (block->low + (uint64_t)block->n * block->k) / 8 + 8 <= block->len_bytes;
}

ZPS_RICE_BODY bool zps_rice_body_list(const struct zps_rice_block *block, uint32_t *numbers, uint64_t *bit_p,
                                      uint64_t *next_p) {
  uint32_t places[ZPS_RICE_BLOCK + 64];
  uint64_t base = 0, bits, low_sum;
  for (uint32_t found = 0; found < block->n; base += ZPS_RICE_WINDOW_BITS) {
    if (!zps_rice_ones(block, base, &bits)) return false;
    found += zps_bits_list(bits, (uint32_t)base, places + found);
  }
  if (zps_rice_is_inside(block))
    zps_rice_body_numbers(block, places, true, numbers, &low_sum);
  else
    zps_rice_body_numbers(block, places, false, numbers, &low_sum);
  return zps_rice_end(block, places[block->n - 1], low_sum, bit_p, next_p);
}

ZPS_RICE_BODY bool zps_rice_body_skip(const struct zps_rice_block *block, uint64_t *bit_p, uint64_t *next_p) {
  uint64_t base = 0, bits, low_sum = 0;
  uint32_t left = block->n;
  for (;; base += ZPS_RICE_WINDOW_BITS) {
    if (!zps_rice_ones(block, base, &bits)) return false;
    const uint32_t here = zps_bits_count(bits);
    if (here >= left) break;
    left -= here;
  }
  while (--left > 0) bits &= bits - 1;
  if (zps_rice_is_inside(block))
    for (uint32_t i = 0; i < block->n; i++) low_sum += zps_rice_low(block, i, true);
  else
    for (uint32_t i = 0; i < block->n; i++) low_sum += zps_rice_low(block, i, false);
  return zps_rice_end(block, base + (unsigned)__builtin_ctzll(bits), low_sum, bit_p, next_p);
}

#endif
