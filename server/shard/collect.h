/* Frames from ranks, on their way into rounds. */
#ifndef ZPS_SERVER_SHARD_COLLECT_H
#define ZPS_SERVER_SHARD_COLLECT_H

#include "proto/wire.h"

struct zps_link;
struct zps_shard;

/* The link of the sender that the header names; NULL: none of ours. */
struct zps_link *zps_collect_link(struct zps_shard *shard, const struct zps_frame_header *header);
/* A frame of that link, in its turn. */
void zps_collect_frame(struct zps_shard *shard, const struct zps_frame *frame);

#endif
