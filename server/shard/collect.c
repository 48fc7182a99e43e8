/* Frames from ranks: every number in them is checked here before it becomes an event of a round. */
#include "server/shard/collect.h"

#include <inttypes.h>
#include <string.h>

#include "common/codec/join.h"
#define ZPS_LOG_COMPONENT "shard"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "server/shard/job.h"
#include "server/shard/pull.h"
#include "server/shard/quorum.h"
#include "server/shard/quota.h"
#include "server/shard/reduce.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/step_replies.h"
#include "server/shard/tensor.h"

/* What the slices of a frame have in common. */
struct push {
  uint64_t deadline_ns, now_ns;
  bool is_apart;
};

static enum zps_value_codec value_codec_of(const struct zps_tensor *tensor, const struct zps_slice *slice) {
  return slice->is_wide ? ZPS_VALUES_RAW : tensor->value_codec;
}

/* A round whose sums alone are more than the job may have ends before anything that the frame announces is read. */
static bool is_admitted(struct zps_shard_round *round, uint32_t rank, const struct zps_frame_round *push) {
  const struct zps_tensor *const tensor = round->tensor;
  const struct zps_job *const job = tensor->job;
  const uint64_t most_bytes = job->shard->quota.memory_bytes;
  uint64_t bytes = round->sums_bytes;
  for (uint32_t i = 0; most_bytes > 0 && i < push->n_slices; i++) {
    const struct zps_slice *const slice = &push->slices[i];
    const uint32_t part =
        slice->partition < tensor->partition.n_parts ? tensor->positions[slice->partition] : UINT32_MAX;
    if (part == UINT32_MAX || zps_shard_machine_has(round->machine, rank, part)) continue; /* refused below */
    const uint64_t more_bytes = zps_reduce_more_bytes(round, part, slice->nnz, slice->len_bytes);
    bytes += more_bytes;
    if (bytes > most_bytes)
      return zps_shard_round_fail(round, ZPS_SHARD_NO_RANK, ZPS_ERR_QUOTA,
                                  "no room for %" PRIu64 " bytes of partition %u: the round takes %" PRIu64
                                  " bytes or more, and the job has %" PRIu64 " of the %" PRIu64
                                  " bytes of this server's memory that it may have (%s)",
                                  more_bytes, slice->partition, bytes, job->account->bytes, most_bytes,
                                  zps_config_label("job.max_memory"));
  }
  return true;
}

/* One partition's slice, of which the sizes are checked. */
static bool take_part(struct zps_shard_round *round, uint32_t rank, uint32_t part, const struct zps_slice *slice,
                      const struct push *push) {
  struct zps_job *job = round->tensor->job;
  const struct zps_shard_machine_event event = {.type = ZPS_SHARD_ANNOUNCED,
                                                .rank = rank,
                                                .part = part,
                                                .is_here = slice->is_inline,
                                                .is_apart = push->is_apart,
                                                .deadline_ns = push->deadline_ns,
                                                .now_ns = push->now_ns};
  if (zps_shard_machine_has(round->machine, rank, part) || zps_shard_machine_is_late(round->machine, rank))
    return zps_shard_round_step(round, &event); /* the machine refuses it, or passes it over */

  const uint64_t stored_bytes = slice->is_inline ? slice->len_bytes : 0;
  if (stored_bytes > 0 && !zps_quota_fits(job, zps_contribution_bytes(stored_bytes), false))
    return zps_shard_round_fail(round, ZPS_SHARD_NO_RANK, ZPS_ERR_QUOTA,
                                "no room for what rank %u pushed: the job has %" PRIu64 " of the %" PRIu64
                                " bytes of this server's memory that it may have (%s)",
                                rank, job->account->bytes, job->shard->quota.memory_bytes,
                                zps_config_label("job.max_memory"));
  struct zps_contribution *contribution = zps_contribution_get(job, stored_bytes);
  if (!contribution)
    return zps_shard_round_fail(round, ZPS_SHARD_NO_RANK, ZPS_ERR_NOMEM, "the server is out of memory");
  contribution->round = round;
  contribution->part = part;
  contribution->rank = rank;
  contribution->codec = slice->codec;
  contribution->is_wide = slice->is_wide;
  contribution->nnz = slice->nnz;
  contribution->len_bytes = slice->len_bytes;
  contribution->is_here = slice->is_inline;
  contribution->data = contribution->store;
  contribution->read.bulk.addr = slice->addr;
  contribution->read.bulk.key = slice->key;
  contribution->read.bulk.more = slice->more;
  contribution->sum = slice->sum;
  zps_reduce_expect(round, contribution);
  if (stored_bytes > 0) memcpy(contribution->store, slice->data, stored_bytes);
  *zps_shard_round_slot(round, part, rank) = contribution;
  round->nnz[(size_t)part * round->machine->world + rank] = slice->nnz;
  return zps_shard_round_step(round, &event);
}

