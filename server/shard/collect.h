/* Frames from ranks, on their way into rounds. */
#ifndef ZPS_SERVER_SHARD_COLLECT_H
#define ZPS_SERVER_SHARD_COLLECT_H

#include "proto/wire.h"

struct zps_shard;

void zps_collect_frame(struct zps_shard *shard, const struct zps_frame *frame);

#endif
