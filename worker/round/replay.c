#define ZPS_LOG_COMPONENT "replay"
#include "worker/round/replay.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "proto/control_change.h"
#include "worker/round/decided.h"
#include "worker/round/round_ends.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

static bool is_served(const struct zps_round *round) {
  return round->ops->can_give;
}

/* ------------------------------------------------------------ sums that servers keep for pulls */

void zps_replay_over(struct zps_round *round) {
  struct zps_steps_pushed *pushed = &round->tensor->pushed;
  if (!is_served(round) || !round->only_gives || round->machine->state != ZPS_MACHINE_DONE) return;
  pushed->steps[pushed->n % ZPS_STEPS_PAST] = round->step;
  pushed->epochs[pushed->n++ % ZPS_STEPS_PAST] = round->map_epoch;
}

bool zps_replay_has_lost(const struct zps_round *round) {
  const struct zps_steps_pushed *pushed = &round->tensor->pushed;
  const uint32_t n = pushed->n < ZPS_STEPS_PAST ? pushed->n : ZPS_STEPS_PAST;
  for (uint32_t i = 1; i <= n; i++) { /* the last push of the step counts */
    const uint32_t at = (pushed->n - i) % ZPS_STEPS_PAST;
    if (pushed->steps[at] == round->step) return pushed->epochs[at] < round->rounds->replay.epoch;
  }
  return false;
}

/* ------------------------------------------------------------ kept pushes */

static void list_add(struct zps_replay *replay, struct zps_round *round) {
  round->kept_next = NULL;
  round->kept_prev_p = replay->kept_tail;
  *replay->kept_tail = round;
  replay->kept_tail = &round->kept_next;
}

static void list_remove(struct zps_replay *replay, struct zps_round *round) {
  *round->kept_prev_p = round->kept_next;
  *(round->kept_next ? &round->kept_next->kept_prev_p : &replay->kept_tail) = round->kept_prev_p;
}

/* Registered memory, and that of a device. */
static uint64_t bytes_of(const struct zps_round *round) {
  return round->used.push + round->on_device_bytes;
}

/* It is the caller's to release: its owner hears that it was a kept one. */
static void unkeep(struct zps_round *round) {
  struct zps_rounds *rounds = round->rounds;
  list_remove(&rounds->replay, round);
  rounds->replay.kept_bytes -= bytes_of(round);
  zps_plane_memory_keep(&rounds->plane->memory, &round->used, false);
}

/* Nobody waits for it any more. It is kept as before. */
static void stop_giving(struct zps_round *round) {
  zps_rounds_remove(round->rounds, round);
  zps_rounds_untouch(round->rounds, round);
  round->is_giving = false;
}

static void drop(struct zps_round *round) {
  unkeep(round);
  if (round->is_giving) stop_giving(round);
  round->ops->release(round);
  round->owner->released(round);
}

/* From now on the job cannot lose even a draining server: tell the coordinator to keep its servers. */
static void hold(struct zps_rounds *rounds, const char *why) {
  struct zps_replay *replay = &rounds->replay;
  if (replay->is_held || !replay->held) return;
  replay->is_held = true;
  replay->held(replay->ctx, why);
}

static const char holds_sums[] = "servers keep sums for zenps_pull(), or pulls of named rows, which do not move";
static const char holds_pushes[] = "its pushes take more memory than it keeps of them, to push them once more";

static bool drop_oldest(struct zps_rounds *rounds) {
  struct zps_round *round = rounds->replay.kept;
  while (round && round->is_giving) round = round->kept_next;
  if (round) drop(round);
  return round;
}

static bool reclaim(void *ctx) {
  hold(ctx, holds_pushes);
  return drop_oldest(ctx);
}

void zps_replay_let_go(struct zps_round *kept) {
  hold(kept->rounds, holds_pushes);
  drop(kept);
}

void zps_replay_drop(struct zps_rounds *rounds, const struct zps_round_tensor *tensor) {
  for (struct zps_round *round = rounds->replay.kept, *next; round; round = next) {
    next = round->kept_next;
    if (tensor ? round->tensor == tensor : !round->is_giving) drop(round);
  }
  if (tensor) zps_decided_forget(rounds, tensor);
}

