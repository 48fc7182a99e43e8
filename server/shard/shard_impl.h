/* The state of the shard, which its files have in common. All of it belongs to the engine thread, except where it says
 * so. */
#ifndef ZPS_SERVER_SHARD_SHARD_IMPL_H
#define ZPS_SERVER_SHARD_SHARD_IMPL_H

#include "common/base/workpool.h"
#include "common/session/engine.h"
#include "common/session/memory.h"
#include "common/session/tags.h"
#include "server/shard/shard.h"

struct zps_contribution;
struct zps_job;
struct zps_reduce_task;
struct zps_shard_pull;
struct zps_shard_round;
struct zps_shard_sum;
struct zps_pick_task;

#define ZPS_STORE_SIZES 4u /* of contributions: round.c has them */

struct zps_shard {
  struct zps_engine *engine;
  struct zps_net *net;
  struct zps_slab *slab;
  struct zps_bulk *bulk;
  struct zps_workpool *pool;
  uint64_t memory_limit_bytes;
  struct zps_quota quota;
  struct zps_job *jobs, *lingering;
  struct zps_tags tags;                      /* of members, also of lingering jobs */
  struct zps_shard_round *oldest, *youngest; /* rounds in flight by age */
  uint64_t next_age;
  unsigned rounds_in_flight;
  struct zps_shard_round *buried, *ready;
  struct zps_memory_line memory;
  struct zps_contribution *free_contributions[ZPS_STORE_SIZES];
  uint64_t free_bytes; /* of their stores */
  struct zps_shard_sum *free_sums;
  struct zps_shard_pull *buried_pulls; /* ended, but perhaps still looked at */
  struct zps_pick_task *free_picks;
  uint64_t wants_bytes;                        /* of the rows that all jobs' pulls name */
  unsigned n_orphans;                          /* contributions that no round wants and that are being read */
  struct zps_shard_sum *aborted[2];            /* of aborted rounds: those since the last turn, those before it */
  uint64_t aborted_ns;                         /* of the next turn; 0: there are none */
  unsigned n_held;                             /* sums of no round any more that ranks may be reading */
  unsigned n_reducing;                         /* sums under way */
  unsigned n_picking;                          /* rows being picked out of sums */
  struct zps_reduce_task *small, **small_tail; /* sums that are left to this thread */
  bool any_failing;
  _Atomic uint64_t
      stuck_turn;            /* any thread's: the engine's turn, plus 1, in which a call found it stuck; 0: none has */
  uint64_t patience_ns;      /* set by zps_shard_set_patience() */
  uint64_t keep_ns;          /* sums of aborted rounds, in each of two turns */
  uint64_t next_deadline_ns; /* not later than the earliest deadline of a round */
  struct zps_scratch_pool *orders;    /* memory to put slices in order */
  struct zps_scratch_pool *scratches; /* any thread's: one for each thread of the pool, and one for the engine's */
};

/* Publishes what is ready, hands out memory: after anything that may have changed either. */
void zps_shard_settle(struct zps_shard *shard);

#endif
