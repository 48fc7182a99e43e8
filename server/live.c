/* Rounds in flight: their objects, and what the round machine's actions mean in terms of reads, sums and frames. */
#include "server/plane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/clock.h"
#include "common/base/log.h"

struct zps_contribution *zps_contribution_get(struct zps_shard *shard, bool has_store) {
  struct zps_contribution **free_list = has_store ? &shard->free_store : &shard->free_plain;
  struct zps_contribution *contribution = *free_list;
  if (contribution) {
    *free_list = contribution->next;
  } else {
    contribution =
        aligned_alloc(_Alignof(struct zps_contribution), sizeof *contribution + (has_store ? ZPS_WIRE_INLINE_MAX : 0));
    if (!contribution) return NULL;
  }
  *contribution = (struct zps_contribution){.shard = shard, .has_store = has_store};
  return contribution;
}

void zps_contribution_put(struct zps_contribution *contribution) {
  struct zps_shard *shard = contribution->shard;
  struct zps_contribution **free_list = contribution->has_store ? &shard->free_store : &shard->free_plain;
  zps_slab_put(shard->slab, &contribution->buf);
  contribution->next = *free_list;
  *free_list = contribution;
}

void zps_contributions_free(struct zps_shard *shard) {
  struct zps_contribution *lists[] = {shard->free_plain, shard->free_store};
  for (unsigned i = 0; i < 2; i++) {
    for (struct zps_contribution *contribution = lists[i], *next; contribution; contribution = next) {
      next = contribution->next;
      free(contribution);
    }
  }
  shard->free_plain = shard->free_store = NULL;
}

/* ---- life ---- */

static struct zps_live *live_create(struct zps_tensor *tensor) {
  const uint32_t world = tensor->job->world, n_parts = tensor->parts_here;
  const size_t n_slots = (size_t)world * n_parts;
  struct zps_live *live = calloc(1, sizeof *live);
  if (!live) return NULL;
  live->tensor = tensor;
  live->parts = calloc(n_parts ? n_parts : 1, sizeof live->parts[0]);
  live->slots = calloc(n_slots ? n_slots : 1, sizeof(void *));
  live->nnz = calloc(n_slots ? n_slots : 1, sizeof live->nnz[0]);
  live->ready = calloc(n_parts ? n_parts : 1, sizeof live->ready[0]);
  live->total_nnz = calloc(world, sizeof live->total_nnz[0]);
  live->first_push_ns = calloc(world, sizeof live->first_push_ns[0]);
  if (!live->parts || !live->slots || !live->nnz || !live->ready || !live->total_nnz || !live->first_push_ns ||
      zps_round_create(world, n_parts, &live->round) != ZPS_OK) {
    zps_live_free(live);
    return NULL;
  }
  return live;
}

void zps_live_free(struct zps_live *live) {
  if (!live) return;
  zps_round_destroy(live->round);
  free(live->parts);
  free(live->slots);
  free(live->nnz);
  free(live->ready);
  free(live->total_nnz);
  free(live->first_push_ns);
  free(live);
}

zps_err_t zps_live_open(struct zps_tensor *tensor, uint64_t step, uint64_t now_ns, struct zps_live **live_p) {
  struct zps_shard *shard = tensor->job->shard;
  struct zps_live *live = tensor->free_lives;
  if (live)
    tensor->free_lives = live->next;
  else if (!(live = live_create(tensor)))
    return ZPS_ERR_NOMEM;
  zps_round_start(live->round, &(struct zps_round_config){.job = tensor->job->name,
                                                          .tensor = tensor->name,
                                                          .step = step,
                                                          .partitions = tensor->partitions,
                                                          .idle = tensor->idle});
  live->age = shard->next_age++;
  live->n_ready = live->n_small = live->n_in_order = 0;
  live->unsummed_bytes = 0;
  live->is_ready = false;
  live->opened_ns = now_ns;
  live->collected_ns = live->published_ns = live->reduce_ns = 0;
  memset(live->total_nnz, 0, tensor->job->world * sizeof live->total_nnz[0]);
  memset(live->first_push_ns, 0, tensor->job->world * sizeof live->first_push_ns[0]);
  live->next = tensor->lives;
  tensor->lives = live;
  tensor->n_lives++;
  live->younger = NULL;
  live->older = shard->youngest;
  *(live->older ? &live->older->younger : &shard->oldest) = live;
  shard->youngest = live;
  shard->rounds_in_flight++;
  *live_p = live;
  return ZPS_OK;
}

struct zps_live *zps_live_find(const struct zps_tensor *tensor, uint64_t step) {
  struct zps_live *live = tensor->lives;
  while (live && live->round->config.step != step) live = live->next;
  return live;
}

static void drop_contribution(struct zps_shard *shard, struct zps_contribution *contribution) {
  zps_memory_cancel(shard, &contribution->wait);
  if (contribution->is_here || !contribution->buf.data) {
    zps_contribution_put(contribution);
    return;
  }
  contribution->live = NULL; /* being read: it goes when the fabric is done with it */
  shard->n_orphans++;
}

static void drop_slots(struct zps_live *live, uint32_t part) {
  struct zps_contribution **slots = &live->slots[(size_t)part * live->round->world];
  for (uint32_t rank = 0; rank < live->round->world; rank++) {
    if (slots[rank]) drop_contribution(live->tensor->job->shard, slots[rank]);
    slots[rank] = NULL;
  }
}

