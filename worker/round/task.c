#include "worker/round/task.h"

#include "common/base/container.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

static void finish(struct zps_round_task *task) {
  struct zps_round *round = task->round;
  round->n_tasks--;
  zps_round_touch(round);
  const bool has_failed = round->has_work_error;
  if (has_failed) zps_round_fail(round, round->work_error.code, "%s", round->work_error.text);
  if (task->done && (!has_failed || task->is_always_done)) task->done(task);
}

static void task_done(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  finish(zps_container_of(command, struct zps_round_task, command));
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

/* Runs tasks later than they are started: that happens in the middle of a step of the machine, which their ends would
 * step again. */
void zps_round_tasks_here(struct zps_round *round) {
  struct zps_round_task *task = round->here;
  round->here = NULL;
  round->here_tail = &round->here;
  for (struct zps_round_task *next; task; task = next) {
    next = task->next_here;
    if (!task->has_run) task->run(task);
    task->has_run = false;
    finish(task);
  }
}

void zps_round_task_fail(struct zps_round_task *task, const struct zps_error *error) {
  struct zps_round *round = task->round;
  if (atomic_flag_test_and_set(&round->work_failed)) return;
  round->work_error = *error;
  round->has_work_error = true;
}
