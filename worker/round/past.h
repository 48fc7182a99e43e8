/*
 * The ends of the last rounds over servers, after the rounds themselves are gone. When a server is lost, or comes, the
 * servers forget how rounds have ended, and other ranks may lack a sum, or still begin a step that has failed. Of the
 * engine thread.
 */
#ifndef ZPS_WORKER_ROUND_PAST_H
#define ZPS_WORKER_ROUND_PAST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_round;
struct zps_round_tensor;

#define ZPS_STEP_FAILED_TEXT_MAX 300u /* what an ABORT has room for behind who says it */
struct zps_step_failed {
  uint32_t tensor;
  uint64_t step, number; /* number: the round's, in the order in which they are begun */
  zps_err_t code;        /* ZPS_OK: no rank begins it any more */
  uint32_t rank;         /* the first that is to blame */
  char text[ZPS_STEP_FAILED_TEXT_MAX + 1];
};

/* Of all tensors of a job. */
#define ZPS_STEPS_FAILED 64u
struct zps_steps_failed {
  struct zps_step_failed steps[ZPS_STEPS_FAILED];
  uint32_t n; /* ever */
};

/* The round went well: its step, and that no rank begins any more what had failed before this one was begun. */
void zps_past_note_well(struct zps_steps_failed *failed, const struct zps_round *round);
bool zps_past_went_well(const struct zps_round_tensor *tensor, uint64_t step);
/* The round has failed; unless its step may be pushed anew, or is none that this rank pushes in it. */
void zps_past_note_failed(struct zps_steps_failed *failed, const struct zps_round *round);

#endif
