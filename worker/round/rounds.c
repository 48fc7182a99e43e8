#define ZPS_LOG_COMPONENT "rounds"
#include "worker/round/rounds.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "worker/round/decided.h"
#include "worker/round/round.h"

/* ------------------------------------------------------------ in flight */

void zps_rounds_init(struct zps_rounds *rounds, struct zps_plane *plane) {
  *rounds = (struct zps_rounds){
      .plane = plane, .dirty_tail = &rounds->dirty, .next_deadline_ns = ZPS_NEVER, .idle_at_ns = ZPS_NEVER};
  rounds->replay.kept_tail = &rounds->replay.kept;
}

void zps_rounds_fini(struct zps_rounds *rounds) {
  zps_unexpected_fini(&rounds->unexpected);
  zps_job_steps_fini(&rounds->decided);
  zps_decided_forget(rounds, NULL);
}

static struct zps_round **bucket_of(struct zps_rounds *rounds, uint32_t tensor, uint64_t step) {
  return &rounds->table[zps_hash_mix64(step ^ ((uint64_t)tensor << 40)) % ZPS_ROUNDS_BUCKETS];
}

struct zps_round *zps_rounds_find(struct zps_rounds *rounds, uint32_t tensor, uint64_t step) {
  struct zps_round *round = *bucket_of(rounds, tensor, step);
  while (round && (round->tensor->id != tensor || round->step != step)) round = round->hash_next;
  return round;
}

/* Another one of the same tensor and step. */
static struct zps_round *find_next(const struct zps_round *of) {
  struct zps_round *round = of->hash_next;
  while (round && (round->tensor->id != of->tensor->id || round->step != of->step)) round = round->hash_next;
  return round;
}

void zps_rounds_due(struct zps_rounds *rounds, uint64_t at_ns) {
  if (at_ns < rounds->next_deadline_ns) rounds->next_deadline_ns = at_ns;
}

void zps_rounds_add(struct zps_rounds *rounds, struct zps_round *round) {
  struct zps_round **bucket = bucket_of(rounds, round->tensor->id, round->step);
  round->hash_next = *bucket;
  *bucket = round;
  round->all_next = rounds->all;
  round->all_prev_p = &rounds->all;
  if (rounds->all) rounds->all->all_prev_p = &round->all_next;
  rounds->all = round;
  zps_rounds_due(rounds, round->machine->round.deadline_ns); /* the machine's, which may come before the round's own */
}

void zps_rounds_remove(struct zps_rounds *rounds, struct zps_round *round) {
  struct zps_round **at = bucket_of(rounds, round->tensor->id, round->step);
  while (*at != round) at = &(*at)->hash_next;
  *at = round->hash_next;
  *round->all_prev_p = round->all_next;
  if (round->all_next) round->all_next->all_prev_p = round->all_prev_p;
}

bool zps_rounds_is_alone(const struct zps_rounds *rounds, const struct zps_round *round) {
  for (const struct zps_round *other = rounds->all; other; other = other->all_next)
    if (other != round && !zps_round_machine_over(other->machine)) return false;
  return true;
}

void zps_round_touch(struct zps_round *round) {
  struct zps_rounds *rounds = round->rounds;
  if (round->dirty) return;
  round->dirty = true;
  round->dirty_next = NULL;
  *rounds->dirty_tail = round;
  rounds->dirty_tail = &round->dirty_next;
}

void zps_rounds_untouch(struct zps_rounds *rounds, struct zps_round *round) {
  struct zps_round **at = &rounds->dirty;
  if (!round->dirty) return;
  while (*at && *at != round) at = &(*at)->dirty_next;
  if (!*at) return;
  *at = round->dirty_next;
  if (!*at) rounds->dirty_tail = at;
  round->dirty = false;
}

/* Mostly the youngest comes first. */
void zps_rounds_touched_in_order(struct zps_rounds *rounds) {
  struct zps_round *round = rounds->dirty;
  rounds->dirty = NULL;
  for (struct zps_round *next; round; round = next) {
    struct zps_round **at = &rounds->dirty;
    next = round->dirty_next;
    while (*at && (*at)->number <= round->number) at = &(*at)->dirty_next;
    round->dirty_next = *at;
    *at = round;
  }
  rounds->dirty_tail = &rounds->dirty;
  while (*rounds->dirty_tail) rounds->dirty_tail = &(*rounds->dirty_tail)->dirty_next;
}

