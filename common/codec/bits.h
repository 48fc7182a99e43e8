/* From bits to the list of their positions. Written for bits that fall at random: the number of bits in a word decides
 * no branch until there are more than four, because branches that cannot be predicted cost more than the work they
 * save. */
#ifndef ZPS_CODEC_BITS_H
#define ZPS_CODEC_BITS_H

#include <stdint.h>

/* In parallel fields where the machine's own instruction is not in the baseline. */
static inline uint32_t zps_bits_count(uint64_t x) {
#ifdef __aarch64__
  return (uint32_t)__builtin_popcountll(x);
#else
  x -= (x >> 1) & 0x5555555555555555ull;
  x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
  return (uint32_t)((x * 0x0101010101010101ull) >> 56);
#endif
}

/* Writes base + position of each bit of `bits`, ascending, and returns how many there are. `out` must have room for
 * four, and for the next multiple of four. */
static inline uint32_t zps_bits_list(uint64_t bits, uint32_t base, uint32_t *out) {
  const uint32_t n = zps_bits_count(bits);
  uint32_t i = 0;
  do {
    for (unsigned j = 0; j < 4; j++) {
      out[i + j] = base + (uint32_t)__builtin_ctzll(bits | 1ull << 63); /* defined when no bit is left */
      bits &= bits - 1;
    }
    i += 4;
  } while (i < n);
  return n;
}

#endif
