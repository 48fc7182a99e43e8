/* Sums on their way to the ranks. */
#ifndef ZPS_SERVER_SHARD_PUBLISH_H
#define ZPS_SERVER_SHARD_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

struct zps_shard;
struct zps_shard_round;
struct zps_shard_sum;

/* Sums to be sent in RESULT or FOUND frames. */
struct zps_outgoing {
  struct zps_shard_round *round;
  uint64_t step;               /* the frames' step */
  bool is_found;               /* the sums are the round's that a SEEK of `step` has found */
  uint32_t seek;               /* is_found: the number of that SEEK */
  uint32_t age;                /* is_found: the round's step is so many before `step` */
  uint32_t rank;               /* ZPS_SHARD_NO_RANK: all ranks that get all sums */
  struct zps_shard_sum **sums; /* by part */
  uint32_t *parts, n_parts;    /* those to be sent; sorted here */
};

/* The sum travels inside a frame. */
bool zps_publish_is_small(const struct zps_shard_sum *sum);
void zps_publish_send(const struct zps_outgoing *out);

/* The sum of a part is there. */
void zps_publish_part(struct zps_shard_round *round, uint32_t part);
/* Sends what is ready, but keeps small sums for a moment while more of them are being made: together they cost less. */
void zps_publish_flush(struct zps_shard *shard);
/* Sends it without waiting for others, and forgets that there was something. */
void zps_publish_all(struct zps_shard_round *round);
void zps_publish_forget(struct zps_shard_round *round);

#endif