/* Rounds of a tensor with a quorum that are beyond those retained for late ranks. */
static uint32_t count_surplus(const struct zps_replay *replay, const struct zps_round_tensor *tensor) {
  uint32_t n = 0;
  for (const struct zps_round *round = replay->kept; round; round = round->kept_next) n += round->tensor == tensor;
  return n > ZPS_DECIDED_KEPT ? n - ZPS_DECIDED_KEPT : 0;
}

/* No rank can lack these steps: all have begun a round since that a program asks for only when it has seen them end. */
static void drop_older(struct zps_rounds *rounds, const struct zps_round *than) {
  uint32_t n_most = than->tensor->quorum > 0 ? count_surplus(&rounds->replay, than->tensor) : UINT32_MAX;
  for (struct zps_round *round = rounds->replay.kept, *next; round; round = next) {
    next = round->kept_next;
    if (n_most == 0 || round->tensor != than->tensor || round->is_giving || round->number >= than->seen_to) continue;
    drop(round);
    n_most--;
  }
}

static bool make_room(struct zps_rounds *rounds, uint64_t bytes) {
  struct zps_replay *replay = &rounds->replay;
  if (replay->kept_bytes + bytes > replay->limit_bytes) hold(rounds, holds_pushes);
  if (bytes > replay->limit_bytes) return false;
  while (replay->kept_bytes + bytes > replay->limit_bytes)
    if (!drop_oldest(rounds)) return false;
  return true;
}

/* ------------------------------------------------------------ once more */

static void give(struct zps_round *round) {
  const uint64_t now_ns = zps_clock_ns(), timeout_ns = round->deadline_ns - round->start_ns;
  round->is_giving = true;
  round->is_asked_again = false;
  round->deadline_ns = round->linger_until_ns = now_ns + timeout_ns;
  round->reason = (struct zps_frame_abort){0};
  zps_log_debug("tensor %s, step %" PRIu64 ": pushed again, for ranks that have not finished it", round->tensor->name,
                round->step);
  round->ops->give(round);
  zps_rounds_add(round->rounds, round);
  zps_replay_begin(round);
  zps_round_event(round, ZPS_MACHINE_START, 0, 0, ZPS_OK);
}

bool zps_replay_keep(struct zps_round *round) {
  struct zps_rounds *rounds = round->rounds;
  if (!is_served(round)) return false;
  const bool went_well = round->machine->state == ZPS_MACHINE_DONE;
  const bool may = went_well && rounds->fail_code == ZPS_OK && !rounds->plane->closed;
  if (round->is_giving) {
    round->is_giving = false;
    if (!may) unkeep(round);
    return may;
  }
  if (went_well) {
    zps_past_note_well(&rounds->replay.failed, round);
    zps_decided_remember(round);
    drop_older(rounds, round);
  } else {
    zps_past_note_failed(&rounds->replay.failed, round);
  }
  if (!may || !round->owner->kept || !round->ops->can_give(round)) return false;
  if (!make_room(rounds, bytes_of(round))) return false;
  list_add(&rounds->replay, round);
  rounds->replay.kept_bytes += bytes_of(round);
  zps_plane_memory_keep(&rounds->plane->memory, &round->used, true);
  round->is_kept = true;
  round->owner->kept(round);
  if (round->is_asked_again) give(round);
  return true;
}

/* ------------------------------------------------------------ the view */

void zps_replay_init(struct zps_rounds *rounds, uint64_t limit_bytes, uint64_t grace_ns) {
  struct zps_replay *replay = &rounds->replay;
  replay->limit_bytes = limit_bytes;
  replay->grace_ns = grace_ns;
  rounds->plane->memory.reclaim = reclaim;
  rounds->plane->memory.reclaim_ctx = rounds;
}

struct end_command {
  struct zps_command command;
  struct zps_replay *replay;
};

static void tell_nobody(void *ctx, const struct zps_job_steps *steps) {
  (void)ctx, (void)steps;
}

static void end_run(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct zps_replay *replay = ((struct end_command *)command)->replay;
  replay->mapped = tell_nobody;
  replay->held = NULL;
}

