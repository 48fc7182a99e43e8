#include "worker/round/decided.h"

#include <stdlib.h>
#include <string.h>

#include "proto/control_change.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

static struct zps_decided_past *past_of(const struct zps_rounds *rounds, const struct zps_round_tensor *tensor) {
  struct zps_decided_past *past = rounds->decided_past;
  while (past && past->tensor != tensor) past = past->next;
  return past;
}

/* Made with the first decision, so that none is lost later for want of memory. */
static bool make_past(struct zps_rounds *rounds, const struct zps_round_tensor *tensor) {
  if (past_of(rounds, tensor)) return true;
  struct zps_decided_past *const past = calloc(1, sizeof *past);
  if (!past) return false;
  past->tensor = tensor;
  past->next = rounds->decided_past;
  rounds->decided_past = past;
  return true;
}

zps_err_t zps_decided_note(struct zps_round *round, const uint8_t *late, uint32_t n_bytes) {
  for (uint32_t rank = round->plane->world; rank < 8 * n_bytes; rank++)
    if (late[rank / 8] >> rank % 8 & 1) return ZPS_ERR_PROTOCOL;
  if (round->is_decided) {
    const bool is_same = round->n_late_bytes == n_bytes && (n_bytes == 0 || memcmp(round->late, late, n_bytes) == 0);
    return is_same ? ZPS_OK : ZPS_ERR_PROTOCOL;
  }
  if (round->rounds && !make_past(round->rounds, round->tensor)) return ZPS_ERR_NOMEM;
  uint8_t *const copy = n_bytes > 0 ? zps_arena_get(&round->arena, n_bytes) : NULL;
  if (n_bytes > 0 && !copy) return ZPS_ERR_NOMEM;
  if (n_bytes > 0) memcpy(copy, late, n_bytes);
  round->late = copy;
  round->n_late_bytes = n_bytes;
  round->is_decided = true;
  const uint32_t me = round->plane->rank;
  round->stats.late = me / 8 < n_bytes && copy[me / 8] >> me % 8 & 1;
  return ZPS_OK;
}

void zps_decided_remember(struct zps_round *round) {
  struct zps_decided_past *const past = round->is_decided ? past_of(round->rounds, round->tensor) : NULL;
  if (!past) return;
  struct zps_decided_step *const step = &past->steps[past->n++ % ZPS_DECIDED_KEPT];
  step->step = round->step;
  step->n_late_bytes = round->n_late_bytes;
  if (round->n_late_bytes > 0) memcpy(step->late, round->late, round->n_late_bytes);
}

void zps_decided_forget(struct zps_rounds *rounds, const struct zps_round_tensor *tensor) {
  for (struct zps_decided_past **at = &rounds->decided_past, *past; (past = *at) != NULL;) {
    if (tensor && past->tensor != tensor) {
      at = &past->next;
      continue;
    }
    *at = past->next;
    free(past);
  }
}

static zps_err_t report(struct zps_job_steps *steps, uint32_t tensor, uint64_t step, const uint8_t *late,
                        uint32_t n_bytes) {
  if (zps_job_steps_decided(steps, tensor, step)) return ZPS_OK;
  zps_err_t err = zps_job_steps_decide(steps, tensor, step);
  for (uint32_t rank = 0; rank < 8 * n_bytes && err == ZPS_OK; rank++)
    if (late[rank / 8] >> rank % 8 & 1) err = zps_job_steps_decide_late(steps, tensor, step, rank);
  return err;
}

static zps_err_t report_round(const struct zps_round *round, struct zps_job_steps *steps) {
  const bool is_known = round->tensor->quorum > 0 && round->is_decided && round->machine->state != ZPS_MACHINE_FAILED;
  return is_known ? report(steps, round->tensor->id, round->step, round->late, round->n_late_bytes) : ZPS_OK;
}

zps_err_t zps_decided_report(const struct zps_rounds *rounds, struct zps_job_steps *steps) {
  zps_err_t err = ZPS_OK;
  for (const struct zps_round *round = rounds->all; round && err == ZPS_OK; round = round->all_next)
    err = report_round(round, steps);
  for (const struct zps_round *round = rounds->replay.kept; round && err == ZPS_OK; round = round->kept_next)
    err = report_round(round, steps);
  for (const struct zps_decided_past *past = rounds->decided_past; past && err == ZPS_OK; past = past->next)
    for (uint32_t i = 0; i < past->n && i < ZPS_DECIDED_KEPT && err == ZPS_OK; i++)
      err = report(steps, past->tensor->id, past->steps[i].step, past->steps[i].late, past->steps[i].n_late_bytes);
  return err;
}

const struct zps_job_steps *zps_decided_take(struct zps_rounds *rounds, struct zps_job_steps *answer) {
  zps_job_steps_fini(&rounds->decided);
  rounds->decided = *answer;
  *answer = (struct zps_job_steps){0};
  return &rounds->decided;
}

bool zps_decided_closed(const struct zps_rounds *rounds, uint32_t tensor, uint64_t step,
                        struct zps_frame_closed *closed) {
  const struct zps_step_late *const decided = zps_job_steps_decided(&rounds->decided, tensor, step);
  *closed = (struct zps_frame_closed){.tensor = tensor, .step = step};
  for (uint32_t i = 0; decided && i < decided->n_late; i++) zps_frame_closed_add(closed, decided->late[i]);
  return decided;
}

zps_err_t zps_decided_find(struct zps_round *round) {
  struct zps_frame_closed closed;
  if (round->tensor->quorum == 0 || round->is_decided ||
      !zps_decided_closed(round->rounds, round->tensor->id, round->step, &closed))
    return ZPS_OK;
  return zps_decided_note(round, closed.late, closed.n_bytes);
}

void zps_decided_check_past(struct zps_round *round) {
  uint64_t oldest;
  if (round->tensor->quorum == 0 || round->is_decided || zps_round_machine_over(round->machine)) return;
  if (zps_job_steps_oldest_decided(&round->rounds->decided, round->tensor->id, &oldest) && round->step < oldest)
    zps_round_fail(round, ZPS_ERR_STALE,
                   "too late: the step was closed without this rank, and its sum is lost with a server");
}