/* Frees what the round holds; its own memory waits in shard->buried, because callers further up still look at it. */
static void live_close(struct zps_live *live, const struct zps_frame_abort *abort) {
  struct zps_tensor *tensor = live->tensor;
  struct zps_shard *shard = tensor->job->shard;
  for (uint32_t part = 0; part < live->round->n_parts; part++) {
    struct zps_part_run *run = &live->parts[part];
    zps_memory_cancel(shard, &run->wait);
    if (run->job) zps_reduce_forget(run->job);
    run->job = NULL;
    zps_slab_put(shard->slab, &run->result);
    drop_slots(live, part);
  }
  zps_publish_forget(live);
  zps_tensor_bury(tensor, live->round->config.step, abort);
  struct zps_live **link = &tensor->lives;
  while (*link != live) link = &(*link)->next;
  *link = live->next;
  tensor->n_lives--;
  *(live->older ? &live->older->younger : &shard->oldest) = live->younger;
  *(live->younger ? &live->younger->older : &shard->youngest) = live->older;
  shard->rounds_in_flight--;
  live->next = shard->buried;
  shard->buried = live;
}

void zps_live_bury(struct zps_shard *shard) {
  for (struct zps_live *live; (live = shard->buried) != NULL;) {
    shard->buried = live->next;
    live->next = live->tensor->free_lives;
    live->tensor->free_lives = live;
  }
}

/* ---- reads ---- */

static void read_done(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_contribution *contribution = read->ctx;
  struct zps_live *live = contribution->live;
  if (live && code == ZPS_OK) {
    contribution->is_here = true;
    live->tensor->sums.bytes_in += contribution->len_bytes;
    zps_live_step(live, &(struct zps_round_event){
                            .type = ZPS_ROUND_LANDED, .rank = contribution->rank, .part = contribution->part});
    return;
  }
  if (live) {
    zps_live_fail(live, contribution->rank, code, "cannot read the %llu bytes of its partition %u: %s",
                  (unsigned long long)contribution->len_bytes, live->tensor->partitions[contribution->part],
                  zps_err_str(code));
  }
  contribution->shard->n_orphans--; /* of a lost peer: in quarantine, which may last */
  if (code != ZPS_ERR_PEER_LOST) zps_contribution_put(contribution);
}

static void read_release(struct zps_bulk_read *read) {
  zps_contribution_put(read->ctx);
}

static void read_granted(struct zps_memory_wait *wait) {
  struct zps_contribution *contribution =
      (struct zps_contribution *)((char *)wait - offsetof(struct zps_contribution, wait));
  struct zps_bulk_read *read = &contribution->read;
  contribution->live->unsummed_bytes += contribution->buf.cap;
  contribution->data = contribution->buf.data;
  read->local = contribution->buf.data;
  read->mem = contribution->buf.mem;
  read->len = contribution->len_bytes;
  read->done = read_done;
  read->release = read_release;
  read->ctx = contribution;
  zps_bulk_start(contribution->live->tensor->job->members[contribution->rank].bulk, read);
}

static void start_read(struct zps_live *live, uint32_t rank, uint32_t part) {
  struct zps_contribution *contribution = live->slots[(size_t)part * live->round->world + rank];
  contribution->wait = (struct zps_memory_wait){.live = live,
                                                .part = part,
                                                .len_bytes = contribution->len_bytes,
                                                .is_push = true,
                                                .buf_p = &contribution->buf,
                                                .granted = read_granted};
  zps_memory_want(contribution->shard, &contribution->wait);
}

/* ---- actions ---- */

static void send_abort(struct zps_live *live, struct zps_frame_abort *abort) {
  struct zps_job *job = live->tensor->job;
  struct zps_frame frame = {.header.type = ZPS_FRAME_ABORT};
  abort->tensor = live->tensor->id;
  frame.u.abort = *abort;
  for (uint32_t rank = 0; rank < job->world; rank++)
    if (zps_round_wants_abort(live->round, rank)) zps_member_send(&job->members[rank], &frame);
  zps_log_info("%s: %s", zps_err_name(abort->code), abort->text);
}

/* By the most that its sum can take. */
static bool will_be_small(const struct zps_live *live, uint32_t part) {
  return live->parts[part].wait.len_bytes <= ZPS_WIRE_INLINE_MAX;
}

static void act(struct zps_live *live, const struct zps_round_action *action, struct zps_frame_abort *abort) {
  struct zps_tensor *tensor = live->tensor;
  switch (action->type) {
    case ZPS_ROUND_READ:
      start_read(live, action->rank, action->part);
      break;
    case ZPS_ROUND_REDUCE:
      zps_reduce_start(live, action->part);
      live->n_small += will_be_small(live, action->part);
      break;
    case ZPS_ROUND_PUBLISH:
      live->n_small -= will_be_small(live, action->part);
      zps_publish_part(live, action->part);
      break;
    case ZPS_ROUND_RETIRE:
      zps_publish_all(live);
      tensor->sums.publish_ns += zps_clock_ns() - live->published_ns;
      live_close(live, NULL);
      break;
    case ZPS_ROUND_ABORT:
      tensor->sums.aborted++;
      send_abort(live, abort);
      live_close(live, abort);
      break;
  }
}

bool zps_live_step(struct zps_live *live, const struct zps_round_event *event) {
  struct zps_round_actions actions;
  const enum zps_round_state before = live->round->state;
  zps_round_step(live->round, event, &actions);
  const enum zps_round_state after = live->round->state;
  if (before == ZPS_ROUND_COLLECTING && after != before) live->collected_ns = zps_clock_ns();
  for (unsigned i = 0; i < actions.n; i++) act(live, &actions.list[i], &actions.abort);
  return !zps_round_over(live->round);
}

bool zps_live_fail(struct zps_live *live, uint32_t rank, zps_err_t code, const char *fmt, ...) {
  char text[ZPS_WIRE_TEXT_MAX + 1];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return zps_live_step(live,
                       &(struct zps_round_event){.type = ZPS_ROUND_FAIL, .rank = rank, .code = code, .text = text});
}
