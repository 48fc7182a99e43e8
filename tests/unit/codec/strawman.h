/* Algorithm 3 of the Zen paper (appendix A), which the paper drops for what it loses: the oracle beside Algorithm 1. */
#ifndef ZPS_TESTS_CODEC_STRAWMAN_H
#define ZPS_TESTS_CODEC_STRAWMAN_H

#include <stdint.h>
#include <stdlib.h>

#include "common/base/hash.h"

/* Writes every index to the one slot, of n_parts * r, that h gives it, over what is there; returns how many of the
 * `n` distinct indices are found afterwards, UINT64_MAX without memory. */
static inline uint64_t strawman_kept(const uint64_t *indices, uint64_t n, uint32_t n_parts, uint64_t r, uint64_t seed) {
  const uint64_t n_slots = n_parts * r, empty = UINT64_MAX;
  uint64_t *const slots = malloc(n_slots * sizeof *slots), kept = 0;
  if (!slots) return UINT64_MAX;
  for (uint64_t slot = 0; slot < n_slots; slot++) slots[slot] = empty;
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t hash = zps_hash_mix64(indices[i] ^ seed);
    slots[(uint64_t)(((unsigned __int128)hash * n_slots) >> 64)] = indices[i];
  }
  for (uint64_t slot = 0; slot < n_slots; slot++) kept += slots[slot] != empty;
  free(slots);
  return kept;
}

#endif