void zps_replay_end(struct zps_rounds *rounds) {
  struct end_command end = {.command.run = end_run, .replay = &rounds->replay};
  if (zps_engine_call(rounds->plane->engine, &end.command) != ZPS_OK)
    zps_log_warn("closing: the engine does not stop reports of steps to the coordinator");
}

static void learn(struct zps_round *round) {
  const zps_err_t err = zps_decided_find(round);
  if (err != ZPS_OK) zps_round_defer(round, ZPS_MACHINE_FAIL, 0, err);
}

/* What it was prepared with may be older than what is known now. */
void zps_replay_begin(struct zps_round *round) {
  round->map_epoch = round->rounds->replay.epoch;
  learn(round);
  if (is_served(round) && !round->is_giving && !round->ops->can_give(round)) hold(round->rounds, holds_sums);
  if (is_served(round) && round->owners != round->tensor->owners) round->ops->remap(round);
}

static void fail_all(struct zps_rounds *rounds, zps_err_t code, const char *text) {
  struct zps_frame_abort failure = {.code = code};
  snprintf(failure.text, sizeof failure.text, "%.400s", text);
  zps_rounds_fail(rounds, &failure);
}

/* The fabric has lost a server that is in. */
static bool any_lost_beside(const struct zps_plane *plane, const struct zps_view_image *view) {
  for (uint32_t s = 0; s < plane->n_servers; s++)
    if (plane->servers[s].lost && zps_view_image_is_in(view, s)) return true;
  return false;
}

static void install_place(struct zps_rounds *rounds, uint32_t s, const struct zps_place_image *place) {
  struct zps_remote *const server = &rounds->plane->servers[s];
  if (place->state != ZPS_PLACE_IN) {
    if (place->state == ZPS_PLACE_LEAVING) server->left_ns = zps_clock_ns();
    zps_plane_lose(server, "the coordinator says so");
  } else if (place->since > server->since) {
    struct zps_error error;
    const zps_err_t err = zps_plane_server_replace(rounds->plane, s, place, &error);
    if (err != ZPS_OK) fail_all(rounds, err, error.text);
  }
}

void zps_replay_view(struct zps_rounds *rounds, const struct zps_view_image *view) {
  struct zps_plane *plane = rounds->plane;
  struct zps_replay *replay = &rounds->replay;
  if (view->epoch < replay->epoch || (view->epoch == replay->epoch && !replay->is_mapping)) return;
  replay->epoch = view->epoch;
  replay->is_mapping = true;
  replay->is_said = replay->has_given_up = false;
  for (uint32_t s = 0; s < plane->n_servers; s++) install_place(rounds, s, &view->places[s]);
  if (!any_lost_beside(plane, view)) replay->lost_ns = 0; /* zps_plane_lose() has set it */
  for (uint32_t s = 0; s < plane->n_servers; s++)
    if (!plane->servers[s].lost && plane->servers[s].link) zps_link_set_epoch(plane->servers[s].link, view->epoch);
}

static bool is_open(const struct zps_round *round) {
  return is_served(round) && !round->is_giving && !zps_round_machine_over(round->machine) &&
         round->ops->can_give(round);
}

static bool is_still(const struct zps_rounds *rounds) {
  for (const struct zps_round *round = rounds->all; round; round = round->all_next)
    if (is_served(round) && !round->ops->is_still(round)) return false;
  return true;
}

/* Asking once more would not help: the job fails here at once, and elsewhere by the coordinator's word. */
static void fail_many(struct zps_rounds *rounds, struct zps_job_steps *steps) {
  char text[300];
  snprintf(text, sizeof text,
           "a server was lost, and rank %" PRIu32
           " has more steps, in flight or decided, than ranks can begin anew: " ZPS_MAP_LIMITS_FORMAT,
           rounds->plane->rank, ZPS_MAP_LIMITS);
  fail_all(rounds, ZPS_ERR_SERVER_LOST, text);
  zps_job_steps_fini(steps);
  *steps = (struct zps_job_steps){.job_id = rounds->plane->job_id, .epoch = rounds->replay.epoch, .is_too_many = true};
}

