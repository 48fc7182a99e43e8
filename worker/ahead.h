/*
 * How far ahead of the sums a rank looks for rows in a gradient that it scans in several steps.
 *
 * To look farther than links can carry makes nothing come sooner: it only takes the cores, and registered memory, from
 * what is before. Ranks that share cores would get as far as stripes go one after the other, while all of them wait for
 * the first stripe of the last one. So a step begins when what earlier ones found, and is not in any sum yet, is less
 * than what the link carries in ZPS_AHEAD_NS. What a step will find is told by the tensor's last round. Pure.
 */
#ifndef ZPS_WORKER_AHEAD_H
#define ZPS_WORKER_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

#define ZPS_AHEAD_NS (20 * ZPS_NS_PER_MS)
#define ZPS_AHEAD_STEPS 2u /* at least */

struct zps_ahead {
  uint32_t n_steps, n_begun;
  uint64_t step_bytes;   /* that each will find */
  uint64_t summed_bytes; /* of what was found */
  uint64_t most_bytes;
};

/* What `all_bytes` says will be found, over links of `bytes_per_s`; 0: nobody knows, and nothing is held back. */
static inline void zps_ahead_init(struct zps_ahead *ahead, uint32_t n_steps, uint64_t all_bytes, double bytes_per_s) {
  const double most = bytes_per_s * ZPS_AHEAD_NS / ZPS_NS_PER_S;
  *ahead = (struct zps_ahead){.n_steps = n_steps, .most_bytes = UINT64_MAX};
  if (n_steps > 0) ahead->step_bytes = all_bytes / n_steps;
  if (most > 0 && most < (double)all_bytes) ahead->most_bytes = (uint64_t)most;
}

static inline bool zps_ahead_is_left(const struct zps_ahead *ahead) {
  return ahead->n_begun < ahead->n_steps;
}

/* Whether the next step may begin, which it then has. */
static inline bool zps_ahead_next(struct zps_ahead *ahead) {
  const bool is_free = ahead->n_begun < ZPS_AHEAD_STEPS || ahead->most_bytes == UINT64_MAX;
  if (!zps_ahead_is_left(ahead)) return false;
  if (!is_free && ahead->step_bytes * ahead->n_begun > ahead->summed_bytes + ahead->most_bytes) return false;
  ahead->n_begun++;
  return true;
}

/* Nothing is held back any more. */
static inline void zps_ahead_hurry(struct zps_ahead *ahead) {
  ahead->most_bytes = UINT64_MAX;
}

#endif
