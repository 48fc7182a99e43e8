#define ZPS_LOG_COMPONENT "round"
#include "worker/round/round_ends.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

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

/* ------------------------------------------------------------ for the log of a job that fails */

void zps_past_note_end(struct zps_past_rounds *past, const struct zps_round *round, zps_err_t code, uint64_t now_ns) {
  const zenps_request_stats_t *const stats = &round->stats;
  const struct {
    const char *name;
    uint64_t ns;
  } parts[] = {{"encode", stats->encode_ns},
               {"push", stats->push_ns},
               {"wait", stats->wait_ns},
               {"pull", stats->pull_ns},
               {"decode", stats->decode_ns}};
  struct zps_past_round *const end = &past->rounds[past->n++ % ZPS_PAST_KEPT];
  *end = (struct zps_past_round){.step = round->step, .end_ns = now_ns, .total_ns = stats->total_ns, .code = code};
  snprintf(end->tensor, sizeof end->tensor, "%.*s", (int)sizeof end->tensor - 1, round->tensor->name);
  for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (parts[i].ns <= end->part_ns) continue;
    end->part = parts[i].name;
    end->part_ns = parts[i].ns;
  }
}

/* A line of the log takes some 400 bytes of them. */
struct listing {
  const char *title;
  char text[512];
};

static void list_flush(struct listing *list) {
  if (list->text[0]) zps_log_warn("%s: %s", list->title, list->text);
  list->text[0] = '\0';
}

static void list_add(struct listing *list, const char *one) {
  if (strlen(list->text) + strlen(one) > 400) list_flush(list);
  zps_text_add(list->text, sizeof list->text, "%s%s", list->text[0] ? "; " : "", one);
}

static void log_under_way(const struct zps_rounds *rounds, uint64_t now_ns) {
  struct listing list = {.title = "rounds under way"};
  char one[160];
  unsigned n = 0;
  for (const struct zps_round *round = rounds->all; round && n < ZPS_PAST_KEPT; round = round->all_next) {
    if (round->finished) continue;
    n++;
    snprintf(one, sizeof one, "%.47s step %" PRIu64 " %s for %.1f ms", round->tensor->name, round->step,
             zps_round_machine_state_name(round->machine->state), (double)(now_ns - round->start_ns) / ZPS_NS_PER_MS);
    list_add(&list, one);
  }
  list_flush(&list);
}

void zps_past_log(const struct zps_rounds *rounds, uint64_t now_ns) {
  const struct zps_past_rounds *const past = &rounds->past;
  struct listing list = {.title = "last rounds, the newest first"};
  char one[160];
  log_under_way(rounds, now_ns);
  for (uint64_t i = 0; i < past->n && i < ZPS_PAST_KEPT; i++) {
    const struct zps_past_round *const end = &past->rounds[(past->n - 1 - i) % ZPS_PAST_KEPT];
    int n = snprintf(one, sizeof one, "%s step %" PRIu64 " %.1f ms", end->tensor, end->step,
                     (double)end->total_ns / ZPS_NS_PER_MS);
    if (end->code)
      snprintf(one + n, sizeof one - (size_t)n, " (%s)", zps_err_name(end->code));
    else if (end->part)
      snprintf(one + n, sizeof one - (size_t)n, " (%s %.1f)", end->part, (double)end->part_ns / ZPS_NS_PER_MS);
    list_add(&list, one);
  }
  list_flush(&list);
}
