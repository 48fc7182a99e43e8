/*
 * Who gets registered memory when it is short.
 *
 * Requests are served in order of (round, partition), oldest first. The oldest partition that is not summed yet may use
 * all of the limit; the others stop at half of it. So what is ahead of its time never keeps out what everything else
 * waits for, and the oldest partition always finds at least half of the limit. When even that is too little and nothing
 * is about to be freed, its round fails with the limit it would need.
 *
 * In each round, contributions are read a few partitions ahead of the sums, as far as keeps the links busy, and no
 * farther: so what a server holds for a round is its sums and READ_AHEAD_BYTES, however many ranks push.
 */
#include "server/shard/memory.h"

#include <inttypes.h>

#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/tensor.h"

enum {
  READ_AHEAD_BYTES = 16 << 20,
  READ_AHEAD_PARTS = 2, /* or, where it is more, so many partitions of all ranks */
};

static bool is_before(const struct zps_memory_wait *a, const struct zps_memory_wait *b) {
  return a->round != b->round ? a->round->age < b->round->age : a->part < b->part;
}

static void insert(struct zps_shard *shard, struct zps_memory_wait *wait) {
  struct zps_memory_wait *after = shard->wait_last;
  while (after && is_before(wait, after)) after = after->prev;
  wait->prev = after;
  wait->next = after ? after->next : shard->wait_first;
  *(after ? &after->next : &shard->wait_first) = wait;
  *(wait->next ? &wait->next->prev : &shard->wait_last) = wait;
  wait->is_queued = true;
}

void zps_memory_cancel(struct zps_shard *shard, struct zps_memory_wait *wait) {
  if (!wait->is_queued) return;
  *(wait->prev ? &wait->prev->next : &shard->wait_first) = wait->next;
  *(wait->next ? &wait->next->prev : &shard->wait_last) = wait->prev;
  wait->is_queued = false;
}

static bool is_oldest(const struct zps_shard *shard, const struct zps_memory_wait *wait) {
  const struct zps_shard_round *round = shard->oldest;
  while (round && round->machine->state >= ZPS_SHARD_PUBLISHED) round = round->younger;
  if (round != wait->round) return false;
  for (uint32_t part = 0; part < wait->part; part++)
    if (!zps_shard_machine_part_reduced(round->machine, part)) return false;
  return true;
}

static bool is_far_ahead(const struct zps_memory_wait *wait) {
  struct zps_shard_round *round = wait->round;
  const uint64_t some_parts = READ_AHEAD_PARTS * wait->len_bytes * round->machine->world;
  const uint64_t most = some_parts > READ_AHEAD_BYTES ? some_parts : READ_AHEAD_BYTES;
  if (!wait->is_push || round->unsummed_bytes + wait->len_bytes <= most) return false;
  while (round->n_in_order < wait->part && zps_shard_machine_part_reduced(round->machine, round->n_in_order))
    round->n_in_order++;
  return round->n_in_order < wait->part;
}

static zps_err_t try_get(struct zps_shard *shard, struct zps_memory_wait *wait) {
  if (!is_oldest(shard, wait)) {
    struct zps_slab_stats stats;
    zps_slab_stats(shard->slab, &stats);
    if (stats.in_use_bytes + wait->len_bytes > shard->memory_limit_bytes / 2) return ZPS_ERR_AGAIN;
  }
  return zps_slab_get(shard->slab, wait->len_bytes, wait->buf_p);
}

/* Whether memory will come back without anyone pushing anything. */
static bool is_more_to_come(const struct zps_shard *shard) {
  if (shard->n_reducing > 0 || shard->n_orphans > 0) return true;
  for (const struct zps_shard_round *round = shard->oldest; round; round = round->younger)
    if (round->machine->state == ZPS_SHARD_PUBLISHED) return true;
  return false;
}

static uint64_t bytes_wanted(const struct zps_shard_round *round) {
  uint64_t bytes = 0;
  for (uint32_t part = 0; part < round->machine->n_parts; part++) {
    const struct zps_part_run *run = &round->parts[part];
    bytes += run->result.cap + (run->wait.is_queued ? run->wait.len_bytes : 0);
    for (uint32_t rank = 0; rank < round->machine->world; rank++) {
      const struct zps_contribution *contribution = *zps_shard_round_slot(round, part, rank);
      if (!contribution) continue;
      bytes += contribution->buf.cap + (contribution->wait.is_queued ? contribution->wait.len_bytes : 0);
    }
  }
  return bytes;
}

static void refuse(struct zps_shard *shard, struct zps_memory_wait *wait) {
  const uint64_t bytes = bytes_wanted(wait->round);
  zps_shard_round_fail(wait->round, ZPS_SHARD_NO_RANK, ZPS_ERR_NOMEM,
                       "no memory for %" PRIu64 " bytes of partition %u: the round takes %" PRIu64
                       " bytes or more and the server's memory.limit is %" PRIu64 "; set it to at least %" PRIu64,
                       wait->len_bytes, wait->round->tensor->partitions[wait->part], bytes, shard->memory_limit_bytes,
                       2 * (bytes > shard->memory_limit_bytes ? bytes : shard->memory_limit_bytes));
}

void zps_memory_want(struct zps_shard *shard, struct zps_memory_wait *wait) {
  insert(shard, wait);
  zps_memory_serve(shard);
}

void zps_memory_serve(struct zps_shard *shard) {
  for (struct zps_memory_wait *wait = shard->wait_first; wait;) {
    if (is_far_ahead(wait)) {
      wait = wait->next;
      continue;
    }
    const zps_err_t code = try_get(shard, wait);
    if (code == ZPS_OK) {
      zps_memory_cancel(shard, wait);
      wait->granted(wait);
    } else if (code == ZPS_ERR_AGAIN && (!is_oldest(shard, wait) || is_more_to_come(shard))) {
      return;
    } else {
      refuse(shard, wait);
    }
    wait = shard->wait_first;
  }
}
