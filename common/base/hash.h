/* MurmurHash3's 64-bit finaliser (Appleby, public domain): a bijection on 64-bit words that mixes every bit into every
 * other. It is the hash of Zen's Algorithm 1, seeded by xor, and reduced to a range by multiply-shift. */
#ifndef ZPS_BASE_HASH_H
#define ZPS_BASE_HASH_H

#include <stdint.h>

#include "common/base/inline.h"

ZPS_INLINE uint64_t zps_hash_mix64(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return x;
}

/* `hash` spread evenly over [0, range): the high word of a 64 x 32 bit product. */
ZPS_INLINE uint32_t zps_hash_reduce(uint64_t hash, uint32_t range) {
  return (uint32_t)(((hash >> 32) * range) >> 32);
}

#endif
