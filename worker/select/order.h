/* Order statistics of magnitudes. */
#ifndef ZPS_WORKER_SELECT_ORDER_H
#define ZPS_WORKER_SELECT_ORDER_H

#include "common/codec/codec.h"

struct zps_order {
  uint64_t magnitude; /* the k-th greatest */
  uint64_t n_above;   /* how many are strictly greater: fewer than k */
};

/* Of n values, 1 <= k <= n. Radix select from the top digit down: reads them three times (f64: six times), needs no
 * memory and leaves them as they are, whatever they look like. */
struct zps_order zps_order_select(enum zps_dtype dtype, const void *values, uint64_t n, uint64_t k);

#endif
