/* Rounds in flight: their objects, and what the round machine's actions mean in terms of reads, sums and frames. */
#include "server/shard/round.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/account.h"
#include "common/base/clock.h"
#include "common/base/container.h"
#include "common/base/log.h"
#include "server/shard/job.h"
#include "server/shard/publish.h"
#include "server/shard/pull.h"
#include "server/shard/quorum.h"
#include "server/shard/quota.h"
#include "server/shard/reduce.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

enum {
  FREE_BYTES_MAX = 9 << 20, /* in stores that are not in use */
  FREE_ROUNDS_MAX = 16,     /* rounds that a tensor keeps */
};

static const uint32_t store_sizes[] = {0, 1024, 4096, ZPS_WIRE_INLINE_MAX};
_Static_assert(sizeof store_sizes / sizeof store_sizes[0] == ZPS_STORE_SIZES, "a list of free ones for each size");

static unsigned size_of(uint64_t len_bytes) {
  unsigned size = 0;
  while (store_sizes[size] < len_bytes) size++;
  return size;
}

uint64_t zps_contribution_bytes(uint64_t len_bytes) {
  return len_bytes > 0 ? sizeof(struct zps_contribution) + store_sizes[size_of(len_bytes)] : 0;
}

struct zps_contribution *zps_contribution_get(struct zps_job *job, uint64_t len_bytes) {
  struct zps_shard *const shard = job->shard;
  const unsigned size = size_of(len_bytes);
  struct zps_contribution *contribution = shard->free_contributions[size];
  if (contribution) {
    shard->free_contributions[size] = contribution->next;
    shard->free_bytes -= store_sizes[size];
  } else {
    contribution = aligned_alloc(_Alignof(struct zps_contribution), sizeof *contribution + store_sizes[size]);
    if (!contribution) return NULL;
  }
  *contribution = (struct zps_contribution){.shard = shard, .size = (uint8_t)size, .account = job->account};
  if (size > 0) zps_account_add(contribution->account, zps_contribution_bytes(store_sizes[size]));
  return contribution;
}

void zps_contribution_put(struct zps_contribution *contribution) {
  struct zps_shard *shard = contribution->shard;
  const uint32_t store_bytes = store_sizes[contribution->size];
  zps_slab_put(shard->slab, &contribution->buf);
  /* One without a store may outlive its job: the fabric still writes to it. */
  if (store_bytes > 0) zps_account_sub(contribution->account, zps_contribution_bytes(store_bytes));
  if (shard->free_bytes + store_bytes > FREE_BYTES_MAX) {
    free(contribution);
    return;
  }
  shard->free_bytes += store_bytes;
  contribution->next = shard->free_contributions[contribution->size];
  shard->free_contributions[contribution->size] = contribution;
}

void zps_contributions_free(struct zps_shard *shard) {
  for (unsigned size = 0; size < ZPS_STORE_SIZES; size++) {
    for (struct zps_contribution *contribution = shard->free_contributions[size], *next; contribution;
         contribution = next) {
      next = contribution->next;
      free(contribution);
    }
    shard->free_contributions[size] = NULL;
  }
}

/* ---- life ---- */

/* The object of a round, and its machine. */
static uint64_t bytes_of(const struct zps_tensor *tensor) {
  const uint64_t world = tensor->job->world, n_parts = tensor->parts_here;
  const struct zps_shard_round *round;
  return sizeof *round + sizeof *round->machine +
         n_parts * (sizeof round->parts[0] + sizeof round->sums[0] + sizeof round->ready[0]) +
         world * n_parts * (sizeof round->slots[0] + sizeof round->nnz[0] + 1) + world * (3 * sizeof(uint64_t) + 1);
}

static void round_free(struct zps_shard_round *round) {
  if (!round) return;
  zps_account_sub(round->tensor->job->account, round->charged_bytes);
  zps_shard_machine_destroy(round->machine);
  free(round->parts);
  free(round->sums);
  free(round->slots);
  free(round->nnz);
  free(round->ready);
  free(round->late_parts);
  free(round->total_nnz);
  free(round->first_push_ns);
  free(round->until_ns);
  free(round->presence);
  free(round);
}

