#include "server/shard/quorum.h"

#include <inttypes.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "server/shard/job.h"
#include "server/shard/publish.h"
#include "server/shard/reduce.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/step_replies.h"
#include "server/shard/tensor.h"

/* ---- who is late ---- */

/* A read under way ends first: until then the rank must not use its memory for anything else. */
void zps_quorum_drop(struct zps_shard_round *round, uint32_t rank) {
  struct zps_shard *const shard = round->tensor->job->shard;
  for (uint32_t part = 0; part < round->machine->n_parts; part++) {
    struct zps_contribution **const slot = zps_shard_round_slot(round, part, rank);
    struct zps_contribution *const contribution = *slot;
    uint32_t *const nnz = &round->nnz[(size_t)part * round->machine->world + rank];
    if (contribution && *nnz > 0) zps_reduce_expect_no_more(round, contribution);
    *nnz = 0;
    if (!contribution) continue;
    zps_memory_cancel(&shard->memory, &contribution->wait.memory);
    if (!contribution->is_here && contribution->buf.data) {
      zps_contribution_orphan(contribution);
      zps_bulk_give_up(&contribution->read.bulk, ZPS_ERR_CANCELED);
      continue;
    }
    zps_contribution_put(contribution);
    *slot = NULL;
  }
}

static struct zps_frame closed_frame(const struct zps_shard_round *round) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_CLOSED};
  frame.u.closed.tensor = round->tensor->id;
  frame.u.closed.step = round->machine->config.step;
  for (uint32_t rank = 0; rank < round->machine->world; rank++)
    if (zps_shard_machine_is_late(round->machine, rank)) zps_frame_closed_add(&frame.u.closed, rank);
  return frame;
}

/* Of the ranks in the sum, those that have nothing in it count as absent, too. */
static void count_absent(struct zps_shard_round *round) {
  round->n_absent = 0;
  for (uint32_t rank = 0; rank < round->machine->world; rank++)
    round->n_absent += zps_shard_machine_is_late(round->machine, rank) || round->presence[rank] == ZPS_SHARD_ABSENT;
}

/* The round ends some time, whatever it still waits for: when no rank waits for it any more, and not at once. */
static void be_patient(struct zps_shard_round *round, uint64_t now_ns) {
  struct zps_shard *const shard = round->tensor->job->shard;
  round->machine->deadline_ns = now_ns + shard->patience_ns;
  for (uint32_t rank = 0; rank < round->machine->world; rank++)
    if (round->until_ns[rank] > round->machine->deadline_ns) round->machine->deadline_ns = round->until_ns[rank];
  if (round->machine->deadline_ns < shard->next_deadline_ns) shard->next_deadline_ns = round->machine->deadline_ns;
}

/* Frees the pushes of late ranks, but for those that are too late and have none any more. */
static void drop_late(struct zps_shard_round *round) {
  for (uint32_t rank = 0; rank < round->machine->world; rank++)
    if (zps_shard_machine_is_late(round->machine, rank) && !zps_shard_machine_is_too_late(round->machine, rank))
      zps_quorum_drop(round, rank);
}

void zps_quorum_close(struct zps_shard_round *round) {
  struct zps_tensor *const tensor = round->tensor;
  struct zps_job *const job = tensor->job;
  const uint32_t n_late = zps_shard_machine_count_late(round->machine);
  count_absent(round);
  be_patient(round, zps_clock_ns()); /* with the sums */
  for (uint32_t rank = 0; rank < tensor->job->world; rank++)
    tensor->sums.late[rank] += zps_shard_machine_is_late(round->machine, rank);
  drop_late(round);
  if (n_late > 0) {
    struct zps_frame frame = closed_frame(round);
    for (uint32_t rank = 0; rank < job->world; rank++)
      if (zps_shard_machine_gets_all(round->machine, rank)) zps_member_send(&job->members[rank], &frame);
    zps_log_about(.job = job->name, .tensor = tensor->name, ZPS_LOG_STEP(round->machine->config.step));
    zps_log_info("job %s, tensor %s, step %" PRIu64 ": closed without %u ranks", job->name, tensor->name,
                 round->machine->config.step, n_late);
  }
  for (uint32_t part = 0; part < round->machine->n_parts && !zps_shard_machine_over(round->machine); part++)
    zps_reduce_begin(round, part); /* without memory for a sum it is over */
}

void zps_quorum_be_sure(struct zps_job *job) {
  const struct zps_shard_machine_event look = {.type = ZPS_SHARD_TICK, .now_ns = zps_clock_ns()};
  for (struct zps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    for (struct zps_shard_round *round = tensor->rounds, *next; round; round = next) {
      next = round->next;
      if (!round->machine->is_unsure) continue;
      round->machine->is_unsure = false;
      zps_shard_round_step(round, &look);
    }
  }
}

/* ---- what late ranks are told ---- */

static bool is_being_read(const struct zps_shard_round *round, uint32_t rank) {
  for (uint32_t part = 0; part < round->machine->n_parts; part++)
    if (*zps_shard_round_slot(round, part, rank)) return true;
  return false;
}

