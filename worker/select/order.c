#include "worker/select/order.h"

#include <string.h>

#include "worker/select/magnitude.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, FEW = 32 };

/* For a handful of values: sorting them costs less than clearing the counters. */
static struct zps_order select_of_few(enum zps_dtype dtype, const void *values, uint64_t n, uint64_t k) {
  uint64_t sorted[FEW];
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t magnitude = zps_magnitude_at(dtype, values, i);
    uint64_t at = i;
    for (; at > 0 && sorted[at - 1] < magnitude; at--) sorted[at] = sorted[at - 1];
    sorted[at] = magnitude;
  }
  struct zps_order order = {.magnitude = sorted[k - 1]};
  while (sorted[order.n_above] > order.magnitude) order.n_above++;
  return order;
}

/* Counts the digits below `top` of the values whose bits from `top` on are `prefix`. */
static inline __attribute__((always_inline)) void count(enum zps_dtype dtype, const void *values, uint64_t n,
                                                        unsigned top, unsigned shift, uint64_t prefix,
                                                        uint64_t *counts) {
  const uint64_t mask = (1ull << (top - shift)) - 1;
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t magnitude = zps_magnitude_at(dtype, values, i);
    if (magnitude >> top == prefix) counts[magnitude >> shift & mask]++;
  }
}

struct zps_order zps_order_select(enum zps_dtype dtype, const void *values, uint64_t n, uint64_t k) {
  if (n <= FEW) return select_of_few(dtype, values, n, k);
  uint64_t counts[DIGITS];
  struct zps_order order = {0};
  uint64_t left = k; /* of those with this prefix */
  unsigned top = dtype == ZPS_DTYPE_F32 ? ZPS_MAGNITUDE_BITS_F32 : ZPS_MAGNITUDE_BITS_F64;
  while (top > 0) {
    const unsigned shift = top > DIGIT_BITS ? top - DIGIT_BITS : 0;
    memset(counts, 0, sizeof counts);
    if (dtype == ZPS_DTYPE_F32)
      count(ZPS_DTYPE_F32, values, n, top, shift, order.magnitude, counts);
    else
      count(ZPS_DTYPE_F64, values, n, top, shift, order.magnitude, counts);
    uint64_t digit = (1ull << (top - shift)) - 1;
    while (digit > 0 && counts[digit] < left) left -= counts[digit--];
    order.magnitude = order.magnitude << (top - shift) | digit;
    top = shift;
  }
  order.n_above = k - left;
  return order;
}