static zps_err_t round_create(struct zps_tensor *tensor, struct zps_shard_round **round_p, struct zps_error *error) {
  const uint32_t world = tensor->job->world, n_parts = tensor->parts_here;
  const size_t n_slots = (size_t)world * n_parts;
  const zps_err_t code = zps_quota_take(tensor->job, bytes_of(tensor), "the tables of a round", error);
  if (code != ZPS_OK) return code;
  struct zps_shard_round *round = calloc(1, sizeof *round);
  if (!round) {
    zps_account_sub(tensor->job->account, bytes_of(tensor));
    return zps_fail(error, ZPS_ERR_NOMEM, "the server is out of memory");
  }
  round->tensor = tensor;
  round->charged_bytes = bytes_of(tensor);
  round->parts = calloc(n_parts ? n_parts : 1, sizeof round->parts[0]);
  round->sums = calloc(n_parts ? n_parts : 1, sizeof(void *));
  round->slots = calloc(n_slots ? n_slots : 1, sizeof(void *));
  round->nnz = calloc(n_slots ? n_slots : 1, sizeof round->nnz[0]);
  round->ready = calloc(n_parts ? n_parts : 1, sizeof round->ready[0]);
  round->late_parts = tensor->quorum > 0 ? calloc(n_parts ? n_parts : 1, sizeof round->late_parts[0]) : NULL;
  round->total_nnz = calloc(world, sizeof round->total_nnz[0]);
  round->first_push_ns = calloc(world, sizeof round->first_push_ns[0]);
  round->until_ns = calloc(world, sizeof round->until_ns[0]);
  round->presence = calloc(world, sizeof round->presence[0]);
  if (!round->parts || !round->sums || !round->slots || !round->nnz || !round->ready || !round->total_nnz ||
      !round->first_push_ns || !round->until_ns || !round->presence || (tensor->quorum > 0 && !round->late_parts) ||
      zps_shard_machine_create(world, n_parts, &round->machine) != ZPS_OK) {
    round_free(round);
    return zps_fail(error, ZPS_ERR_NOMEM, "the server is out of memory");
  }
  *round_p = round;
  return ZPS_OK;
}

void zps_shard_rounds_free(struct zps_tensor *tensor) {
  for (struct zps_shard_round *round; (round = tensor->free_rounds) != NULL;) {
    tensor->free_rounds = round->next;
    round_free(round);
  }
  tensor->n_free_rounds = 0;
}

zps_err_t zps_shard_round_open(struct zps_tensor *tensor, uint64_t step, uint64_t now_ns,
                               struct zps_shard_round **round_p, struct zps_error *error) {
  struct zps_shard *shard = tensor->job->shard;
  struct zps_shard_round *round = tensor->free_rounds;
  zps_err_t code = zps_quota_round(tensor->job, error);
  if (code == ZPS_OK && !round) code = round_create(tensor, &round, error);
  if (code != ZPS_OK) return code;
  if (round == tensor->free_rounds) {
    tensor->free_rounds = round->next;
    tensor->n_free_rounds--;
  }
  zps_shard_machine_start(round->machine, &(struct zps_shard_machine_config){.job = tensor->job->name,
                                                                             .tensor = tensor->name,
                                                                             .step = step,
                                                                             .partitions = tensor->partitions,
                                                                             .idle = tensor->idle,
                                                                             .is_kept = tensor->staleness > 0,
                                                                             .is_unsure = tensor->job->awaits_replay,
                                                                             .quorum = tensor->quorum,
                                                                             .grace_ns = tensor->grace_ns});
  round->age = shard->next_age++;
  round->n_ready = round->n_small = round->n_in_order = 0;
  round->unsummed_bytes = round->sums_bytes = 0;
  round->has_read = false;
  round->is_ready = false;
  round->opened_ns = now_ns;
  round->collected_ns = round->published_ns = round->reduce_ns = 0;
  memset(round->total_nnz, 0, tensor->job->world * sizeof round->total_nnz[0]);
  memset(round->first_push_ns, 0, tensor->job->world * sizeof round->first_push_ns[0]);
  memset(round->until_ns, 0, tensor->job->world * sizeof round->until_ns[0]);
  round->overdue_ns = 0;
  memset(round->presence, ZPS_SHARD_UNHEARD, tensor->job->world * sizeof round->presence[0]);
  round->n_absent = 0;
  round->next = tensor->rounds;
  tensor->rounds = round;
  tensor->n_rounds++;
  tensor->job->n_rounds++;
  round->younger = NULL;
  round->older = shard->youngest;
  *(round->older ? &round->older->younger : &shard->oldest) = round;
  shard->youngest = round;
  shard->rounds_in_flight++;
  *round_p = round;
  return ZPS_OK;
}

