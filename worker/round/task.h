/*
 * Work of a round on a pool thread, reported back to the engine thread; or, where it is small, of the engine thread
 * itself.
 */
#ifndef ZPS_WORKER_ROUND_TASK_H
#define ZPS_WORKER_ROUND_TASK_H

#include <stdint.h>

#include "common/base/workpool.h"
#include "common/session/engine.h"

struct zps_round;

struct zps_round_task {
  struct zps_work work;
  struct zps_command command;
  struct zps_round *round;
  void (*run)(struct zps_round_task *task);  /* on the pool */
  void (*done)(struct zps_round_task *task); /* on the engine thread; NULL: nothing to do */
  bool is_always_done;                       /* done() is also called where a task has failed the round */
  struct zps_round_task *next_here;
  bool has_run; /* on the trainer's thread */
  uint32_t arg;
};

/* On the pool; NULL: on the engine thread, by the next settling. Engine thread. */
void zps_round_task_start(struct zps_round_task *task, struct zps_workpool *pool);
/* On the trainer's thread, before the round begins: the work is done when it is started. */
void zps_round_task_run_ahead(struct zps_round_task *task);
/* In run(): the round fails with this when the task is back. */
void zps_round_task_fail(struct zps_round_task *task, const struct zps_error *error);
/* The tasks of the engine thread. */
void zps_round_tasks_here(struct zps_round *round);

#endif
