/*
 * What became of the last steps of a tensor over servers, of which nothing else is left: when a server is lost, others
 * may lack their sums, or know nothing of their end. Of the engine thread.
 */
#ifndef ZPS_WORKER_ROUND_PAST_H
#define ZPS_WORKER_ROUND_PAST_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/round/tensor.h"

struct zps_round;

void zps_past_note_well(struct zps_round_tensor *tensor, uint64_t step);
bool zps_past_went_well(const struct zps_round_tensor *tensor, uint64_t step);
/* The round has failed; unless its step may be pushed anew, or is none that this rank pushes in it. */
void zps_past_note_failed(const struct zps_round *round);
/* Of the last time; NULL: it has not failed. */
const struct zps_step_failed *zps_past_failure(const struct zps_round_tensor *tensor, uint64_t step);

#endif