struct zps_shard_round *zps_shard_round_find(const struct zps_tensor *tensor, uint64_t step) {
  struct zps_shard_round *round = tensor->rounds;
  while (round && round->machine->config.step != step) round = round->next;
  return round;
}

void zps_contribution_orphan(struct zps_contribution *contribution) {
  if (contribution->is_orphan) return;
  contribution->is_orphan = true;
  contribution->shard->n_orphans++;
  contribution->account->n_orphans++;
}

void zps_contribution_read(struct zps_contribution *contribution) {
  contribution->shard->n_orphans -= contribution->is_orphan;
  contribution->account->n_orphans -= contribution->is_orphan;
  contribution->is_orphan = false;
}

static void drop_contribution(struct zps_shard *shard, struct zps_contribution *contribution) {
  zps_memory_cancel(&shard->memory, &contribution->wait.memory);
  if (contribution->is_here || !contribution->buf.data) {
    zps_contribution_put(contribution);
    return;
  }
  contribution->round = NULL; /* being read: it goes when the fabric is done with it */
  zps_contribution_orphan(contribution);
}

static void drop_slots(struct zps_shard_round *round, uint32_t part) {
  for (uint32_t rank = 0; rank < round->machine->world; rank++) {
    struct zps_contribution **slot = zps_shard_round_slot(round, part, rank);
    if (*slot) drop_contribution(round->tensor->job->shard, *slot);
    *slot = NULL;
  }
}

/* Frees what the round holds; its own memory waits in shard->buried, because callers further up still look at it. */
static void round_release(struct zps_shard_round *round, const struct zps_frame_abort *abort) {
  struct zps_tensor *tensor = round->tensor;
  struct zps_shard *shard = tensor->job->shard;
  zps_pulls_end(round, abort);
  for (uint32_t part = 0; part < round->machine->n_parts; part++) {
    struct zps_part_run *run = &round->parts[part];
    zps_memory_cancel(&shard->memory, &run->wait.memory);
    if (run->task) zps_reduce_forget(run->task);
    run->task = NULL;
    run->pushed_nnz = 0;
    zps_slab_put(shard->slab, &run->result);
    zps_shard_sum_unref(&round->sums[part]);
    drop_slots(round, part);
  }
  zps_publish_forget(round);
  struct zps_shard_round **link = &tensor->rounds;
  while (*link != round) link = &(*link)->next;
  *link = round->next;
  tensor->n_rounds--;
  tensor->job->n_rounds--;
  *(round->older ? &round->older->younger : &shard->oldest) = round->younger;
  *(round->younger ? &round->younger->older : &shard->youngest) = round->older;
  shard->rounds_in_flight--;
  round->next = shard->buried;
  shard->buried = round;
}

/* All that ranks may be reading. */
static void hold_sums(struct zps_shard_round *round, struct zps_shard_sum **list) {
  for (uint32_t part = 0; part < round->machine->n_parts; part++)
    if (round->sums[part] && !zps_publish_is_small(round->sums[part])) zps_shard_sum_hold(round->sums[part], list);
  for (const struct zps_shard_pull *pull = round->pulls; pull; pull = pull->next)
    for (uint32_t part = 0; part < pull->n_parts; part++)
      if (pull->sums[part]) zps_shard_sum_hold(pull->sums[part], list);
}

