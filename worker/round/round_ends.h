/*
 * The ends of the last rounds, after the rounds themselves are gone. When a server is lost, or comes, the servers
 * forget how rounds have ended, and other ranks may lack a sum, or still begin a step that has failed. When the job
 * fails, the last rounds are logged. Of the engine thread.
 */
#ifndef ZPS_WORKER_ROUND_ROUND_ENDS_H
#define ZPS_WORKER_ROUND_ROUND_ENDS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_round;
struct zps_rounds;
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

/* Of all tensors of a job, of either kind of rounds. */
#define ZPS_PAST_KEPT 64u
struct zps_past_rounds {
  struct zps_past_round {
    char tensor[48]; /* the beginning of its name */
    uint64_t step, end_ns, total_ns, part_ns;
    const char *part; /* what took longest: "wait" */
    zps_err_t code;
  } rounds[ZPS_PAST_KEPT];
  uint64_t n; /* ever */
};

/* The round is over, and its stats are filled in. */
void zps_past_note_end(struct zps_past_rounds *past, const struct zps_round *round, zps_err_t code, uint64_t now_ns);
/* Logs the rounds under way, and those that ended last, several in a line. Nothing when there are none. */
void zps_past_log(const struct zps_rounds *rounds, uint64_t now_ns);

/* The round went well: its step, and that no rank begins any more what had failed before this one was begun. */
void zps_past_note_well(struct zps_steps_failed *failed, const struct zps_round *round);
bool zps_past_went_well(const struct zps_round_tensor *tensor, uint64_t step);
/* The round has failed; unless its step may be pushed anew, or is none that this rank pushes in it. */
void zps_past_note_failed(struct zps_steps_failed *failed, const struct zps_round *round);

#endif
