/* Requests of rounds for registered memory, served in order when it is short; memory.c has the rules. */
#ifndef ZPS_SERVER_SHARD_MEMORY_H
#define ZPS_SERVER_SHARD_MEMORY_H

#include "common/session/memory.h"

struct zps_shard;
struct zps_shard_round;

/* A round's request for a buffer; embedded. */
struct zps_shard_wait {
  struct zps_memory_wait memory; /* `age` is the round's, `part` the partition's place here */
  struct zps_shard_round *round;
  bool is_answer; /* for rows that a rank pulls: it holds nothing up */
  bool is_push;   /* for a rank's push: no more of these than the links need, unless it is of the oldest partition */
};

void zps_shard_memory_init(struct zps_shard *shard);
/* Calls granted() at once or from a later zps_memory_serve(); aborts the round when the limit is too small for it. */
void zps_shard_memory_want(struct zps_shard *shard, struct zps_shard_wait *wait);

#endif
