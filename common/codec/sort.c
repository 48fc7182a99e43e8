#include "common/codec/sort.h"

#include <stdbool.h>
#include <string.h>

enum { INSERTION_MAX = 32, WIDE_DIGIT_FROM = 8192, DIGITS_MAX = 2048 };

static void sort_by_insertion(struct zps_sort_pair *pairs, uint64_t n) {
  for (uint64_t i = 1; i < n; i++) {
    const struct zps_sort_pair pair = pairs[i];
    uint64_t j = i;
    for (; j > 0 && pairs[j - 1].key > pair.key; j--) pairs[j] = pairs[j - 1];
    pairs[j] = pair;
  }
}

/* One pass of a least significant digit radix sort. */
static void sort_by_digit(const struct zps_sort_pair *from, struct zps_sort_pair *to, uint64_t n, unsigned shift,
                          unsigned digit_bits) {
  uint64_t places[DIGITS_MAX] = {0};
  const uint64_t mask = (1u << digit_bits) - 1;
  for (uint64_t i = 0; i < n; i++) places[(from[i].key >> shift) & mask]++;
  uint64_t place = 0;
  for (uint64_t digit = 0; digit <= mask; digit++) {
    const uint64_t count = places[digit];
    places[digit] = place;
    place += count;
  }
  for (uint64_t i = 0; i < n; i++) to[places[(from[i].key >> shift) & mask]++] = from[i];
}

void zps_sort_pairs(struct zps_sort_pair *pairs, struct zps_sort_pair *scratch, uint64_t n) {
  if (n <= INSERTION_MAX) {
    sort_by_insertion(pairs, n);
    return;
  }
  bool sorted = true;
  uint64_t differing = 0; /* bits in which any two keys differ */
  for (uint64_t i = 1; i < n; i++) {
    sorted &= pairs[i - 1].key <= pairs[i].key;
    differing |= pairs[i - 1].key ^ pairs[i].key;
  }
  if (sorted) return;
  const unsigned digit_bits = n < WIDE_DIGIT_FROM ? 8 : 11;
  struct zps_sort_pair *from = pairs, *to = scratch;
  for (unsigned shift = 0; shift < 64 && differing >> shift; shift += digit_bits) {
    if (((differing >> shift) & ((1u << digit_bits) - 1)) == 0) continue;
    sort_by_digit(from, to, n, shift, digit_bits);
    struct zps_sort_pair *const swap = from;
    from = to;
    to = swap;
  }
  if (from != pairs) memcpy(pairs, from, n * sizeof *pairs);
}

/* ------------------------------------------------------------ floats */

enum { FLOAT_PASSES_MAX = 4, FEW_FLOATS = 1024, FEW_DIGIT_BITS = 8, FLOAT_DIGIT_BITS = 12 };

static void counts_to_places(uint32_t *counts, unsigned digit_bits) {
  uint32_t place = 0;
  for (unsigned digit = 0; digit < 1u << digit_bits; digit++) {
    const uint32_t count = counts[digit];
    counts[digit] = place;
    place += count;
  }
}

const struct zps_sort_entry *zps_sort_floats(const int64_t *keys, const float *values, uint64_t n, uint64_t key_max,
                                             struct zps_sort_entry *a, struct zps_sort_entry *b) {
  const unsigned digit_bits = n < FEW_FLOATS ? FEW_DIGIT_BITS : FLOAT_DIGIT_BITS;
  const uint32_t n_digits = 1u << digit_bits, mask = n_digits - 1;
  uint32_t places[(FLOAT_PASSES_MAX - 1) << FLOAT_DIGIT_BITS];
  unsigned n_passes = 1;
  while (n_passes < FLOAT_PASSES_MAX && key_max >> digit_bits * n_passes) n_passes++;
  memset(places, 0, n_passes * n_digits * sizeof *places);
  for (uint64_t i = 0; i < n; i++)
    for (unsigned pass = 0; pass < n_passes; pass++)
      places[pass * n_digits + ((uint64_t)keys[i] >> digit_bits * pass & mask)]++;
  counts_to_places(places, digit_bits);
  for (uint64_t i = 0; i < n; i++)
    a[places[keys[i] & mask]++] = (struct zps_sort_entry){.key = (uint32_t)keys[i], .value = values[i]};
  for (unsigned pass = 1; pass < n_passes; pass++) {
    uint32_t *const to = places + pass * n_digits;
    counts_to_places(to, digit_bits);
    for (uint64_t i = 0; i < n; i++) b[to[a[i].key >> digit_bits * pass & mask]++] = a[i];
    struct zps_sort_entry *const swap = a;
    a = b;
    b = swap;
  }
  return a;
}
