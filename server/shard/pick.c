#include "server/shard/pick.h"

#include <stdlib.h>

#include "common/base/container.h"
#include "common/codec/runs.h"
#include "server/shard/job.h"
#include "server/shard/pull.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

/* Fewer bytes are copied before another thread has woken up. */
enum { SMALL_BYTES = 32 << 10, SMALL_ROWS = 32 << 10 };

struct zps_pick_task {
  struct zps_work work;
  struct zps_command command;
  struct zps_pick_task *next; /* free */
  struct zps_shard *shard;
  struct zps_pick *pick;     /* NULL: forgotten */
  struct zps_shard_sum *sum; /* picked from */
  struct zps_slice_view view;
  struct zps_index_run *runs; /* the pick's */
  uint32_t n_runs;
  unsigned codecs;
  uint32_t inline_bytes;     /* the tensor's */
  struct zps_buffer indices; /* scratch */
  struct zps_buf buf;
  struct zps_checks *checks; /* of the job */
  zps_err_t code;
  struct zps_picked picked;
  uint64_t checksum;
};

static void task_put(struct zps_pick_task *task) {
  zps_checks_unref(task->checks);
  zps_shard_sum_unref(&task->sum);
  free(task->runs);
  task->next = task->shard->free_picks;
  task->shard->free_picks = task;
}

static struct zps_pick_task *task_get(struct zps_shard *shard) {
  struct zps_pick_task *task = shard->free_picks;
  struct zps_buffer indices = {0};
  if (task) {
    shard->free_picks = task->next;
    indices = task->indices;
  } else if (!(task = malloc(sizeof *task))) {
    return NULL;
  }
  *task = (struct zps_pick_task){.shard = shard, .indices = indices};
  return task;
}

void zps_picks_free(struct zps_shard *shard) {
  for (struct zps_pick_task *task; (task = shard->free_picks) != NULL;) {
    shard->free_picks = task->next;
    zps_buffer_fini(&task->indices);
    free(task);
  }
}

/* On the pool, or the engine thread. */
static void pick_rows(struct zps_pick_task *task) {
  task->code =
      zps_pick(&task->view, task->runs, task->n_runs, task->codecs, &task->indices, task->buf.data, &task->picked);
  if (task->code == ZPS_OK && task->picked.len_bytes > task->inline_bytes)
    task->checksum = zps_checks_sum(task->checks, task->buf.data, (size_t)task->picked.len_bytes);
}

static void finish(struct zps_pick_task *task) {
  struct zps_pick *pick = task->pick;
  struct zps_shard_sum *sum = NULL;
  task->shard->n_picking--;
  if (pick) pick->task = NULL;
  if (pick && task->code == ZPS_OK) task->code = zps_shard_sum_get(task->shard, &sum);
  if (sum) {
    sum->buf = task->buf;
    sum->codec = task->picked.codec;
    sum->nnz = task->picked.nnz;
    sum->len_bytes = task->picked.len_bytes;
    sum->is_inline = sum->len_bytes <= task->inline_bytes;
    sum->checksum = task->checksum;
  } else {
    zps_slab_put(task->shard->slab, &task->buf);
  }
  const zps_err_t code = task->code;
  task_put(task);
  if (pick) zps_pull_picked(pick, code, sum);
}

static void on_picked(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  finish(zps_container_of(command, struct zps_pick_task, command));
}

static void run(struct zps_work *work) {
  struct zps_pick_task *task = zps_container_of(work, struct zps_pick_task, work);
  pick_rows(task);
  zps_engine_post(task->shard->engine, &task->command); /* it may be gone from here on */
}

static void granted(struct zps_memory_wait *wait) {
  struct zps_pick *pick = zps_container_of(wait, struct zps_pick, wait.memory);
  struct zps_shard_round *round = pick->wait.round;
  const struct zps_tensor *tensor = round->tensor;
  struct zps_shard *shard = tensor->job->shard;
  struct zps_pick_task *task = task_get(shard);
  if (!task) {
    zps_slab_put(shard->slab, &pick->buf);
    zps_pull_picked(pick, ZPS_ERR_NOMEM, NULL);
    return;
  }
  task->work.run = run;
  task->command.run = on_picked;
  task->pick = pick;
  task->sum = zps_shard_sum_ref(round->sums[pick->part]);
  task->view = zps_shard_sum_view(tensor, pick->part, task->sum);
  task->runs = pick->runs;
  task->n_runs = pick->n_runs;
  task->codecs = tensor->codecs;
  task->inline_bytes = tensor->inline_bytes;
  task->checks = zps_checks_ref(tensor->job->checks);
  task->buf = pick->buf;
  pick->runs = NULL;
  pick->buf = (struct zps_buf){0};
  pick->task = task;
  shard->n_picking++;
  if (wait->len_bytes > SMALL_BYTES || task->view.z > SMALL_ROWS) {
    zps_workpool_submit_for(shard->pool, tensor->job->flow, &task->work, wait->len_bytes);
    return;
  }
  pick_rows(task);
  finish(task);
}

void zps_pick_start(struct zps_pick *pick) {
  struct zps_shard_round *round = pick->pull->round;
  const struct zps_tensor *tensor = round->tensor;
  struct zps_shard_sum *sum = round->sums[pick->part];
  if (pick->n_rows == tensor->sizes[pick->part]) {
    zps_pull_picked(pick, ZPS_OK, zps_shard_sum_ref(sum));
    return;
  }
  const struct zps_slice_view view = zps_shard_sum_view(tensor, pick->part, sum);
  pick->wait = (struct zps_shard_wait){.round = round,
                                       .is_answer = true,
                                       .memory = {.part = pick->part,
                                                  .len_bytes = zps_pick_bound(tensor->codecs, &view, pick->n_rows),
                                                  .buf_p = &pick->buf,
                                                  .granted = granted}};
  zps_shard_memory_want(tensor->job->shard, &pick->wait);
}

void zps_pick_forget(struct zps_pick *pick) {
  struct zps_shard *shard = pick->pull->shard;
  zps_memory_cancel(&shard->memory, &pick->wait.memory);
  if (pick->task) pick->task->pick = NULL;
  pick->task = NULL;
  free(pick->runs);
  pick->runs = NULL;
}
