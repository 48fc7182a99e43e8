/* What a round in flight waits for, for operators who ask. */
#ifndef ZPS_SERVER_SHARD_FLIGHT_H
#define ZPS_SERVER_SHARD_FLIGHT_H

#include "server/shard/shard.h"

struct zps_shard_round;

/* False: the round waits for nobody, since it only keeps sums for later pulls. */
bool zps_shard_round_flight(const struct zps_shard_round *round, uint64_t now_ns, struct zps_round_flight *flight_p);

#endif
