/* The rows of sums that ranks ask for: picked by the pool where there are many, by the engine thread where few. */
#ifndef ZPS_SERVER_SHARD_PICK_H
#define ZPS_SERVER_SHARD_PICK_H

#include <stdint.h>

#include "common/net/slab.h"
#include "server/shard/memory.h"

struct zps_pick_task;
struct zps_index_run;
struct zps_shard;
struct zps_shard_pull;
struct zps_shard_sum;

/* What a pull wants of a part, and gets. */
struct zps_pick {
  struct zps_shard_pull *pull;
  uint32_t part;
  struct zps_index_run *runs; /* ascending */
  uint32_t n_runs, cap_runs;
  uint32_t n_rows, end;       /* in the runs; behind the last of them */
  struct zps_shard_wait wait; /* for `buf` */
  struct zps_buf buf;
  struct zps_pick_task *task; /* while the pool picks */
};

/* The part's sum is there: calls zps_pull_picked() from here or later, unless the pick is forgotten. The whole round
 * may fail meanwhile, for want of memory. */
void zps_pick_start(struct zps_pick *pick);
/* Frees what it holds; nothing follows. */
void zps_pick_forget(struct zps_pick *pick);
void zps_picks_free(struct zps_shard *shard);

#endif
