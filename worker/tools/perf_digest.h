/* A digest of results, which says whether all ranks have the same bits. */
#ifndef ZPS_TOOLS_PERF_DIGEST_H
#define ZPS_TOOLS_PERF_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/hash.h"

/* Takes `len` bytes into *sum; in lanes, so that one word does not wait for the other. */
static inline void perf_digest_add(uint64_t *sum, const void *bytes, size_t len) {
  enum { LANES = 4 };
  uint64_t lanes[LANES] = {*sum, len, 0, 0}, words[LANES];
  for (size_t i = 0; i < len; i += sizeof words) {
    const size_t left = len - i;
    if (left < sizeof words) memset(words, 0, sizeof words);
    memcpy(words, (const char *)bytes + i, left < sizeof words ? left : sizeof words);
    for (unsigned l = 0; l < LANES; l++) lanes[l] = zps_hash_mix64(lanes[l] ^ words[l]) + i;
  }
  for (unsigned l = 0; l < LANES; l++) *sum = zps_hash_mix64(*sum ^ lanes[l]);
}

#endif
