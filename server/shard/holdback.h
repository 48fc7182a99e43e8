/*
 * What ranks are not told yet. A rank that the fabric has lost may be dead, or the network between it and this server
 * may be: then the job goes on without this server, and rounds that failed here are played again. So the ABORTs that
 * name such a rank wait for the coordinator's word: they leave when it says that a rank is lost, or when it says
 * nothing for a while, and are dropped by a map.
 */
#ifndef ZPS_SERVER_SHARD_HOLDBACK_H
#define ZPS_SERVER_SHARD_HOLDBACK_H

#include "proto/wire.h"

struct zps_job;
struct zps_held_abort;

/* Zeroed: nothing is held back. */
struct zps_holdback {
  uint64_t until_ns; /* 0: nothing is to be */
  struct zps_held_abort *first, **last_p;
  uint32_t n;
};

/* The fabric has lost a rank of the job just now. */
void zps_holdback_begin(struct zps_job *job, uint64_t now_ns);
/* Whether the frame, to this rank, is kept here; else it may leave. */
bool zps_holdback_takes(struct zps_job *job, uint32_t rank, const struct zps_frame *frame);
/* Sends what was held back, and holds nothing any more. */
void zps_holdback_end(struct zps_job *job);
/* Forgets what was held back. */
void zps_holdback_drop(struct zps_job *job);

#endif