static void touch_all(struct zps_rounds *rounds) {
  for (struct zps_round *round = rounds->all; round; round = round->all_next) zps_round_touch(round);
}

/* ------------------------------------------------------------ together */

void zps_rounds_fail(struct zps_rounds *rounds, const struct zps_frame_abort *failure) {
  if (rounds->fail_code == ZPS_ERR_CLOSED && failure->code != ZPS_ERR_CLOSED) {
    rounds->fail_code = failure->code; /* all is over here, but what others read: nobody does any more */
    touch_all(rounds);
  }
  if (rounds->fail_code != ZPS_OK) return;
  rounds->failure = *failure;
  rounds->fail_code = failure->code;
  rounds->failed_ns = zps_clock_ns();
  for (struct zps_round *round = rounds->all; round; round = round->all_next) {
    if (zps_round_machine_over(round->machine)) continue;
    round->reason = *failure;
    zps_round_event(round, ZPS_MACHINE_FAIL, 0, 0, failure->code);
  }
  zps_replay_drop(rounds, NULL);
  touch_all(rounds); /* those that had failed before wait for other things now */
}

void zps_rounds_shut(struct zps_rounds *rounds, const struct zps_frame_abort *failure) {
  if (!rounds->must_shut) rounds->shut_failure = *failure;
  rounds->must_shut = true;
}

static void shut(struct zps_rounds *rounds) {
  const bool is_news = rounds->fail_code == ZPS_OK;
  rounds->must_shut = false;
  zps_rounds_fail(rounds, &rounds->shut_failure);
  if (is_news)
    zps_log_warn("the job fails here: %s", rounds->failure.text);
  else
    zps_log_info("the job has failed, and %s", rounds->shut_failure.text);
  zps_plane_shut(rounds->plane, "this process has shut its endpoint");
  touch_all(rounds);
}

struct close_command {
  struct zps_command command;
  struct zps_rounds *rounds;
};

static void close_run(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct zps_rounds *rounds = ((struct close_command *)command)->rounds;
  struct zps_frame_abort closed = {.code = ZPS_ERR_CLOSED};
  snprintf(closed.text, sizeof closed.text, "rank %" PRIu32 " closed the job", rounds->plane->rank);
  rounds->plane->closed = true;
  zps_rounds_fail(rounds, &closed);
  zps_replay_drop(rounds, NULL);
  touch_all(rounds);
}

void zps_rounds_close(struct zps_rounds *rounds) {
  struct close_command close = {.command.run = close_run, .rounds = rounds};
  if (zps_engine_call(rounds->plane->engine, &close.command) != ZPS_OK)
    zps_log_warn("closing: the engine cannot tell the servers");
}

/* ------------------------------------------------------------ the plane's handler */

void zps_rounds_answer_done(const struct zps_remote *rank, const struct zps_frame_abort *abort) {
  struct zps_frame frame = {.header.type = ZPS_FRAME_DONE, .u.done = {.tensor = abort->tensor, .step = abort->step}};
  if (zps_link_send(rank->link, &frame) != ZPS_OK)
    zps_log_debug("rank %" PRIu32 " is not told that step %" PRIu64 " is done", rank->index, abort->step);
}

/* Keeps a rank's frame that no round here takes until its round begins, unless that round is past. */
static void keep(struct zps_rounds *rounds, const struct zps_round *round, const struct zps_remote *from,
                 const struct zps_frame *frame) {
  struct zps_unexpected *kept = &rounds->unexpected;
  const struct zps_frame_round *messages = &frame->u.round;
  if (frame->header.type == ZPS_FRAME_ABORT) {
    if (!round && zps_unexpected_is_past(kept, frame->u.abort.tensor, frame->u.abort.step))
      zps_rounds_answer_done(from, &frame->u.abort);
    else
      zps_unexpected_abort(kept, from->index, &frame->u.abort);
    return;
  }
  for (uint32_t i = 0; frame->header.type == ZPS_FRAME_PEER && i < messages->n_slices; i++) {
    if (!zps_unexpected_is_past(kept, messages->tensor, messages->step))
      zps_unexpected_add(kept, messages->tensor, messages->step, from->index, i == 0 ? frame->len_bytes : 0,
                         &messages->slices[i]);
  }
}

