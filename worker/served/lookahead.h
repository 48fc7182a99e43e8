/*
 * How far ahead of the sums a rank looks for rows in a gradient that it scans in several steps.
 *
 * Looking farther than links can carry makes no sum come sooner: it only takes the cores, and registered memory, from
 * earlier steps. Ranks that share cores would go through all their stripes one rank after the other, while all of them
 * wait for the first stripe of the last rank. So a step begins when the rows that earlier steps found, and that are in
 * no sum yet, are fewer bytes than the link carries in ZPS_LOOKAHEAD_NS. The tensor's last round tells how many bytes a
 * step will find. Pure.
 */
#ifndef ZPS_WORKER_SERVED_LOOKAHEAD_H
#define ZPS_WORKER_SERVED_LOOKAHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

#define ZPS_LOOKAHEAD_NS (20 * ZPS_NS_PER_MS)
#define ZPS_LOOKAHEAD_STEPS 2u /* at least */

struct zps_lookahead {
  uint32_t n_steps, n_begun;
  uint64_t step_bytes;   /* expected for each step */
  uint64_t summed_bytes; /* of what was found */
  uint64_t most_bytes;
};

/* `all_bytes`: what all steps together will find; `bytes_per_s`: what links carry. 0: not known, and nothing is held
 * back. */
static inline void zps_lookahead_init(struct zps_lookahead *lookahead, uint32_t n_steps, uint64_t all_bytes,
                                      double bytes_per_s) {
  const double most = bytes_per_s * ZPS_LOOKAHEAD_NS / ZPS_NS_PER_S;
  *lookahead = (struct zps_lookahead){.n_steps = n_steps, .most_bytes = UINT64_MAX};
  if (n_steps > 0) lookahead->step_bytes = all_bytes / n_steps;
  if (most > 0 && most < (double)all_bytes) lookahead->most_bytes = (uint64_t)most;
}

static inline bool zps_lookahead_is_left(const struct zps_lookahead *lookahead) {
  return lookahead->n_begun < lookahead->n_steps;
}

/* Whether the next step may begin, which it then has. */
static inline bool zps_lookahead_next(struct zps_lookahead *lookahead) {
  const bool is_free = lookahead->n_begun < ZPS_LOOKAHEAD_STEPS || lookahead->most_bytes == UINT64_MAX;
  if (!zps_lookahead_is_left(lookahead)) return false;
  if (!is_free && lookahead->step_bytes * lookahead->n_begun > lookahead->summed_bytes + lookahead->most_bytes)
    return false;
  lookahead->n_begun++;
  return true;
}

/* Nothing is held back any more. */
static inline void zps_lookahead_flush(struct zps_lookahead *lookahead) {
  lookahead->most_bytes = UINT64_MAX;
}

#endif