/* Several partitions' slices joined: checked as a whole, then taken one by one. */
static bool take_joined(struct zps_shard_round *round, uint32_t rank, uint32_t first, const struct zps_slice *slice,
                        const struct push *push) {
  _Static_assert(ZPS_JOIN_BYTES_MAX <= ZPS_WIRE_INLINE_MAX, "a contribution has room for what was joined");
  const struct zps_tensor *tensor = round->tensor;
  unsigned char coo[ZPS_JOIN_BYTES_MAX];
  struct zps_split split;
  struct zps_error error;
  uint64_t m = 0;
  if (slice->n_more >= tensor->parts_here - first)
    return zps_shard_round_fail(round, rank, ZPS_ERR_PROTOCOL,
                                "it pushed partition %u and the next %u here, but there are %u of them",
                                slice->partition, slice->n_more, tensor->parts_here - first - 1);
  for (uint32_t i = 0; i <= slice->n_more; i++) m += tensor->sizes[first + i];
  const zps_err_t code = zps_split_init(&split, slice->codec, m, slice->nnz, tensor->width, tensor->dtype,
                                        value_codec_of(tensor, slice), slice->data, slice->len_bytes, &error);
  if (code != ZPS_OK) return zps_shard_round_fail(round, rank, code, "partition %u: %s", slice->partition, error.text);
  for (uint32_t i = 0; i <= slice->n_more; i++) {
    struct zps_slice one = {
        .partition = tensor->partitions[first + i], .is_inline = true, .is_wide = slice->is_wide, .data = coo};
    one.nnz = zps_split_next(&split, tensor->sizes[first + i]);
    one.len_bytes = zps_split_write(&split, coo);
    if (!take_part(round, rank, first + i, &one, push)) return false;
  }
  return true;
}

static bool take_slice(struct zps_shard_round *round, uint32_t rank, const struct zps_slice *slice,
                       const struct push *push) {
  struct zps_tensor *tensor = round->tensor;
  struct zps_error error;
  if (slice->partition >= tensor->partition.n_parts)
    return zps_shard_round_fail(round, rank, ZPS_ERR_PROTOCOL, "it pushed partition %u, but there are %u",
                                slice->partition, tensor->partition.n_parts);
  const uint32_t part = tensor->positions[slice->partition];
  if (part == UINT32_MAX)
    return zps_shard_round_fail(round, rank, ZPS_ERR_PROTOCOL, "it pushed partition %u, which is not this server's",
                                slice->partition);
  if (slice->is_wide && !zps_tensor_may_be_wide(tensor))
    return zps_shard_round_fail(
        round, rank, ZPS_ERR_PROTOCOL, "it pushed partition %u wide, as only halves may be; the tensor's are %s as %s",
        slice->partition, zps_dtype_name(tensor->array_dtype), zps_values_name(tensor->value_codec));
  if (slice->is_inline) tensor->sums.bytes_in += slice->len_bytes;
  if (slice->n_more > 0) return take_joined(round, rank, part, slice, push);
  const bool any_order = tensor->any_order && slice->codec == ZPS_CODEC_COO_ANY;
  const zps_err_t code =
      zps_slice_check_sizes(any_order ? ZPS_CODEC_COO : slice->codec, tensor->sizes[part], slice->nnz, tensor->width,
                            tensor->dtype, value_codec_of(tensor, slice), slice->len_bytes, &error);
  if (code != ZPS_OK) return zps_shard_round_fail(round, rank, code, "partition %u: %s", slice->partition, error.text);
  return take_part(round, rank, part, slice, push);
}

