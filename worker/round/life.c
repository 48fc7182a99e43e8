#include "worker/round/round.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "worker/peer/peer.h"
#include "worker/api/job.h"
#include "worker/plane/plane.h"
#include "worker/api/request.h"
#include "worker/api/tensor.h"

/* How long the buffers of a failed round are left alone: a server that has not said what became of the round may still
 * be reading them, and must not find another round's bytes there. */
#define LINGER_NS (10 * ZPS_NS_PER_S)

static void on_begin(struct zps_command *command, void *handler_ctx);
static void on_cancel(struct zps_command *command, void *handler_ctx);

void zps_round_destroy(struct zps_round *round) {
  if (!round) return;
  round->ops->destroy(round);
  zps_device_round_fini(round);
  zps_staging_fini(round);
  zps_round_machine_destroy(round->machine);
  zps_arena_fini(&round->arena);
  free(round);
}

zps_err_t zps_round_create(struct zenps_tensor *tensor, struct zps_round **round_p) {
  struct zps_round *round = calloc(1, sizeof *round);
  if (!round) return ZPS_ERR_NOMEM;
  round->tensor = tensor;
  round->plane = &tensor->job->plane;
  round->ops = tensor->scheme ? &zps_peer_ops : &zps_served_ops;
  round->begin.run = on_begin;
  round->cancel.run = on_cancel;
  const zps_err_t err = round->ops->create(round);
  if (err != ZPS_OK) {
    zps_round_destroy(round);
    return err;
  }
  *round_p = round;
  return ZPS_OK;
}

/* ------------------------------------------------------------ tasks */

static void finish_task(struct zps_round_task *task) {
  struct zps_round *round = task->round;
  round->n_tasks--;
  zps_round_touch(round);
  if (round->has_work_error) {
    zps_round_fail(round, round->work_error.code, "%s", round->work_error.text);
  } else if (task->done) {
    task->done(task);
  }
}

static void task_done(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  finish_task(zps_container_of(command, struct zps_round_task, command));
}

static void task_run(struct zps_work *work) {
  struct zps_round_task *task = zps_container_of(work, struct zps_round_task, work);
  task->run(task);
  task->command.run = task_done;
  zps_engine_post(task->round->plane->engine, &task->command);
}

void zps_round_task_start(struct zps_round_task *task, struct zps_workpool *pool) {
  struct zps_round *round = task->round;
  round->n_tasks++;
  if (!pool) {
    task->next_here = NULL;
    *round->here_tail = task;
    round->here_tail = &task->next_here;
    zps_round_touch(round);
    return;
  }
  task->work.run = task_run;
  zps_workpool_submit(pool, &task->work);
}

void zps_round_task_run_ahead(struct zps_round_task *task) {
  task->run(task);
  task->has_run = true;
}

/* Not from where they come up: that is in the middle of a step of the scheme, which they would step again. */
static void run_here(struct zps_round *round) {
  struct zps_round_task *task = round->here;
  round->here = NULL;
  round->here_tail = &round->here;
  for (struct zps_round_task *next; task; task = next) {
    next = task->next_here;
    if (!task->has_run) task->run(task);
    task->has_run = false;
    finish_task(task);
  }
}

void zps_round_task_fail(struct zps_round_task *task, const struct zps_error *error) {
  struct zps_round *round = task->round;
  if (atomic_flag_test_and_set(&round->work_failed)) return;
  round->work_error = *error;
  round->has_work_error = true;
}

/* ------------------------------------------------------------ life */

void zps_round_setup(struct zps_round *round, zenps_request_t *request, uint64_t step, const zenps_grad_t *in,
                     zenps_grad_t *out, uint64_t timeout_ms) {
  const uint64_t now_ns = zps_clock_ns();
  round->request = request;
  round->step = step;
  round->in = *in;
  round->out = out;
  if (in->memory != ZENPS_HOST || out->memory != ZENPS_HOST) round->device = round->tensor->job->device;
  zps_staging_setup(round);
  round->start_ns = now_ns;
  round->deadline_ns = now_ns + timeout_ms * ZPS_NS_PER_MS;
  round->linger_until_ns = 0;
  round->report_at_ns = round->deadline_ns;
  round->next_buffer = 0;
  round->is_quiesced = round->finished = round->cancel_sent = round->cancel_run = false;
  round->deferred = ZPS_OK;
  round->reason.n_ranks = 0;
  round->reason.text[0] = '\0';
  round->has_work_error = false;
  atomic_flag_clear(&round->work_failed);
  round->needed = 0;
  round->announced_first_ns = round->announced_last_ns = round->result_first_ns = round->landed_last_ns = 0;
  memset(&round->stats, 0, sizeof round->stats);
  round->bound_bytes = 0;
  round->n_scans = 0;
  zps_lookahead_init(&round->lookahead, 0, 0, 0);
  round->flush_at_ns = ZPS_NEVER;
  zps_arena_reset(&round->arena);
  round->here = NULL;
  round->here_tail = &round->here;
  round->ops->reset(round);
}

void zps_round_launch(struct zps_round *round) {
  zps_engine_post(round->plane->engine, &round->begin);
}

