/* How far from k the count of a threshold may come out, as multiples of it, before the k greatest are taken instead:
 * the same for gradients in host and in device memory. */
#ifndef ZPS_WORKER_SPARSIFY_BOUNDS_H
#define ZPS_WORKER_SPARSIFY_BOUNDS_H

#include <stdbool.h>
#include <stdint.h>

#include "zenps/sparsify.h"

#define ZPS_SAMPLED_LEAST 0.8
#define ZPS_SAMPLED_MOST 1.3
#define ZPS_REUSED_LEAST 0.5
#define ZPS_GAUSSIAN_LEAST 0.75
#define ZPS_MOST 2.0

/* Whether `n` entries from `magnitude` on are taken as they are; `fits`: there was room for them. Of a magnitude of 1
 * nothing is left out but zeros, however few there are. */
static inline bool zps_bounds_hold(const zenps_sparsifier_options_t *options, uint64_t n, bool fits, uint64_t magnitude,
                                   double least, double most) {
  const double k = (double)options->k;
  if (options->unrefined) {
    least = 0;
    most = ZPS_MOST;
  }
  return fits && (double)n <= most * k && ((double)n >= least * k || magnitude == 1);
}

#endif