static void tell(struct zps_shard_round *round, uint32_t rank) {
  struct zps_member *const member = &round->tensor->job->members[rank];
  struct zps_frame frame = closed_frame(round);
  zps_member_send(member, &frame);
  if (zps_shard_machine_only_gives(round->machine, rank)) {
    frame = (struct zps_frame){.header.type = ZPS_FRAME_TAKEN,
                               .u.done = {.tensor = round->tensor->id, .step = round->machine->config.step}};
    zps_member_send(member, &frame);
  } else {
    for (uint32_t part = 0; part < round->machine->n_parts; part++) round->late_parts[part] = part;
    zps_publish_send(&(struct zps_outgoing){.round = round,
                                            .step = round->machine->config.step,
                                            .rank = rank,
                                            .sums = round->sums,
                                            .parts = round->late_parts,
                                            .n_parts = round->machine->n_parts});
  }
  zps_shard_round_tell(round, .type = ZPS_SHARD_NOTIFIED, .rank = rank);
}

void zps_quorum_tell(struct zps_shard_round *round) {
  for (uint32_t rank = 0; round->tensor->quorum > 0 && rank < round->machine->world; rank++) {
    if (zps_shard_machine_over(round->machine)) return;
    if (!zps_shard_machine_awaits(round->machine, rank) || is_being_read(round, rank)) continue;
    if (round->machine->state == ZPS_SHARD_PUBLISHED || zps_shard_machine_only_gives(round->machine, rank))
      tell(round, rank);
  }
}

void zps_quorum_gave_up(struct zps_shard_round *round, uint32_t rank) {
  const struct zps_tensor *const tensor = round->tensor;
  if (tensor->quorum == 0 || !zps_shard_machine_is_too_late(round->machine, rank) || is_being_read(round, rank)) return;
  zps_reply_text(&tensor->job->members[rank], &(struct zps_question){.step = round->machine->config.step}, tensor,
                 ZPS_ERR_CANCELED, "rank %u gave it up, and the others go on", rank);
}

void zps_quorum_landed(struct zps_contribution *contribution, bool is_held) {
  struct zps_shard_round *const round = contribution->round;
  *zps_shard_round_slot(round, contribution->part, contribution->rank) = NULL;
  contribution->round = NULL;
  const uint32_t rank = contribution->rank;
  zps_contribution_read(contribution);
  if (!is_held) zps_contribution_put(contribution);
  zps_quorum_gave_up(round, rank);
  zps_quorum_tell(round);
}

/* ---- frames ---- */

void zps_quorum_refuse(struct zps_member *member, const struct zps_tensor *tensor, uint64_t step) {
  zps_reply_text(member, &(struct zps_question){.step = step}, tensor, ZPS_ERR_STALE,
                 "too late: the step has closed without rank %u (quorum %u), and servers keep no sum of it any more: "
                 "they keep the newest %u, or fewer where memory is short",
                 member->rank, tensor->quorum, ZPS_SHARD_KEPT_LATE);
}

struct zps_shard_round *zps_quorum_begin(struct zps_tensor *tensor, uint64_t step,
                                         const struct zps_shard_machine_event *first) {
  const uint64_t now_ns = zps_clock_ns();
  if (tensor->parts_here == 0) return NULL; /* nothing of it is here, so nothing would end the round */
  struct zps_shard_round *const round = zps_step_round(tensor, step, now_ns, first);
  if (!round || round->machine->deadline_ns != ZPS_NEVER || round->machine->state != ZPS_SHARD_COLLECTING) return round;
  be_patient(round, now_ns);
  return round;
}

void zps_quorum_decided(struct zps_member *member, const struct zps_frame_closed *closed) {
  struct zps_tensor *const tensor = zps_tensor_find(member->job, closed->tensor);
  uint8_t late[ZPS_WIRE_LATE_BYTES] = {0};
  if (!tensor || tensor->quorum == 0 || (tensor->idle && tensor->idle[member->rank])) return;
  for (uint32_t rank = member->job->world; rank < 8 * closed->n_bytes; rank++) {
    if (!(closed->late[rank / 8] >> rank % 8 & 1)) continue;
    zps_reply_text(member, &(struct zps_question){.step = closed->step}, tensor, ZPS_ERR_PROTOCOL,
                   "rank %u says that rank %u is late, but the job has %u ranks", member->rank, rank,
                   member->job->world);
    return;
  }
  memcpy(late, closed->late, closed->n_bytes);
  const struct zps_shard_machine_event decided = {.type = ZPS_SHARD_DECIDED, .rank = member->rank, .late = late};
  struct zps_shard_round *round = zps_shard_round_find(tensor, closed->step);
  if (round)
    zps_shard_round_step(round, &decided);
  else
    round = zps_quorum_begin(tensor, closed->step, &decided); /* NULL: its push is answered */
  if (round && !zps_shard_machine_over(round->machine)) drop_late(round);
}