/* False: the rank contradicts itself, and the round is over. */
static bool note_presence(struct zps_shard_round *round, uint32_t rank, bool is_absent) {
  uint8_t *const presence = &round->presence[rank], said = is_absent ? ZPS_SHARD_ABSENT : ZPS_SHARD_PRESENT;
  if (*presence == ZPS_SHARD_UNHEARD) {
    *presence = said;
    round->n_absent += is_absent;
  }
  return *presence == said ||
         zps_shard_round_fail(round, rank, ZPS_ERR_PROTOCOL, "it said that it is %s, and then that it is not",
                              is_absent ? "present" : "absent");
}

static void on_push(struct zps_member *member, const struct zps_frame_round *push, bool is_apart) {
  const struct zps_job *job = member->job;
  const uint64_t now_ns = zps_clock_ns(), deadline_ns = now_ns + push->timeout_ms * ZPS_NS_PER_MS;
  const struct zps_question question = {.step = push->step};
  const struct push how = {.deadline_ns = deadline_ns, .now_ns = now_ns, .is_apart = is_apart};
  struct zps_tensor *tensor = zps_tensor_find(job, push->tensor);
  if (!tensor) {
    zps_reply_unknown(member, &question, push->tensor);
    return;
  }
  if (tensor->idle && tensor->idle[member->rank]) {
    zps_reply_text(member, &question, tensor, ZPS_ERR_PROTOCOL,
                   "this rank has no part in it, so it has nothing to push");
    return;
  }
  struct zps_shard_round *round = zps_step_round(tensor, push->step, now_ns, NULL);
  if (!round) {
    zps_reply_tombstone(member, tensor, push->step);
    return;
  }
  if (zps_shard_machine_is_too_late(round->machine, member->rank)) {
    zps_quorum_refuse(member, tensor, push->step);
    return;
  }
  const bool is_late = zps_shard_machine_is_late(round->machine, member->rank);
  if (!is_late && round->machine->state ==
                      ZPS_SHARD_PUBLISHED) { /* a repeated step: the others' results are none the worse for it */
    zps_reply_completed(member, tensor, push->step);
    return;
  }
  if (round->first_push_ns[member->rank] == 0) round->first_push_ns[member->rank] = now_ns;
  /* a rank that announces partitions while it looks for the rows of others counts further from frame to frame */
  if (round->total_nnz[member->rank] < push->total_nnz) round->total_nnz[member->rank] = push->total_nnz;
  if (deadline_ns > round->until_ns[member->rank]) round->until_ns[member->rank] = deadline_ns;
  if (deadline_ns < job->shard->next_deadline_ns) job->shard->next_deadline_ns = deadline_ns;
  /* nothing of a late rank takes memory, or goes into the sum */
  bool goes_on =
      is_late || (note_presence(round, member->rank, push->is_absent) && is_admitted(round, member->rank, push));
  for (uint32_t i = 0; goes_on && i < push->n_slices; i++)
    goes_on = take_slice(round, member->rank, &push->slices[i], &how);
  if (goes_on)
    zps_quorum_tell(round);
  else if (!is_late && !zps_shard_machine_wants_abort(round->machine, member->rank))
    zps_reply_tombstone(member, tensor, push->step);
}

static void on_done(struct zps_member *member, const struct zps_frame_done *done) {
  struct zps_tensor *tensor = zps_tensor_find(member->job, done->tensor);
  if (tensor &&
      (zps_pull_end(tensor, member->rank, done->step, false) || zps_pull_end(tensor, member->rank, done->step, true)))
    return;
  struct zps_shard_round *round = tensor ? zps_shard_round_find(tensor, done->step) : NULL;
  if (!round) return;
  /* Of a SEEK that is over, given up when its last answer was under way. */
  if (tensor->staleness > 0 && !zps_shard_machine_gets_all(round->machine, member->rank)) return;
  zps_shard_round_tell(round, .type = ZPS_SHARD_DONE, .rank = member->rank);
}

