#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

/* How long the buffers of a failed round are left alone: a server that has not said what became of the round may still
 * be reading them, and must not find another round's bytes there. */
#define LINGER_NS (10 * ZPS_NS_PER_S)

static void on_begin(struct zps_command *command, void *handler_ctx);
static void on_begin_canceled(struct zps_command *command, void *handler_ctx);
static void on_cancel(struct zps_command *command, void *handler_ctx);

void zps_round_destroy(struct zps_round *round) {
  if (!round) return;
  round->ops->destroy(round);
  zps_round_machine_destroy(round->machine);
  zps_arena_fini(&round->arena);
  free(round);
}

zps_err_t zps_round_create(struct zps_round_tensor *tensor, const struct zps_round_owner *owner,
                           struct zps_round **round_p) {
  struct zps_round *round = calloc(1, tensor->ops->size);
  if (!round) return ZPS_ERR_NOMEM;
  round->ops = tensor->ops;
  round->tensor = tensor;
  round->rounds = tensor->rounds;
  round->plane = tensor->rounds->plane;
  round->owner = owner;
  const zps_err_t err = round->ops->create(round);
  if (err != ZPS_OK) {
    zps_round_destroy(round);
    return err;
  }
  *round_p = round;
  return ZPS_OK;
}

/* ------------------------------------------------------------ start */

/* One literal: what is not named here begins as zero. Where the round stands in its owner's list stays as it is. */
void zps_round_setup(struct zps_round *round, const struct zps_round_start *start) {
  const uint64_t now_ns = zps_clock_ns(), deadline_ns = now_ns + start->timeout_ms * ZPS_NS_PER_MS;
  zps_arena_reset(&round->arena);
  *round =
      (struct zps_round){.ops = round->ops,
                         .tensor = round->tensor,
                         .rounds = round->rounds,
                         .plane = round->plane,
                         .owner = round->owner,
                         .machine = round->machine,
                         .arena = round->arena,
                         .owners = round->tensor->owners,
                         .device = start->device ? start->device : round->device,
                         .request = start->request,
                         .step = start->step,
                         .number = start->number,
                         .seen_to = start->seen_to,
                         .start_ns = now_ns,
                         .deadline_ns = deadline_ns,
                         .report_at_ns = deadline_ns,
                         .wake_at_ns = ZPS_NEVER,
                         .in = *start->in,
                         .out = start->out,
                         .in_sections = start->in_sections,
                         .out_sections = start->out_sections,
                         .split = start->split,
                         .only_gives = start->only_gives,
                         .only_takes = start->only_takes,
                         .wants = start->wants,
                         .into = start->into,
                         .seeks = start->seeks,
                         .staleness = start->staleness,
                         .sum_step = start->step,
                         .is_absent = start->in->layout == ZENPS_ROWS && start->in->nnz == 0 && !start->in->contributes,
                         .contributors = -1,
                         .sent = start->sent,
                         .in_union = start->in_union,
                         .here_tail = &round->here,
                         .work_failed = ATOMIC_FLAG_INIT,
                         .begin.run = start->is_canceled ? on_begin_canceled : on_begin,
                         .cancel.run = on_cancel,
                         .tensor_next = round->tensor_next,
                         .tensor_prev_p = round->tensor_prev_p};
  round->ops->setup(round);
}

void zps_round_launch(struct zps_round *round) {
  zps_engine_post(round->plane->engine, &round->begin);
}

/* The scan follows `begin` from the engine thread, so that it never reports to a round that has not begun. */
static void on_begin(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct zps_round *round = zps_container_of(command, struct zps_round, begin);
  const struct zps_rounds *rounds = round->rounds;
  zps_rounds_add(round->rounds, round);
  zps_replay_begin(round);
  zps_round_event(round, ZPS_MACHINE_START, 0, 0, ZPS_OK);
  if (rounds->fail_code == ZPS_OK) {
    round->ops->begin(round);
    return;
  }
  round->reason = rounds->failure;
  zps_round_event(round, ZPS_MACHINE_FAIL, 0, 0, rounds->fail_code);
}

/* Nothing of another rank's can come in between: it is canceled in any case, and the others hear of it. */
static void on_begin_canceled(struct zps_command *command, void *handler_ctx) {
  struct zps_round *round = zps_container_of(command, struct zps_round, begin);
  on_begin(command, handler_ctx);
  zps_round_fail(round, ZPS_ERR_CANCELED, "rank %u canceled it", round->plane->rank);
  zps_round_touch(round);
}

void zps_round_cancel(struct zps_round *round) {
  if (round->cancel_sent) return;
  round->cancel_sent = true;
  zps_engine_post(round->plane->engine, &round->cancel);
}

/* A round that the other ranks know to be done here cannot be taken back. */
static void on_cancel(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct zps_round *round = zps_container_of(command, struct zps_round, cancel);
  round->cancel_run = true;
  if (!round->committed) zps_round_fail(round, ZPS_ERR_CANCELED, "rank %u canceled it", round->plane->rank);
  zps_round_touch(round);
}

