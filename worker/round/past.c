#include "worker/round/past.h"

#include "worker/plane/plane.h"
#include "worker/round/round.h"

static uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

void zps_past_note_well(struct zps_round_tensor *tensor, uint64_t step) {
  tensor->past.steps[tensor->past.n++ % ZPS_STEPS_PAST] = step;
}

bool zps_past_went_well(const struct zps_round_tensor *tensor, uint64_t step) {
  const uint32_t n = least(tensor->past.n, ZPS_STEPS_PAST);
  for (uint32_t i = 0; i < n; i++)
    if (tensor->past.steps[i] == step) return true;
  return false;
}

void zps_past_note_failed(const struct zps_round *round) {
  struct zps_steps_failed *const failed = &round->tensor->failed;
  if (round->only_takes || round->machine->code == ZPS_ERR_SERVER_LOST) return;
  failed->steps[failed->n++ % ZPS_STEPS_FAILED] = (struct zps_step_failed){
      .step = round->step,
      .code = round->machine->code,
      .rank = round->reason.n_ranks > 0 ? round->reason.ranks[0] : round->plane->rank,
  };
}

const struct zps_step_failed *zps_past_failure(const struct zps_round_tensor *tensor, uint64_t step) {
  const struct zps_steps_failed *const failed = &tensor->failed;
  const uint32_t n = least(failed->n, ZPS_STEPS_FAILED);
  for (uint32_t i = 1; i <= n; i++) {
    const struct zps_step_failed *const at = &failed->steps[(failed->n - i) % ZPS_STEPS_FAILED];
    if (at->step == step) return at;
  }
  return NULL;
}