static void on_abort(struct zps_member *member, const struct zps_frame_abort *abort) {
  struct zps_tensor *tensor = zps_tensor_find(member->job, abort->tensor);
  if (!tensor || (tensor->idle && tensor->idle[member->rank])) return;
  struct zps_shard_round *round = zps_shard_round_find(tensor, abort->step);
  if (round && round->machine->state == ZPS_SHARD_PUBLISHED && zps_pull_end(tensor, member->rank, abort->step, false))
    round = zps_shard_round_find(tensor, abort->step);
  if (!round && tensor->quorum > 0) round = zps_quorum_begin(tensor, abort->step, NULL);
  if (round) {
    zps_shard_round_tell(round, .type = ZPS_SHARD_CANCEL, .rank = member->rank, .code = abort->code,
                         .text = abort->text, .blamed = abort->ranks, .n_blamed = abort->n_ranks);
    if (!zps_shard_machine_over(round->machine)) zps_quorum_gave_up(round, member->rank);
  } else if (!zps_tensor_tombstone(tensor, abort->step)) { /* the others need not wait for what will not come */
    struct zps_frame_abort refused = zps_refusal(tensor->id, abort->step, abort->code);
    refused.n_ranks = abort->n_ranks > 0 ? abort->n_ranks : 1;
    refused.ranks[0] = member->rank;
    if (abort->n_ranks > 0) memcpy(refused.ranks, abort->ranks, abort->n_ranks * sizeof abort->ranks[0]);
    zps_refuse_step(tensor, refused, "rank %u gave it up: %s", member->rank, abort->text);
  }
}

/* The sender; NULL where that is no member, or one whose frames no longer count. */
static struct zps_member *find_member(const struct zps_shard *shard, const struct zps_frame_header *header) {
  const char *type = zps_frame_type_name(header->type);
  if (header->is_short) {
    struct zps_member *member = zps_tags_find(&shard->tags, header->tag);
    if (member) return member->job->is_closed ? NULL : member;
    /* A last DONE crosses the closing of its job, however late. */
    if (header->type != ZPS_FRAME_DONE)
      zps_log_warn_of_strangers("dropped a %s frame of tag %u: no such link here", type, header->tag);
    return NULL;
  }
  struct zps_job *job = zps_job_find(shard->jobs, header->job);
  if (!job && (header->type == ZPS_FRAME_DONE || zps_job_find(shard->lingering, header->job))) return NULL;
  if (job && header->src < job->world) return &job->members[header->src];
  zps_log_warn_of_strangers("dropped a %s frame of job 0x%016" PRIx64 " from 0x%x: %s", type, header->job, header->src,
                            job ? "no such rank" : "no such job here");
  return NULL;
}

struct zps_link *zps_collect_link(struct zps_shard *shard, const struct zps_frame_header *header) {
  const struct zps_member *member = find_member(shard, header);
  return member && !member->is_failing ? member->link : NULL;
}

void zps_collect_frame(struct zps_shard *shard, const struct zps_frame *frame) {
  const struct zps_frame_header *header = &frame->header;
  struct zps_member *member = find_member(shard, header);
  if (!member || !member->link || member->is_failing) return;
  const struct zps_job *job = member->job;
  struct zps_error error;
  zps_log_about(.job = job->name, ZPS_LOG_RANK(member->rank));
  const zps_err_t code = zps_link_received(member->link, header, &error);
  if (code != ZPS_OK) {
    if (code == ZPS_ERR_STALE) { /* it has not heard yet that a server was lost */
      zps_log_debug("job %s: rank %u: %s", job->name, member->rank, error.text);
      return;
    }
    zps_log_warn_limited("job %s: rank %u: %s", job->name, member->rank, error.text);
    zps_member_fail(member, code, error.text);
    return;
  }
  /* It took part in the change, and reported its decisions. Credit leaves before them. */
  if (header->type != ZPS_FRAME_CREDIT) member->is_unheard = false;
  switch (header->type) {
    case ZPS_FRAME_PUSH:
      on_push(member, &frame->u.round, false);
      break;
    case ZPS_FRAME_GIVE:
      on_push(member, &frame->u.round, true);
      break;
    case ZPS_FRAME_PULL:
    case ZPS_FRAME_SEEK:
      zps_pull_frame(member, &frame->u.round, header->type == ZPS_FRAME_SEEK);
      break;
    case ZPS_FRAME_DONE:
      on_done(member, &frame->u.done);
      break;
    case ZPS_FRAME_ABORT:
      on_abort(member, &frame->u.abort);
      break;
    case ZPS_FRAME_CLOSED:
      zps_quorum_decided(member, &frame->u.closed);
      break;
    case ZPS_FRAME_CREDIT:
      break;
    default:
      zps_log_warn_limited("job %s: rank %u sent a %s frame, which only servers send", job->name, member->rank,
                           zps_frame_type_name(header->type));
  }
}