static void on_frame(void *ctx, struct zps_remote *from, const struct zps_frame *frame) {
  struct zps_rounds *rounds = ctx;
  uint32_t tensor = 0;
  uint64_t step = 0;
  switch (frame->header.type) {
    case ZPS_FRAME_RESULT:
    case ZPS_FRAME_FOUND:
    case ZPS_FRAME_PEER:
      tensor = frame->u.round.tensor;
      step = frame->u.round.step;
      break;
    case ZPS_FRAME_DONE:
    case ZPS_FRAME_TAKEN:
      tensor = frame->u.done.tensor;
      step = frame->u.done.step;
      break;
    case ZPS_FRAME_CLOSED:
      tensor = frame->u.closed.tensor;
      step = frame->u.closed.step;
      break;
    default: /* ABORT, MISSED */
      tensor = frame->u.abort.tensor;
      step = frame->u.abort.step;
      break;
  }
  /* A push and a pull of a step are two rounds: a frame is for one of them, but an ABORT perhaps for both. */
  struct zps_round *const first = zps_rounds_find(rounds, tensor, step);
  bool taken = false;
  for (struct zps_round *round = first; round; round = find_next(round)) {
    taken |= round->ops->frame(round, from, frame);
    if (taken && frame->header.type != ZPS_FRAME_ABORT) return;
  }
  if (from->is_rank && !taken) keep(rounds, first, from, frame);
}

static void on_lost(void *ctx, struct zps_remote *remote, const char *why) {
  struct zps_rounds *rounds = ctx;
  if (!remote->is_rank) { /* the coordinator says what becomes of its partitions */
    if (rounds->replay.lost_ns == 0) rounds->replay.lost_ns = zps_clock_ns();
    return;
  }
  for (struct zps_round *round = rounds->all; round; round = round->all_next)
    round->ops->remote_lost(round, remote, why);
}

static void on_left(void *ctx) {
  touch_all(ctx);
}

/* ------------------------------------------------------------ the tick */

static void check_deadlines(struct zps_rounds *rounds, uint64_t now_ns) {
  if (now_ns < rounds->next_deadline_ns) return;
  uint64_t next_ns = ZPS_NEVER;
  for (struct zps_round *round = rounds->all; round; round = round->all_next) {
    const uint64_t at_ns = zps_round_tick(round, now_ns);
    if (at_ns < next_ns) next_ns = at_ns;
  }
  rounds->next_deadline_ns = next_ns;
}

static void settle_dirty(struct zps_rounds *rounds, uint64_t now_ns) {
  struct zps_round *again = NULL, **again_tail = &again;
  struct zps_round *round;
  while ((round = rounds->dirty) != NULL) {
    rounds->dirty = round->dirty_next;
    if (!rounds->dirty) rounds->dirty_tail = &rounds->dirty;
    round->dirty = false;
    if (zps_round_settle(round, now_ns) && !round->dirty) {
      round->dirty = true;
      round->dirty_next = NULL;
      *again_tail = round;
      again_tail = &round->dirty_next;
    }
  }
  while (again) { /* their frames wait for credit until the next tick */
    round = again;
    again = round->dirty_next;
    round->dirty = false;
    zps_round_touch(round);
  }
}

static uint64_t on_tick(void *ctx, uint64_t now_ns) {
  struct zps_rounds *rounds = ctx;
  struct zps_plane_memory *memory = &rounds->plane->memory;
  check_deadlines(rounds, now_ns);
  zps_rounds_due(rounds, zps_replay_tick(rounds, now_ns));
  bool has_shut;
  do { /* settling may ask for memory, or free some */
    zps_plane_memory_serve(memory);
    settle_dirty(rounds, now_ns);
    has_shut = rounds->must_shut;
    if (has_shut) shut(rounds);
  } while (memory->is_due || has_shut);
  if (now_ns >= rounds->idle_at_ns) rounds->idle_at_ns = rounds->idle(rounds->idle_ctx, now_ns);
  return rounds->idle_at_ns < rounds->next_deadline_ns ? rounds->idle_at_ns : rounds->next_deadline_ns;
}

/* While rounds are in flight. */
static bool is_read(void *ctx) {
  return ((const struct zps_rounds *)ctx)->all;
}

struct zps_plane_handler zps_rounds_handler(struct zps_rounds *rounds) {
  return (struct zps_plane_handler){.ctx = rounds,
                                    .on_frame = on_frame,
                                    .on_lost = on_lost,
                                    .on_left = on_left,
                                    .on_tick = on_tick,
                                    .is_read = is_read};
}
