/* Late ranks of a round with a quorum, and the answers that they get. machine.h has the rule. */
#ifndef ZPS_SERVER_SHARD_QUORUM_H
#define ZPS_SERVER_SHARD_QUORUM_H

#include <stdbool.h>
#include <stdint.h>

struct zps_contribution;
struct zps_frame_closed;
struct zps_job;
struct zps_member;
struct zps_shard_machine_event;
struct zps_shard_round;
struct zps_tensor;

/* Newest sums of a tensor with a quorum that are kept for late ranks. */
#define ZPS_SHARD_KEPT_LATE 16u

/* Actions of the machine: frees a rank's contribution; closes the round. */
void zps_quorum_drop(struct zps_shard_round *round, uint32_t rank);
void zps_quorum_close(struct zps_shard_round *round);
/* A read of a late rank's contribution has ended. It is freed, unless the fabric still holds it. */
void zps_quorum_landed(struct zps_contribution *contribution, bool is_held);
/* Tells late ranks all sums, if they are due. Call it before sums are released. */
void zps_quorum_tell(struct zps_shard_round *round);
/* No more is reported of earlier epochs: the grace counts from now on. */
void zps_quorum_be_sure(struct zps_job *job);
/* The rank has given the round up: it hears that no read from it is under way, now or when the last one has ended. */
void zps_quorum_gave_up(struct zps_shard_round *round, uint32_t rank);
/* The round of the step, which no push has begun: it ends some time by itself. A new one takes `first` ahead of the
 * ranks that are gone; NULL: nothing. Returns NULL where it can begin no more, or is over. */
struct zps_shard_round *zps_quorum_begin(struct zps_tensor *tensor, uint64_t step,
                                         const struct zps_shard_machine_event *first);
/* CLOSED of a rank: an earlier epoch has decided who is late. */
void zps_quorum_decided(struct zps_member *member, const struct zps_frame_closed *closed);
/* The round of the step is over, or forgotten for this rank. */
void zps_quorum_refuse(struct zps_member *member, const struct zps_tensor *tensor, uint64_t step);

#endif
