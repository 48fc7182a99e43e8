/* What the two files of Ok-Topk share: oktopk.c has algorithm 1, oktopk_gather.c its "balance and allgatherv". */
#ifndef ZPS_WORKER_SCHEMES_OKTOPK_H
#define ZPS_WORKER_SCHEMES_OKTOPK_H

#include "worker/schemes/common.h"
#include "worker/select/steer.h"

/* Of messages; SPLIT and AHEAD and the bucket, GATHER and the stage. */
enum zps_oktopk_tag {
  ZPS_OKTOPK_TAG_AGREE,
  ZPS_OKTOPK_TAG_BOUNDS,
  ZPS_OKTOPK_TAG_GREATEST,
  ZPS_OKTOPK_TAG_COUNTS,
  ZPS_OKTOPK_TAG_BALANCE,
  ZPS_OKTOPK_TAG_GATHER = 32,
  ZPS_OKTOPK_TAG_SPLIT = 64,
  ZPS_OKTOPK_TAG_AHEAD = 128,
};

enum { ZPS_OKTOPK_BUCKETS_MAX = 64 }; /* tags are enough for as many; a plan has no more chunks */

struct zps_oktopk {
  double generation;    /* agreed, but for failures since; */
  bool restarts;        /* there was one */
  uint64_t first;       /* number of the generation's first round */
  double local, global; /* thresholds */
  struct zps_steer steer_local, steer_global;
  bool useless;                 /* the global one was 0, and selected more than k */
  bool renews;                  /* this round finds exact ones */
  bool ahead;                   /* regions follow at once: this round renews nothing */
  uint32_t n_buckets;           /* of a region */
  uint64_t *bounds;             /* n * n_buckets + 1 rows: bucket b is bounds[b] .. bounds[b + 1] - 1 */
  uint32_t own, selected, mine; /* streams of the round */
  uint32_t *streams;            /* scratch, n + 1 */
  uint32_t *pieces;             /* scratch, n_buckets */
};

/* Row where region `j` begins; j = n: the end. */
static inline uint64_t zps_oktopk_bound(const struct zps_oktopk *self, uint32_t j) {
  return self->bounds[(uint64_t)j * self->n_buckets];
}

/* The s-th position to send to and to read from, 0 < s < n: each begins with another neighbour, or all with the first
 * [Ok-Topk figure 2]. */
static inline uint32_t zps_oktopk_nth(const struct zps_peer_plan *plan, uint32_t s) {
  if (plan->without & ZPS_WITHOUT_ROTATION) return s - 1 + (s > plan->me);
  return zps_peer_after(plan, s);
}

/* Gathers every rank's share, self->mine, which together are the result: its stream. Share j is entries first[j] ..
 * first[j + 1] - 1 of all, and lies in region j. `first`: n + 1, changed. */
uint32_t zps_oktopk_gather(const struct zps_peer_plan *plan, struct zps_oktopk *self, uint64_t *first,
                           struct zps_program *program);

#endif