static void say(struct zps_rounds *rounds) {
  struct zps_replay *replay = &rounds->replay;
  struct zps_job_steps steps = {.job_id = rounds->plane->job_id, .epoch = replay->epoch};
  const uint64_t left_bytes = rounds->plane->memory.left_bytes;
  zps_err_t err = ZPS_OK;
  for (const struct zps_round *round = rounds->all; round && err == ZPS_OK; round = round->all_next)
    if (is_open(round)) err = zps_job_steps_add(&steps, round->tensor->id, round->step);
  if (err == ZPS_OK) err = zps_decided_report(rounds, &steps);
  replay->is_said = true;
  if (err == ZPS_ERR_INVALID) {
    fail_many(rounds, &steps);
    err = ZPS_OK;
  }
  if (left_bytes > 0)
    zps_log_info("reads of servers that were lost hold %" PRIu64 " bytes of registered memory until they end",
                 left_bytes);
  replay->mapped(replay->ctx, err == ZPS_OK ? &steps : NULL);
  zps_job_steps_fini(&steps);
}

/* ------------------------------------------------------------ the steps */

static bool is_listed(const struct zps_job_steps *steps, uint32_t tensor, uint64_t step) {
  for (uint32_t i = 0; i < steps->n_tensors; i++) {
    if (steps->tensors[i].tensor != tensor) continue;
    for (uint32_t k = 0; k < steps->tensors[i].n_steps; k++)
      if (steps->tensors[i].steps[k] == step) return true;
  }
  return false;
}

/* What is under way goes on; what is over here, and not elsewhere, is given again when nothing else uses it. */
static void go_on(struct zps_rounds *rounds, const struct zps_job_steps *steps) {
  for (struct zps_round *round = rounds->all, *next; round; round = next) {
    next = round->all_next;
    if (!is_served(round)) continue;
    if (round->is_giving && !is_listed(steps, round->tensor->id, round->step)) {
      stop_giving(round);
      continue;
    }
    if (!zps_round_machine_over(round->machine)) {
      learn(round);
      zps_decided_check_past(round);
    }
    if (!zps_round_machine_over(round->machine)) {
      if (round->map_epoch < steps->epoch) round->ops->remap(round);
    } else if (!round->is_giving) {
      round->is_asked_again = is_listed(steps, round->tensor->id, round->step);
      round->ops->outdate(round, round->is_asked_again || round->machine->code != ZPS_ERR_SERVER_LOST);
    }
    if (!zps_round_machine_over(round->machine)) round->map_epoch = steps->epoch;
    zps_round_touch(round);
  }
}

static void give_kept(struct zps_rounds *rounds, const struct zps_job_steps *steps) {
  for (struct zps_round *round = rounds->replay.kept; round; round = round->kept_next)
    if (!round->is_giving && is_listed(steps, round->tensor->id, round->step)) give(round);
}

static bool is_of(const struct zps_round *round, uint32_t tensor, uint64_t step) {
  return round->tensor->id == tensor && round->step == step && !round->only_takes;
}

/* Then the round itself gives its push, or says why it does not. */
static bool knows(const struct zps_rounds *rounds, uint32_t tensor, uint64_t step) {
  const struct zps_round *kept = rounds->replay.kept, *round = rounds->all;
  while (kept && !is_of(kept, tensor, step)) kept = kept->kept_next;
  while (round && !is_of(round, tensor, step)) round = round->all_next;
  return kept || round;
}

/* A decision goes ahead: where this rank is late, the others go on without it. */
static void refuse(struct zps_rounds *rounds, const struct zps_frame_abort *why) {
  struct zps_plane *plane = rounds->plane;
  struct zps_frame closed = {.header.type = ZPS_FRAME_CLOSED};
  struct zps_frame frame = {.header.type = ZPS_FRAME_ABORT, .u.abort = *why};
  const bool is_decided = zps_decided_closed(rounds, why->tensor, why->step, &closed.u.closed);
  for (uint32_t s = 0; s < plane->n_servers; s++) {
    if (plane->servers[s].lost) continue;
    zps_err_t err = is_decided ? zps_link_send(plane->servers[s].link, &closed) : ZPS_OK;
    if (err == ZPS_OK) err = zps_link_send(plane->servers[s].link, &frame);
    if (err != ZPS_OK)
      zps_log_warn("cannot tell server %" PRIu32 " that step %" PRIu64 " cannot be pushed again", s, why->step);
  }
}

