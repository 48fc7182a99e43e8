/*
 * Parts of several schemes. Positions are those of a plan, 0..n-1; each rank begins with another neighbour, so
 * that no rank is sent to by all at once.
 */
#ifndef ZPS_WORKER_SCHEMES_COMMON_H
#define ZPS_WORKER_SCHEMES_COMMON_H

#include "worker/schemes/peer_scheme.h"

/* The s-th position after ours, 0 < s < n. */
static inline uint32_t zps_peer_after(const struct zps_peer_plan *plan, uint32_t s) {
  return (uint32_t)(((uint64_t)plan->me + s) % plan->n);
}

/* The greatest power of two that is at most n > 0. */
static inline uint32_t zps_peer_floor2(uint32_t n) {
  return 1u << (31 - __builtin_clz(n));
}

/* Pieces that a dense tensor is cut into: as the plan says, but none with fewer rows than ranks, which has nothing to
 * overlap. */
static inline uint32_t zps_peer_lanes(const struct zps_peer_plan *plan) {
  const uint64_t most = plan->rows / plan->n, lanes = plan->chunks < most ? plan->chunks : most;
  return lanes ? (uint32_t)lanes : 1;
}

/* The stream as this rank's values travel: rounded once, here, so that all ranks add the same bits. */
uint32_t zps_peer_contribute(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t stream);

struct zps_range {
  uint64_t lo, hi;
};

static inline struct zps_range zps_range_part(struct zps_range range, uint32_t n, uint32_t i) {
  const uint64_t rows = range.hi - range.lo;
  return (struct zps_range){range.lo + zps_peer_bound(rows, n, i), range.lo + zps_peer_bound(rows, n, i + 1)};
}

/* `in` to every other position, under one tag. */
void zps_peer_send_all(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t in, uint32_t tag);

/* One-shot allgather: every rank sends `own`, rows of the whole tensor, to all others; the result is their sum in order
 * of positions. */
void zps_peer_allgather_sum(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own);

/* Even range j of `own` (ZPS_STREAM_NONE: of this rank's gradient) goes to position j. Returns the sum of ours, in
 * order of positions. */
uint32_t zps_peer_split(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own,
                        enum zps_form sum_form);
/* Both, of this rank's gradient in `form`, lane by lane: what has come is added and written while it is in a cache, and
 * memory that one lane is through with serves the next. */
void zps_peer_split_lanes(const struct zps_peer_plan *plan, struct zps_program *program, enum zps_form form);
/* Both, the second half dense, and as QSGD levels where plan->bits is not 0. [SparCML DSAR_Split_allgather] */
void zps_peer_split_dense(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t own);

/* The position that speaks for the host of `position`: the lowest there. `hosts` says which positions share a host.
 * Without it, levels[0] consecutive positions do, or each is alone. */
uint32_t zps_peer_master(const struct zps_peer_plan *plan, uint32_t position);
/* All of them, ascending: how many. Room for n. */
uint32_t zps_peer_masters(const struct zps_peer_plan *plan, uint32_t *masters);

/*
 * Dense collectives among a group: places 0..n-1, each a position of the plan.
 *
 * `held`: rows [lo, hi), all of them; ZPS_STREAM_NONE: this rank's own gradient. They are cut into n even blocks, of
 * which reduce_scatter() returns the sum of block `me` over the group. all_gather() hands the blocks around: from
 * pieces of ours to pieces of all rows. Each takes n - 1 messages in a ring, log2 n recursively, and the tags [tag, tag
 * + n): the caller passes disjoint ranges for messages that may meet.
 */
struct zps_group {
  const uint32_t *places; /* position of each */
  uint32_t n, me;
  uint32_t stride;  /* 1, or more for the strided groups of a grid */
  uint32_t n_pairs; /* all_gather(), RECURSIVE: so many places, the first ones, have two even blocks each */
};
/* The row of `range` where the block of a place begins; of place n: where the last one ends. */
uint64_t zps_group_begin(const struct zps_group *group, struct zps_range range, uint32_t place);
enum zps_group_algorithm { ZPS_GROUP_RING, ZPS_GROUP_RECURSIVE }; /* RECURSIVE: n is a power of two */

/* Ring: block b is summed beginning after place b, going round: (b+1) + (b+2) + ... + b. Recursive halving: the lower
 * place's half + the upper's at each step. */
uint32_t zps_group_reduce_scatter(const struct zps_peer_plan *plan, const struct zps_group *group,
                                  enum zps_group_algorithm algorithm, uint32_t held, struct zps_range range,
                                  uint32_t tag, struct zps_program *program);
/* Streams of the parts of a range, each from where the one before ends. Room for as many as the group has places, and
 * for two. */
struct zps_pieces {
  uint32_t *streams, n;
  enum zps_form form; /* ZPS_FORM_ALL: they have all their rows */
};
/* `pieces`: block `me` of `range`, which leaves as one message; on return, all of `range`. */
void zps_group_all_gather(const struct zps_peer_plan *plan, const struct zps_group *group,
                          enum zps_group_algorithm algorithm, struct zps_range range, struct zps_pieces *pieces,
                          uint32_t tag, struct zps_program *program);

#endif
