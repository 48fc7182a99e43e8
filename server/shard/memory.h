/* Registered buffers: who gets one when they are short. memory.c says in which order. */
#ifndef ZPS_SERVER_SHARD_MEMORY_H
#define ZPS_SERVER_SHARD_MEMORY_H

#include "common/net/slab.h"

struct zps_shard;
struct zps_shard_round;

/* A request for a registered buffer; embedded. */
struct zps_memory_wait {
  struct zps_memory_wait *prev, *next;
  struct zps_shard_round *round;
  uint32_t part;
  bool is_queued;
  uint64_t len_bytes;
  bool is_push; /* what a rank pushed: no more of that than the links need, unless it is of the oldest partition */
  struct zps_buf *buf_p; /* where the buffer goes */
  void (*granted)(struct zps_memory_wait *wait);
};

/* Calls granted() at once or from a later zps_memory_serve(); aborts the round when the limit is too small for it. */
void zps_memory_want(struct zps_shard *shard, struct zps_memory_wait *wait);
void zps_memory_cancel(struct zps_shard *shard, struct zps_memory_wait *wait);
void zps_memory_serve(struct zps_shard *shard);

#endif