/* ------------------------------------------------------------ end */

/* How long a round that is over keeps its buffers for servers and ranks that have not said that they are through with
 * them. */
static uint64_t lingers_until(const struct zps_round *round, uint64_t now_ns) {
  const uint64_t linger_ns = now_ns + LINGER_NS;
  const bool ok = round->machine->state == ZPS_MACHINE_DONE;
  return ok && round->deadline_ns > linger_ns ? round->deadline_ns : linger_ns;
}

/* Tells the request. That of a pull, which another of the same step may follow, when no frames are `left`. */
static bool finish(struct zps_round *round, bool left, uint64_t now_ns) {
  const bool known = round->machine->state == ZPS_MACHINE_DONE || round->plane->closed ||
                     now_ns >= round->deadline_ns || round->ops->known(round);
  if (round->finished || round->n_tasks > 0 || !known) return false;
  if (round->only_takes && left && now_ns < round->deadline_ns) return false;
  if (round->ops->gives_back && !round->ops->gives_back(round, now_ns)) return false;
  if (round->ops->deliver(round) || zps_round_deal(round)) return false;
  round->ops->explain(round);
  zps_replay_over(round);
  const bool wakes = zps_round_finish(round, now_ns);
  round->linger_until_ns = lingers_until(round, now_ns);
  zps_rounds_due(round->rounds, round->linger_until_ns);
  return wakes;
}

/* Lets the round go when no task, read or other process needs it any more. */
static void let_go(struct zps_round *round, uint64_t now_ns) {
  /* A cancel is sent under the job's lock and never after the request is done: cancel_sent no longer changes here. */
  if (!round->finished || round->n_reads > 0 || round->cancel_sent != round->cancel_run) return;
  if (round->dirty) return; /* it is in line again */
  const bool gives_up = round->plane->closed && round->machine->state == ZPS_MACHINE_FAILED;
  if (!gives_up && now_ns < round->linger_until_ns && !round->ops->quiet(round)) return;
  zps_rounds_remove(round->rounds, round);
  if (zps_replay_keep(round)) return;
  round->ops->release(round);
  round->owner->released(round);
}

bool zps_round_settle(struct zps_round *round, uint64_t now_ns) {
  const struct zps_round_owner *owner = round->owner;
  const struct zps_round_tensor *tensor = round->tensor;
  const bool left = round->ops->send(round, now_ns);
  zps_round_tasks_here(round);
  if (!zps_round_machine_over(round->machine)) return left;
  const bool wakes = finish(round, left, now_ns);
  if (!left) let_go(round, now_ns);
  if (wakes) owner->wake(tensor);
  return left;
}

uint64_t zps_round_tick(struct zps_round *round, uint64_t now_ns) {
  const uint64_t deadline_ns = round->machine->round.deadline_ns;
  if (!zps_round_machine_over(round->machine) && now_ns >= deadline_ns)
    zps_round_event(round, ZPS_MACHINE_TICK, 0, 0, ZPS_OK);
  if (!zps_round_machine_over(round->machine)) {
    if (now_ns >= round->wake_at_ns) round->ops->wake(round);
    return round->wake_at_ns < deadline_ns ? round->wake_at_ns : deadline_ns;
  }
  const uint64_t at_ns = round->finished ? round->linger_until_ns : round->report_at_ns;
  if (now_ns < at_ns) return at_ns;
  zps_round_touch(round);
  if (!round->finished && now_ns >= round->deadline_ns && round->owner->expired) round->owner->expired(round);
  if (round->finished || now_ns >= round->deadline_ns) return ZPS_NEVER;
  return round->report_at_ns = round->deadline_ns;
}

/* ------------------------------------------------------------ events and actions */

void zps_round_event(struct zps_round *round, enum zps_round_machine_event_type type, uint32_t partition,
                     uint32_t server, zps_err_t code) {
  struct zps_round_machine *machine = round->machine;
  struct zps_round_machine_event event = {.type = type, .partition = partition, .server = server, .code = code};
  zps_round_touch(round);
  for (;;) {
    zps_round_machine_step(machine, &event, zps_clock_ns());
    for (uint32_t i = 0; i < machine->n_actions; i++) round->ops->act(round, &machine->actions[i]);
    if (!round->has_deferred) return;
    event = round->deferred;
    round->has_deferred = false;
  }
}

void zps_round_defer(struct zps_round *round, enum zps_round_machine_event_type type, uint32_t partition,
                     zps_err_t code) {
  if (round->has_deferred && round->deferred.type == ZPS_MACHINE_FAIL) return;
  round->has_deferred = true;
  round->deferred = (struct zps_round_machine_event){.type = type, .partition = partition, .code = code};
}

void zps_round_fail(struct zps_round *round, zps_err_t code, const char *fmt, ...) {
  if (zps_round_machine_over(round->machine)) return;
  va_list args;
  va_start(args, fmt);
  vsnprintf(round->reason.text, sizeof round->reason.text, fmt, args);
  va_end(args);
  zps_round_event(round, ZPS_MACHINE_FAIL, 0, 0, code);
}
