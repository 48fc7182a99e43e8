/* Sums on their way to the ranks. */
#ifndef ZPS_SERVER_SHARD_PUBLISH_H
#define ZPS_SERVER_SHARD_PUBLISH_H

#include <stdint.h>

struct zps_shard;
struct zps_shard_round;

/* The sum of a part is there. */
void zps_publish_part(struct zps_shard_round *round, uint32_t part);
/* Sends what is ready, but keeps small sums for a moment while more of them are being made: together they cost less. */
void zps_publish_flush(struct zps_shard *shard);
/* Sends it without waiting for others, and forgets that there was something. */
void zps_publish_all(struct zps_shard_round *round);
void zps_publish_forget(struct zps_shard_round *round);

#endif
