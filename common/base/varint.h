/* Unsigned numbers of 7 bits a byte, the least significant first, with the top bit set in every byte but the last.
 * There is one way to write a number: the shortest. */
#ifndef ZPS_BASE_VARINT_H
#define ZPS_BASE_VARINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ZPS_VARINT_BYTES_MAX = 10 };

static inline size_t zps_varint_bytes(uint64_t value) {
  size_t n = 1;
  for (; value >= 128; value >>= 7) n++;
  return n;
}

static inline uint8_t *zps_varint_put(uint8_t *at, uint64_t value) {
  for (; value >= 128; value >>= 7) *at++ = (uint8_t)(value | 128);
  *at++ = (uint8_t)value;
  return at;
}

/* Reads a number of a peer's from *at_p on, which is moved behind what was read. False: there is none before `end`, or
 * it is not written as it must be. */
static inline bool zps_varint_get(const uint8_t **at_p, const uint8_t *end, uint64_t *value_p) {
  const uint8_t *const first = *at_p;
  uint64_t value = 0;
  for (unsigned shift = 0; *at_p < end && *at_p - first < ZPS_VARINT_BYTES_MAX; shift += 7) {
    const uint8_t byte = *(*at_p)++;
    const uint64_t bits = byte & 127;
    if (bits << shift >> shift != bits) return false;
    value |= bits << shift;
    if (byte & 128) continue;
    *value_p = value;
    return byte != 0 || shift == 0;
  }
  return false;
}

#endif
