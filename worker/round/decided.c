#include "worker/round/decided.h"

#include <string.h>

#include "proto/control_change.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

zps_err_t zps_decided_note(struct zps_round *round, const uint8_t *late, uint32_t n_bytes) {
  if (round->is_decided) {
    const bool is_same = round->n_late_bytes == n_bytes && (n_bytes == 0 || memcmp(round->late, late, n_bytes) == 0);
    return is_same ? ZPS_OK : ZPS_ERR_PROTOCOL;
  }
  uint8_t *const copy = n_bytes > 0 ? zps_arena_get(&round->arena, n_bytes) : NULL;
  if (n_bytes > 0 && !copy) return ZPS_ERR_NOMEM;
  if (n_bytes > 0) memcpy(copy, late, n_bytes);
  round->late = copy;
  round->n_late_bytes = n_bytes;
  round->is_decided = true;
  round->stats.late = zps_decided_is_late(round, round->plane->rank);
  return ZPS_OK;
}

bool zps_decided_is_late(const struct zps_round *round, uint32_t rank) {
  return rank / 8 < round->n_late_bytes && round->late[rank / 8] >> rank % 8 & 1;
}

static zps_err_t report(const struct zps_round *round, struct zps_job_steps *steps) {
  const bool is_known = round->tensor->quorum > 0 && round->is_decided && round->machine->state != ZPS_MACHINE_FAILED;
  if (!is_known || zps_job_steps_decided(steps, round->tensor->id, round->step)) return ZPS_OK;
  zps_err_t err = zps_job_steps_decide(steps, round->tensor->id, round->step);
  for (uint32_t rank = 0; rank < 8 * round->n_late_bytes && err == ZPS_OK; rank++)
    if (zps_decided_is_late(round, rank)) err = zps_job_steps_decide_late(steps, round->tensor->id, round->step, rank);
  return err;
}

zps_err_t zps_decided_report(const struct zps_rounds *rounds, struct zps_job_steps *steps) {
  zps_err_t err = ZPS_OK;
  for (const struct zps_round *round = rounds->all; round && err == ZPS_OK; round = round->all_next)
    err = report(round, steps);
  for (const struct zps_round *round = rounds->replay.kept; round && err == ZPS_OK; round = round->kept_next)
    err = report(round, steps);
  return err;
}

zps_err_t zps_decided_take(struct zps_rounds *rounds, const struct zps_job_steps *steps) {
  struct zps_job_steps decided = {.job_id = steps->job_id, .epoch = steps->epoch};
  const zps_err_t err = zps_job_steps_merge(&decided, steps);
  if (err != ZPS_OK) {
    zps_job_steps_fini(&decided);
    return err;
  }
  zps_job_steps_fini(&rounds->decided);
  rounds->decided = decided;
  return ZPS_OK;
}

zps_err_t zps_decided_find(struct zps_round *round) {
  if (round->tensor->quorum == 0 || round->is_decided) return ZPS_OK;
  const struct zps_step_late *const decided =
      zps_job_steps_decided(&round->rounds->decided, round->tensor->id, round->step);
  if (!decided) return ZPS_OK;
  uint8_t late[ZPS_WIRE_LATE_BYTES] = {0};
  uint32_t n_bytes = 0;
  for (uint32_t i = 0; i < decided->n_late; i++) {
    const uint32_t rank = decided->late[i];
    if (rank / 8 >= sizeof late) return ZPS_ERR_PROTOCOL;
    late[rank / 8] |= (uint8_t)(1u << rank % 8);
    if (rank / 8 >= n_bytes) n_bytes = rank / 8 + 1;
  }
  return zps_decided_note(round, late, n_bytes);
}

bool zps_decided_is_past(const struct zps_round *round) {
  uint64_t oldest;
  return round->tensor->quorum > 0 && !round->is_decided &&
         zps_job_steps_oldest_decided(&round->rounds->decided, round->tensor->id, &oldest) && round->step < oldest;
}
