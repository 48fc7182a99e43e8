/*
 * Requests are served in order of (round, partition), oldest first.
 * - The oldest partition without a sum may use all of the limit; the others stop at half of it. So a partition ahead of
 *   its time never keeps the oldest out, and the oldest always finds half of the limit. If that is too little and
 *   nothing is about to be freed, its round fails. The error names the needed limit.
 *
 * - Small tensors whose contributions come inside frames have no place in that order. Such a round takes next to
 *   nothing, and may wait for ranks in other rounds (a barrier, an agreement of auto). Its sum may use all of the
 *   limit. Where none of it is left, the oldest of the other rounds gives way.
 * - Rows for pulls are copies. They are read and freed whatever else waits, so they may use all of the limit. Where
 *   sums for late readers have used it up, the oldest of these go.
 *
 * - A job with its quota in use (quota.h) waits until some comes back. Requests of other jobs go first. The
 *   same halves hold inside its quota, less its links and tensors. Where nothing of its own is about to be freed, its
 *   round fails with the two numbers.
 * - Rounds with a quorum hold all pushes until they close. The oldest of them may use all of the limit, whatever the
 *   partition.
 * - Other rounds read contributions a few partitions ahead of the sums, just enough to keep the links busy. So a server
 *   holds the sums of a round and READ_AHEAD_BYTES, however many ranks push.
 */
#include "server/shard/memory.h"

#include <inttypes.h>

#include "common/base/config.h"
#include "common/base/container.h"
#include "server/shard/job.h"
#include "server/shard/pull.h"
#include "server/shard/quota.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

enum {
  READ_AHEAD_BYTES = 16 << 20,
  READ_AHEAD_PARTS = 2, /* reads ahead so many partitions of all ranks where that is more */
};

static bool is_small(const struct zps_shard_round *round) {
  return round->tensor->is_small && !round->has_read;
}

/* The oldest round that is not summed: of the job, or with NULL of all. A small one where there are no others. */
static const struct zps_shard_round *oldest_of(const struct zps_shard *shard, const struct zps_job *job) {
  const struct zps_shard_round *oldest = NULL;
  for (const struct zps_shard_round *round = shard->oldest; round; round = round->younger) {
    if (round->machine->state >= ZPS_SHARD_PUBLISHED || (job && round->tensor->job != job)) continue;
    if (!is_small(round)) return round;
    if (!oldest) oldest = round;
  }
  return oldest;
}

/* Of the job's rounds; `job` NULL: of all. */
static bool is_oldest_of(const struct zps_shard *shard, const struct zps_job *job, const struct zps_shard_wait *wait) {
  if (oldest_of(shard, job) != wait->round) return false;
  if (wait->round->tensor->quorum > 0) return true;
  for (uint32_t part = 0; part < wait->memory.part; part++)
    if (!zps_shard_machine_part_reduced(wait->round->machine, part)) return false;
  return true;
}

static bool is_far_ahead(const struct zps_shard_wait *wait) {
  struct zps_shard_round *round = wait->round;
  if (round->tensor->quorum > 0) return false; /* nothing is summed before all is read */
  const uint64_t some_parts = READ_AHEAD_PARTS * wait->memory.len_bytes * round->machine->world;
  const uint64_t most = some_parts > READ_AHEAD_BYTES ? some_parts : READ_AHEAD_BYTES;
  if (!wait->is_push || round->unsummed_bytes + wait->memory.len_bytes <= most) return false;
  while (round->n_in_order < wait->memory.part && zps_shard_machine_part_reduced(round->machine, round->n_in_order))
    round->n_in_order++;
  return round->n_in_order < wait->memory.part;
}

/* Whether memory will come back without anyone pushing anything; with a job, of its rounds, as far as that is known.
 * Reads of rounds that are over count apart: one from a rank that is stopped may last. */
static bool is_more_to_come(const struct zps_shard *shard, const struct zps_job *job) {
  if (shard->n_reducing > 0 || shard->n_picking > 0) return true;
  if (job ? job->held || shard->aborted[0] || shard->aborted[1] : shard->n_held > 0) return true;
  for (const struct zps_shard_round *round = shard->oldest; round; round = round->younger)
    if (round->machine->state == ZPS_SHARD_PUBLISHED && !zps_shard_machine_only_keeps(round->machine) &&
        (!job || round->tensor->job == job))
      return true;
  return false;
}

static uint64_t bytes_wanted(const struct zps_shard_round *round) {
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < round->machine->n_parts; part++) {
    const struct zps_part_run *run = &round->parts[part];
    bytes += run->result.cap + (round->sums[part] ? round->sums[part]->buf.cap : 0) +
             (run->wait.memory.is_queued ? run->wait.memory.len_bytes : 0);
    for (uint32_t rank = 0; rank < round->machine->world; rank++) {
      const struct zps_contribution *contribution = *zps_shard_round_slot(round, part, rank);
      if (!contribution) continue;
      bytes += contribution->buf.cap + (contribution->wait.memory.is_queued ? contribution->wait.memory.len_bytes : 0);
    }
  }
  return bytes;
}