/* The scan follows `begin` from the engine thread, so that it never reports to a round that has not begun. */
static void on_begin(struct zps_command *command, void *handler_ctx) {
  struct zps_round *round = zps_container_of(command, struct zps_round, begin);
  struct zps_plane *plane = handler_ctx;
  zps_plane_round_add(plane, round);
  zps_round_event(round, ZPS_MACHINE_START, 0, 0, ZPS_OK);
  if (plane->fail_code != ZPS_OK) {
    round->reason = plane->failure;
    zps_round_event(round, ZPS_MACHINE_FAIL, 0, 0, plane->fail_code);
    return;
  }
  struct zps_error error;
  if (zps_staging_begin(round, &error) == ZPS_OK)
    round->ops->begin(round);
  else
    zps_round_fail(round, error.code, "%s", error.text);
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
  if (!round->exchange || !round->exchange->finishing)
    zps_round_fail(round, ZPS_ERR_CANCELED, "rank %u canceled it", round->plane->rank);
  zps_round_touch(round);
}

void zps_round_put_buf(struct zps_round *round, struct zps_buf *buf, uint64_t *round_held, uint64_t *plane_held) {
  if (!buf->owner) return;
  *round_held -= buf->cap;
  *plane_held -= buf->cap;
  zps_slab_put(zps_engine_slab(round->plane->engine), buf);
  round->plane->pump = true;
}

/* Nobody refers to the round any more: back to its tensor. */
static void release(struct zps_round *round) {
  round->ops->release(round);
  zps_plane_round_remove(round->plane, round);
  zps_worker_tensor_round_put(round->tensor, round);
}

/* How long a round that is over keeps its buffers for those who have not said that they are through with them. */
static uint64_t lingers_until(const struct zps_round *round, uint64_t now_ns) {
  const uint64_t linger_ns = now_ns + LINGER_NS;
  const bool ok = round->machine->state == ZPS_MACHINE_DONE;
  return ok && round->deadline_ns > linger_ns ? round->deadline_ns : linger_ns;
}

/* Tells the request. */
static bool finish(struct zps_round *round, uint64_t now_ns) {
  struct zps_plane *plane = round->plane;
  const bool known = round->machine->state == ZPS_MACHINE_DONE || plane->closed || now_ns >= round->deadline_ns ||
                     round->ops->known(round);
  if (round->finished || round->n_tasks > 0 || !known) return false;
  if (zps_staging_deliver(round) || zps_device_round_quiesce(round)) return false;
  round->ops->explain(round);
  const bool wakes = zps_round_finish(round, now_ns);
  round->linger_until_ns = lingers_until(round, now_ns);
  if (round->linger_until_ns < plane->next_deadline_ns) plane->next_deadline_ns = round->linger_until_ns;
  return wakes;
}

/* Lets the round go when nobody needs it any more. */
static void let_go(struct zps_round *round, uint64_t now_ns) {
  /* A cancel is sent under the job's lock and never after the request is done: what is seen here stays. */
  if (!round->finished || round->n_reads > 0 || round->cancel_sent != round->cancel_run) return;
  if (round->dirty) return; /* it is in line again */
  const bool gives_up = round->plane->closed && round->machine->state == ZPS_MACHINE_FAILED;
  if (!gives_up && now_ns < round->linger_until_ns && !round->ops->quiet(round)) return;
  release(round);
}

bool zps_round_settle(struct zps_round *round, uint64_t now_ns) {
  struct zenps_job *const job = round->tensor->job;
  const bool left = round->ops->send(round, now_ns);
  run_here(round);
  if (!zps_round_machine_over(round->machine)) return left;
  const bool wakes = finish(round, now_ns);
  if (!left) let_go(round, now_ns);
  if (wakes) zps_worker_request_signal(job); /* last, so that who waits finds the job's lock free */
  return left;
}

uint64_t zps_round_tick(struct zps_round *round, uint64_t now_ns) {
  const uint64_t deadline_ns = round->machine->round.deadline_ns;
  if (!zps_round_machine_over(round->machine) && now_ns >= deadline_ns)
    zps_round_event(round, ZPS_MACHINE_TICK, 0, 0, ZPS_OK);
  if (!zps_round_machine_over(round->machine)) {
    if (now_ns >= round->flush_at_ns) zps_served_flush(round);
    return round->flush_at_ns < deadline_ns ? round->flush_at_ns : deadline_ns;
  }
  const uint64_t at_ns = round->finished ? round->linger_until_ns : round->report_at_ns;
  if (now_ns < at_ns) return at_ns;
  zps_round_touch(round);
  if (round->finished || now_ns >= round->deadline_ns) return ZPS_NEVER;
  return round->report_at_ns = round->deadline_ns;
}

void zps_round_touch(struct zps_round *round) {
  struct zps_plane *plane = round->plane;
  if (round->dirty) return;
  round->dirty = true;
  round->dirty_next = NULL;
  *plane->dirty_tail = round;
  plane->dirty_tail = &round->dirty_next;
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
    if (round->deferred == ZPS_OK) return;
    event = (struct zps_round_machine_event){.type = ZPS_MACHINE_FAIL, .code = round->deferred};
    round->deferred = ZPS_OK;
  }
}

void zps_round_fail(struct zps_round *round, zps_err_t code, const char *fmt, ...) {
  if (zps_round_machine_over(round->machine)) return;
  va_list args;
  va_start(args, fmt);
  vsnprintf(round->reason.text, sizeof round->reason.text, fmt, args);
  va_end(args);
  zps_round_event(round, ZPS_MACHINE_FAIL, 0, 0, code);
}
