/* Shared by the readers of index sets. */
#ifndef ZPS_CODEC_IMPL_H
#define ZPS_CODEC_IMPL_H

#include <stdint.h>
#include <string.h>

/* Words of a bitmap over m indices; m may be close to 2^32. */
static inline uint32_t zps_bitmap_words(uint32_t m) {
  return m / 32 + (m % 32 != 0);
}

/* The coded set follows the values and need not be aligned when these are bytes. */
static inline uint32_t zps_load_u32(const void *base, uint64_t i) {
  uint32_t word;
  memcpy(&word, (const char *)base + 4 * i, sizeof word);
  return word;
}

#endif
