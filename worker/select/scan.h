/* The entries that stand out of an array: those from a magnitude on, in order, with their values. */
#ifndef ZPS_WORKER_SELECT_SCAN_H
#define ZPS_WORKER_SELECT_SCAN_H

#include "common/codec/codec.h"

enum { ZPS_SCAN_BLOCK = 4096 }; /* values: stays in the first-level cache with what goes with it */

struct zps_picks {
  int64_t *ids; /* ascending */
  void *values;
  uint64_t n, capacity;
};

/* Appends the entries begin..end-1 of `values` whose magnitude is at least `magnitude` (over 0); of those that equal it
 * only the first `*ties`, which are counted down. False when they do not fit; the picks are then good for nothing. */
bool zps_scan_pick(enum zps_dtype dtype, const void *values, uint64_t begin, uint64_t end, uint64_t magnitude,
                   uint64_t *ties, struct zps_picks *picks) ZPS_MUSTCHECK;

/* Keeps the k greatest of the picks (of equal ones the first), which are more than k > 0; returns the smallest kept
 * magnitude. */
uint64_t zps_picks_keep(enum zps_dtype dtype, struct zps_picks *picks, uint64_t k);

/* Sum and sum of squares of n values, as doubles. */
struct zps_moments {
  double sum, squares;
};
void zps_scan_moments(enum zps_dtype dtype, const void *values, uint64_t n, struct zps_moments *moments);

#endif
