/* Stable sorts: of 64-bit keys that carry a 64-bit value each, and of floats by their row numbers. */
#ifndef ZPS_CODEC_SORT_H
#define ZPS_CODEC_SORT_H

#include <stdint.h>

struct zps_sort_pair {
  uint64_t key, value;
};

/* Sorts `pairs` ascending by key; equal keys keep their order. `scratch` has room for as many. */
void zps_sort_pairs(struct zps_sort_pair *pairs, struct zps_sort_pair *scratch, uint64_t n);

/* A float and its row number. */
struct zps_sort_entry {
  uint32_t key;
  float value;
};

/* Sorts `n` floats, fewer than 2^32, by their keys, all of which are at most `key_max`, stably. `a` and `b` hold `n`
 * each; one of them is returned. */
const struct zps_sort_entry *zps_sort_floats(const int64_t *keys, const float *values, uint64_t n, uint64_t key_max,
                                             struct zps_sort_entry *a, struct zps_sort_entry *b);

#endif
