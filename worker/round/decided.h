/*
 * The late ranks of rounds with a quorum, as servers have decided (server/shard/machine.h).
 *
 * A rank that has a sum, or a CLOSED frame, knows the decision. When the servers change, it reports the decisions that
 * it knows (job.mapped). All ranks get all of them (job.replay), and tell the new owner ahead of their pushes. So a
 * step that is replayed has the same addends, and the same bits. Everything belongs to the engine thread.
 */
#ifndef ZPS_WORKER_ROUND_DECIDED_H
#define ZPS_WORKER_ROUND_DECIDED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "proto/wire.h"

struct zps_job_steps;
struct zps_round;
struct zps_rounds;
struct zps_round_tensor;

/* Rounds of a tensor with a quorum whose pushes are retained, for ranks that are so far behind: as many as servers keep
 * sums of. */
#define ZPS_DECIDED_KEPT 16u

/* The last decisions on a tensor's steps of which this rank has the sum. They stay when the push is retained no longer,
 * or never was: a rank that lacks the sum must not get another one. */
struct zps_decided_past {
  struct zps_decided_past *next;
  const struct zps_round_tensor *tensor;
  struct zps_decided_step {
    uint64_t step;
    uint32_t n_late_bytes;
    uint8_t late[ZPS_WIRE_LATE_BYTES];
  } steps[ZPS_DECIDED_KEPT];
  uint32_t n; /* ever */
};

/* Notes the late ranks, a bit each. ZPS_ERR_PROTOCOL: others are known, or some are no ranks. ZPS_ERR_NOMEM. */
zps_err_t zps_decided_note(struct zps_round *round, const uint8_t *late, uint32_t n_bytes) ZPS_MUSTCHECK;
/* The round went well: its decision outlives it. */
void zps_decided_remember(struct zps_round *round);
/* Forgets those of the tensor; NULL: of all. */
void zps_decided_forget(struct zps_rounds *rounds, const struct zps_round_tensor *tensor);
/* Adds the decisions that this rank knows to `steps`, and the steps that late ranks may lack. */
zps_err_t zps_decided_report(const struct zps_rounds *rounds, struct zps_job_steps *steps) ZPS_MUSTCHECK;
/* Moves the steps of all ranks, with their decisions, out of `answer`. Returns them. Needs no memory, so a rank that is
 * short of it keeps its job. */
const struct zps_job_steps *zps_decided_take(struct zps_rounds *rounds, struct zps_job_steps *answer);
/* The decision on the step, as servers are told it. False: none is known. */
bool zps_decided_closed(const struct zps_rounds *rounds, uint32_t tensor, uint64_t step,
                        struct zps_frame_closed *closed) ZPS_MUSTCHECK;
/* The round learns the decision on its step, where there is one. */
zps_err_t zps_decided_find(struct zps_round *round) ZPS_MUSTCHECK;
/* Where the step is older than all that ranks could push again, its sum is lost with its server: the round fails with
 * ZPS_ERR_STALE. */
void zps_decided_check_past(struct zps_round *round);

#endif