static void refuse(struct zps_shard_round *round, const struct zps_memory_wait *wait) {
  const uint64_t bytes = bytes_wanted(round), limit_bytes = round->tensor->job->shard->memory_limit_bytes;
  zps_shard_round_fail(round, ZPS_SHARD_NO_RANK, ZPS_ERR_NOMEM,
                       "no memory for %" PRIu64 " bytes of partition %u: the round takes %" PRIu64
                       " bytes or more and %s is %" PRIu64 "; set it to at least %" PRIu64,
                       wait->len_bytes, round->tensor->partitions[wait->part], bytes,
                       zps_config_label("server.memory_limit"), limit_bytes,
                       2 * (bytes > limit_bytes ? bytes : limit_bytes));
}

static void refuse_quota(struct zps_shard_round *round, const struct zps_memory_wait *wait) {
  const struct zps_job *job = round->tensor->job;
  zps_shard_round_fail(round, ZPS_SHARD_NO_RANK, ZPS_ERR_QUOTA,
                       "no room for %" PRIu64 " bytes of partition %u: the round takes %" PRIu64
                       " bytes or more, and the job has %" PRIu64 " of the %" PRIu64
                       " bytes of this server's memory that it may have (%s)",
                       wait->len_bytes, round->tensor->partitions[wait->part], bytes_wanted(round), job->account->bytes,
                       job->shard->quota.memory_bytes, zps_config_label("job.max_memory"));
}

/* The half that is kept for the oldest partition is no matter to it. */
static bool may_take_all(const struct zps_shard_wait *wait) {
  return wait->is_answer || is_small(wait->round);
}

/* NOW: the job's quota is no reason to wait. */
static enum zps_memory_answer ask_quota(struct zps_shard *shard, struct zps_shard_wait *wait) {
  const struct zps_job *job = wait->round->tensor->job;
  const uint64_t len_bytes = zps_slab_bytes(wait->memory.len_bytes);
  if (zps_quota_fits(job, len_bytes, !may_take_all(wait))) return ZPS_MEMORY_NOW;
  if (wait->is_answer || !is_oldest_of(shard, job, wait)) return ZPS_MEMORY_PASSED;
  while (!zps_quota_fits(job, len_bytes, false)) {
    if (is_more_to_come(shard, job)) return ZPS_MEMORY_PASSED;
    if (zps_pulls_make_room(shard, job)) continue;
    if (job->account->n_orphans > 0) return ZPS_MEMORY_PASSED;
    refuse_quota(wait->round, &wait->memory);
    return ZPS_MEMORY_REFUSED;
  }
  return ZPS_MEMORY_NOW;
}

static bool is_over_half(const struct zps_shard *shard, uint64_t more_bytes) {
  struct zps_slab_stats stats;
  zps_slab_stats(shard->slab, &stats);
  return stats.in_use_bytes + more_bytes > shard->memory_limit_bytes / 2;
}

static enum zps_memory_answer ask(void *ctx, struct zps_memory_wait *memory) {
  struct zps_shard *shard = ctx;
  struct zps_shard_wait *wait = zps_container_of(memory, struct zps_shard_wait, memory);
  if (is_far_ahead(wait)) return ZPS_MEMORY_PASSED;
  const enum zps_memory_answer quota = ask_quota(shard, wait);
  if (quota != ZPS_MEMORY_NOW) return quota;
  struct zps_slab_arena *const arena = wait->round->tensor->job->arena;
  const bool takes_all = may_take_all(wait), is_late = !takes_all && is_over_half(shard, memory->len_bytes);
  zps_err_t code = is_late ? ZPS_ERR_AGAIN : zps_slab_get_for(arena, memory->len_bytes, memory->buf_p);
  if (code == ZPS_ERR_AGAIN) {
    if (wait->is_answer || !is_oldest_of(shard, NULL, wait)) return takes_all ? ZPS_MEMORY_PASSED : ZPS_MEMORY_LATER;
    if (is_late) code = zps_slab_get_for(arena, memory->len_bytes, memory->buf_p);
    while (code == ZPS_ERR_AGAIN && !is_more_to_come(shard, NULL) && zps_pulls_make_room(shard, NULL))
      code = zps_slab_get_for(arena, memory->len_bytes, memory->buf_p);
    if (code == ZPS_ERR_AGAIN && (is_more_to_come(shard, NULL) || shard->n_orphans > 0)) return ZPS_MEMORY_LATER;
  }
  if (code == ZPS_OK) return ZPS_MEMORY_NOW;
  refuse(wait->round, memory);
  return ZPS_MEMORY_REFUSED;
}

void zps_shard_memory_init(struct zps_shard *shard) {
  zps_memory_init(&shard->memory, ask, shard);
}

void zps_shard_memory_want(struct zps_shard *shard, struct zps_shard_wait *wait) {
  wait->memory.age = wait->round->age;
  wait->round->has_read |= wait->is_push;
  zps_memory_add(&shard->memory, &wait->memory);
  zps_memory_serve(&shard->memory);
}
