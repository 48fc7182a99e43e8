#include "server/shard/step_replies.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "server/shard/job.h"
#include "server/shard/quorum.h"
#include "server/shard/round.h"
#include "server/shard/tensor.h"

void zps_reply(struct zps_member *member, const struct zps_question *question, const struct zps_frame_abort *abort) {
  struct zps_frame frame = {.header.type = question->is_seek ? ZPS_FRAME_MISSED : ZPS_FRAME_ABORT};
  frame.u.abort = *abort;
  frame.u.abort.step = question->step;
  frame.u.abort.seek = question->seek;
  zps_member_send(member, &frame);
}

struct zps_frame_abort zps_refusal(uint32_t tensor, uint64_t step, zps_err_t code) {
  return (struct zps_frame_abort){.tensor = tensor, .step = step, .code = code};
}

void zps_reply_text(struct zps_member *member, const struct zps_question *question, const struct zps_tensor *tensor,
                    zps_err_t code, const char *fmt, ...) {
  struct zps_frame_abort abort = zps_refusal(tensor->id, question->step, code);
  zps_text_add(abort.text, sizeof abort.text, "job %s, tensor %s, step %" PRIu64 ": ", tensor->job->name, tensor->name,
               question->step);
  const size_t len = strlen(abort.text);
  va_list args;
  va_start(args, fmt);
  vsnprintf(abort.text + len, sizeof abort.text - len, fmt, args);
  va_end(args);
  zps_reply(member, question, &abort);
}

void zps_reply_unknown(struct zps_member *member, const struct zps_question *question, uint32_t tensor) {
  struct zps_frame_abort abort = zps_refusal(tensor, question->step, ZPS_ERR_UNKNOWN);
  snprintf(abort.text, sizeof abort.text, "job %s, step %" PRIu64 ": tensor %u is not registered on this server",
           member->job->name, question->step, tensor);
  zps_reply(member, question, &abort);
}

void zps_reply_completed(struct zps_member *member, const struct zps_tensor *tensor, uint64_t step) {
  zps_reply_text(member, &(struct zps_question){.step = step}, tensor, ZPS_ERR_INVALID,
                 "it was already completed; every round of a tensor needs a new step");
}

/* With a quorum, ranks come to steps that the others have left behind. Steps ascend, so older ones are past, too. */
static bool is_past(const struct zps_tensor *tensor, uint64_t step) {
  if (tensor->quorum == 0) return false;
  const struct zps_tombstone *const tombstone = zps_tensor_tombstone(tensor, step);
  return tombstone ? tombstone->is_completed : tensor->has_past && step <= tensor->past_step;
}

void zps_reply_tombstone(struct zps_member *member, const struct zps_tensor *tensor, uint64_t step) {
  const struct zps_tombstone *tombstone = zps_tensor_tombstone(tensor, step);
  const struct zps_question question = {.step = step};
  if (is_past(tensor, step))
    zps_quorum_refuse(member, tensor, step);
  else if (tombstone && tombstone->is_completed)
    zps_reply_completed(member, tensor, step);
  else if (tombstone && tombstone->abort)
    zps_reply(member, &question, tombstone->abort);
  else
    zps_reply_text(member, &question, tensor, ZPS_ERR_NOMEM, "the server is out of memory");
}

void zps_refuse_step(struct zps_tensor *tensor, struct zps_frame_abort refused, const char *fmt, ...) {
  const int len = snprintf(refused.text, sizeof refused.text, "job %s, tensor %s, step %" PRIu64 ": ",
                           tensor->job->name, tensor->name, refused.step);
  va_list args;
  va_start(args, fmt);
  vsnprintf(refused.text + len, sizeof refused.text - (size_t)len, fmt,
            args); /* names are short enough to leave room */
  va_end(args);
  zps_tensor_bury(tensor, refused.step, &refused);
}

/* A server without a step of it so far knows only that no rank is further ahead of another. */
static void note_begun(struct zps_tensor *tensor, uint64_t step) {
  if (!tensor->has_newest) tensor->unsure_step = step + ZPS_SHARD_ROUNDS_MAX;
  if (!tensor->has_newest || step > tensor->newest_step) tensor->newest_step = step;
  tensor->has_newest = true;
}

struct zps_shard_round *zps_step_round(struct zps_tensor *tensor, uint64_t step, uint64_t now_ns,
                                       const struct zps_shard_machine_event *first) {
  struct zps_shard_round *round = zps_shard_round_find(tensor, step);
  if (round || zps_tensor_tombstone(tensor, step) || is_past(tensor, step)) return round;
  if (tensor->n_rounds >= ZPS_SHARD_ROUNDS_MAX) {
    zps_refuse_step(tensor, zps_refusal(tensor->id, step, ZPS_ERR_BUSY),
                    "%u rounds of it are in flight already, which is the most", ZPS_SHARD_ROUNDS_MAX);
    return NULL;
  }
  struct zps_error error;
  if (zps_shard_round_open(tensor, step, now_ns, &round, &error) != ZPS_OK) {
    zps_refuse_step(tensor, zps_refusal(tensor->id, step, error.code), "%s", error.text);
    return NULL;
  }
  struct zps_job *job = tensor->job;
  note_begun(tensor, step);
  if (first && !zps_shard_round_step(round, first)) return NULL;
  for (uint32_t rank = 0; job->n_gone > 0 && rank < job->world; rank++) {
    const struct zps_member *member = &job->members[rank];
    if (member->link) continue;
    const struct zps_shard_machine_event gone = zps_member_gone_event(member, tensor, step);
    if (!zps_shard_round_step(round, &gone)) return NULL;
  }
  return round;
}