/* A rank that has begun to read hears of an abort a moment later: it is not to find other bytes until then. */
static void round_close(struct zps_shard_round *round, const struct zps_frame_abort *abort) {
  if (abort) hold_sums(round, &round->tensor->job->shard->aborted[0]);
  zps_tensor_bury(round->tensor, round->machine->config.step, abort);
  round_release(round, abort);
}

void zps_shard_round_drop(struct zps_shard_round *round) {
  hold_sums(round, &round->tensor->job->held);
  round_release(round, NULL);
}

void zps_shard_round_bury(struct zps_shard *shard) {
  for (struct zps_shard_round *round; (round = shard->buried) != NULL;) {
    shard->buried = round->next;
    if (round->tensor->n_free_rounds >= FREE_ROUNDS_MAX + round->tensor->n_rounds) {
      round_free(round);
      continue;
    }
    round->tensor->n_free_rounds++;
    round->next = round->tensor->free_rounds;
    round->tensor->free_rounds = round;
  }
  zps_pulls_bury(shard);
}

/* ---- reads ---- */

static void read_done(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_contribution *contribution = read->ctx;
  struct zps_shard_round *round = contribution->round;
  if (round && zps_shard_machine_is_late(round->machine, contribution->rank)) {
    zps_quorum_landed(contribution, code == ZPS_ERR_PEER_LOST);
    return;
  }
  if (round && code == ZPS_OK) {
    contribution->is_here = true;
    round->tensor->sums.bytes_in += contribution->len_bytes;
    zps_shard_round_tell(round, .type = ZPS_SHARD_LANDED, .rank = contribution->rank, .part = contribution->part,
                         .now_ns = round->tensor->quorum > 0 ? zps_clock_ns() : 0);
    return;
  }
  if (round) {
    zps_shard_round_fail(round, contribution->rank, code, "cannot read the %llu bytes of its partition %u: %s",
                         (unsigned long long)contribution->len_bytes, round->tensor->partitions[contribution->part],
                         zps_checks_why(&contribution->read, code));
  }
  zps_contribution_read(contribution);
  if (code != ZPS_ERR_PEER_LOST)
    zps_contribution_put(contribution); /* a lost peer's is in quarantine, which may last */
}

static void read_release(struct zps_bulk_read *read) {
  zps_contribution_put(read->ctx);
}

static void read_granted(struct zps_memory_wait *wait) {
  struct zps_contribution *contribution = zps_container_of(wait, struct zps_contribution, wait.memory);
  struct zps_bulk_read *read = &contribution->read.bulk;
  const struct zps_job *job = contribution->round->tensor->job;
  contribution->round->unsummed_bytes += contribution->buf.cap;
  contribution->data = contribution->buf.data;
  read->local = contribution->buf.data;
  read->mem = contribution->buf.mem;
  read->len = contribution->len_bytes;
  read->done = read_done;
  read->release = read_release;
  read->ctx = contribution;
  zps_checks_read(job->checks, job->members[contribution->rank].bulk, &contribution->read, contribution->sum);
}

static void start_read(struct zps_shard_round *round, uint32_t rank, uint32_t part) {
  struct zps_contribution *contribution = *zps_shard_round_slot(round, part, rank);
  contribution->wait = (struct zps_shard_wait){
      .round = round,
      .is_push = true,
      .memory = {
          .part = part, .len_bytes = contribution->len_bytes, .buf_p = &contribution->buf, .granted = read_granted}};
  zps_shard_memory_want(contribution->shard, &contribution->wait);
}

/* ---- actions ---- */