/* The others need not wait for what will not come. */
static void refuse_others(struct zps_rounds *rounds, const struct zps_job_steps *steps) {
  struct zps_frame_abort why;
  zps_frame_abort_init(&why);
  why.code = ZPS_ERR_SERVER_LOST;
  snprintf(why.text, sizeof why.text,
           "a server was lost, and rank %" PRIu32
           " keeps its push of this step no longer, which it had finished: the memory for kept pushes is limited",
           rounds->plane->rank);
  for (uint32_t i = 0; i < steps->n_tensors; i++) {
    const struct zps_tensor_steps *of = &steps->tensors[i];
    const struct zps_round_tensor *tensor = rounds->tensor_of ? rounds->tensor_of(rounds->idle_ctx, of->tensor) : NULL;
    for (uint32_t k = 0; tensor && k < of->n_steps; k++) {
      if (!zps_past_went_well(tensor, of->steps[k]) || knows(rounds, of->tensor, of->steps[k])) continue;
      why.tensor = of->tensor;
      why.step = of->steps[k];
      refuse(rounds, &why);
    }
  }
}

/* Nor for what has failed here, also where they begin it later. */
static void refuse_failed(struct zps_rounds *rounds) {
  for (uint32_t i = 0; i < ZPS_STEPS_FAILED; i++) {
    const struct zps_step_failed *const failed = &rounds->replay.failed.steps[i];
    if (failed->code == ZPS_OK || knows(rounds, failed->tensor, failed->step)) continue;
    struct zps_frame_abort why;
    zps_frame_abort_init(&why);
    why.tensor = failed->tensor;
    why.step = failed->step;
    why.code = failed->code;
    why.ranks[why.n_ranks++] = failed->rank;
    snprintf(why.text, sizeof why.text, "on rank %" PRIu32 " this step had failed before the job's servers changed: %s",
             rounds->plane->rank, failed->text);
    refuse(rounds, &why);
  }
}

/* Servers serve rounds in the order in which they come, and only the oldest may use all of the memory: what ranks need
 * to go on must not come behind what others have begun since. */
void zps_replay_steps(struct zps_rounds *rounds, struct zps_job_steps *answer) {
  struct zps_replay *replay = &rounds->replay;
  if (!replay->is_mapping || answer->epoch != replay->epoch) return;
  replay->is_mapping = false;
  const struct zps_job_steps *const steps = zps_decided_take(rounds, answer);
  go_on(rounds, steps);
  give_kept(rounds, steps);
  zps_rounds_touched_in_order(rounds);
  refuse_others(rounds, steps);
  refuse_failed(rounds);
}

/* ------------------------------------------------------------ time */

static void give_up(struct zps_rounds *rounds) {
  struct zps_plane *plane = rounds->plane;
  rounds->replay.lost_ns = 0;
  rounds->replay.has_given_up = true;
  for (struct zps_round *round = rounds->all; round; round = round->all_next)
    for (uint32_t s = 0; s < plane->n_servers && is_served(round); s++)
      if (plane->servers[s].lost) round->ops->remote_lost(round, &plane->servers[s], plane->servers[s].why);
}

uint64_t zps_replay_tick(struct zps_rounds *rounds, uint64_t now_ns) {
  struct zps_replay *replay = &rounds->replay;
  if (replay->is_mapping && !replay->is_said) {
    if (!is_still(rounds)) return now_ns + ZPS_NS_PER_MS; /* tasks end after this */
    say(rounds);
  }
  if (replay->lost_ns == 0 || replay->is_mapping) return ZPS_NEVER;
  if (now_ns < replay->lost_ns + replay->grace_ns) return replay->lost_ns + replay->grace_ns;
  give_up(rounds);
  return ZPS_NEVER;
}
