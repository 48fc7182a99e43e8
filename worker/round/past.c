#include "worker/round/past.h"

#include "common/base/text.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"

void zps_past_note_well(struct zps_steps_failed *failed, const struct zps_round *round) {
  struct zps_steps_past *const past = &round->tensor->past;
  past->steps[past->n++ % ZPS_STEPS_PAST] = round->step;
  for (uint32_t i = 0; i < ZPS_STEPS_FAILED; i++)
    if (failed->steps[i].tensor == round->tensor->id && failed->steps[i].number < round->seen_to)
      failed->steps[i].code = ZPS_OK;
}

bool zps_past_went_well(const struct zps_round_tensor *tensor, uint64_t step) {
  const uint32_t n = tensor->past.n < ZPS_STEPS_PAST ? tensor->past.n : ZPS_STEPS_PAST;
  for (uint32_t i = 0; i < n; i++)
    if (tensor->past.steps[i] == step) return true;
  return false;
}

void zps_past_note_failed(struct zps_steps_failed *failed, const struct zps_round *round) {
  if (round->only_takes || round->machine->code == ZPS_ERR_SERVER_LOST) return;
  struct zps_step_failed *const step = &failed->steps[failed->n++ % ZPS_STEPS_FAILED];
  *step = (struct zps_step_failed){
      .tensor = round->tensor->id,
      .step = round->step,
      .number = round->number,
      .code = round->machine->code,
      .rank = round->reason.n_ranks > 0 ? round->reason.ranks[0] : round->plane->rank,
  };
  const char *const text = round->reason.text[0] ? round->reason.text : zps_err_str(step->code);
  zps_text_add(step->text, sizeof step->text, "%s", text);
}