static void send_abort(struct zps_shard_round *round, struct zps_frame_abort *abort) {
  struct zps_job *job = round->tensor->job;
  struct zps_frame frame = {.header.type = ZPS_FRAME_ABORT};
  abort->tensor = round->tensor->id;
  frame.u.abort = *abort;
  for (uint32_t rank = 0; rank < job->world; rank++)
    if (zps_shard_machine_wants_abort(round->machine, rank)) zps_member_send(&job->members[rank], &frame);
  zps_log_about(.job = job->name, .tensor = round->tensor->name, ZPS_LOG_STEP(abort->step), .code = abort->code,
                .has_rank = abort->n_ranks == 1, .rank = abort->n_ranks == 1 ? abort->ranks[0] : 0);
  zps_log_info("%s: %s", zps_err_name(abort->code), abort->text);
}

static void send_refusal(struct zps_shard_round *round, uint32_t rank, struct zps_frame_abort *abort) {
  abort->tensor = round->tensor->id;
  struct zps_frame frame = {.header.type = ZPS_FRAME_ABORT, .u.abort = *abort};
  zps_member_send(&round->tensor->job->members[rank], &frame);
}

static void send_taken(struct zps_shard_round *round, uint32_t rank) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_TAKEN,
                            .u.done = {.tensor = round->tensor->id, .step = round->machine->config.step}};
  zps_member_send(&round->tensor->job->members[rank], &frame);
}

static void act(struct zps_shard_round *round, const struct zps_shard_machine_action *action,
                struct zps_frame_abort *abort) {
  struct zps_tensor *tensor = round->tensor;
  switch (action->type) {
    case ZPS_SHARD_READ:
      start_read(round, action->rank, action->part);
      break;
    case ZPS_SHARD_REDUCE:
      zps_reduce_begin(round, action->part);
      break;
    case ZPS_SHARD_DROP:
      zps_quorum_drop(round, action->rank);
      break;
    case ZPS_SHARD_CLOSE:
      zps_quorum_close(round);
      break;
    case ZPS_SHARD_PUBLISH:
      round->n_small -= zps_reduce_is_small(round, action->part);
      zps_publish_part(round, action->part);
      zps_pulls_answer(round, action->part);
      zps_pulls_limit(round);
      break;
    case ZPS_SHARD_TAKEN:
      send_taken(round, action->rank);
      break;
    case ZPS_SHARD_REFUSE:
      send_refusal(round, action->rank, abort);
      break;
    case ZPS_SHARD_RETIRE:
      zps_publish_all(round);
      /* With staleness or a quorum the round was retained, and the time says nothing of publishing. */
      if (!tensor->staleness && !tensor->quorum) tensor->sums.publish_ns += zps_clock_ns() - round->published_ns;
      round_close(round, NULL);
      break;
    case ZPS_SHARD_ABORT:
      tensor->sums.aborted++;
      send_abort(round, abort);
      round_close(round, abort);
      break;
  }
}

bool zps_shard_round_step(struct zps_shard_round *round, const struct zps_shard_machine_event *event) {
  struct zps_shard_machine_actions actions;
  const enum zps_shard_machine_state before = round->machine->state;
  zps_shard_machine_step(round->machine, event, &actions);
  const enum zps_shard_machine_state after = round->machine->state;
  if (before == ZPS_SHARD_COLLECTING && after != before) round->collected_ns = zps_clock_ns();
  bool is_refused = false;
  for (unsigned i = 0; i < actions.n; i++) {
    act(round, &actions.list[i], &actions.abort);
    is_refused |= actions.list[i].type == ZPS_SHARD_REFUSE;
  }
  if (round->machine->close_ns < round->tensor->job->shard->next_deadline_ns)
    round->tensor->job->shard->next_deadline_ns = round->machine->close_ns;
  return !is_refused && !zps_shard_machine_over(round->machine);
}

bool zps_shard_round_fail(struct zps_shard_round *round, uint32_t rank, zps_err_t code, const char *fmt, ...) {
  char text[ZPS_WIRE_TEXT_MAX + 1];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return zps_shard_round_tell(round, .type = ZPS_SHARD_FAIL, .rank = rank, .code = code, .text = text);
}
