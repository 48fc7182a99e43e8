/* A stable sort of 64-bit keys that carry a 64-bit value each. */
#ifndef ZPS_CODEC_SORT_H
#define ZPS_CODEC_SORT_H

#include <stdint.h>

struct zps_sort_pair {
  uint64_t key, value;
};

/* Sorts `pairs` ascending by key; equal keys keep their order. `scratch` has room for as many. */
void zps_sort_pairs(struct zps_sort_pair *pairs, struct zps_sort_pair *scratch, uint64_t n);

#endif
