/* A small reproducible generator (splitmix64, Vigna, public domain) for tests, benchmarks and examples. Not for
 * secrets. */
#ifndef ZPS_BASE_RNG_H
#define ZPS_BASE_RNG_H

#include <stdint.h>

struct zps_rng {
  uint64_t state;
};

static inline uint64_t zps_rng_u64(struct zps_rng *rng) {
  uint64_t z = (rng->state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

/* Uniform in [0, 1). */
static inline double zps_rng_unit(struct zps_rng *rng) {
  return (double)(zps_rng_u64(rng) >> 11) * 0x1.0p-53;
}

/* Uniform in [0, range), range >= 1. */
static inline uint64_t zps_rng_below(struct zps_rng *rng, uint64_t range) {
  return (uint64_t)(((unsigned __int128)zps_rng_u64(rng) * range) >> 64);
}

#endif
