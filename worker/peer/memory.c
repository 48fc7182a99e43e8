/* Where streams lie, and the tasks that make them. */
#include <stdlib.h>

#include "common/base/container.h"
#include "worker/peer/peer.h"

/* ------------------------------------------------------------ tasks */

struct zps_peer_task *zps_peer_task_get(struct zps_peer_round *round, uint32_t instr) {
  struct zps_peer_task *task = round->free_tasks;
  if (task) {
    round->free_tasks = task->next_free;
  } else {
    task = calloc(1, sizeof *task);
    if (!task) return NULL;
    task->next = round->tasks;
    round->tasks = task;
  }
  task->round = round;
  task->instr = instr;
  task->mem = NULL;
  task->out = NULL;
  task->reading = false;
  task->task.round = &round->base;
  return task;
}

void zps_peer_task_put(struct zps_peer_task *task) {
  task->next_free = task->round->free_tasks;
  task->round->free_tasks = task;
}

/* ------------------------------------------------------------ memory */

static struct zps_peer_mem *mem_new(struct zps_peer_round *round) {
  struct zps_peer_mem *mem = round->free_mems;
  if (mem) {
    round->free_mems = mem->next_free;
  } else {
    mem = calloc(1, sizeof *mem);
    if (!mem) return NULL;
    mem->next = round->mems;
    round->mems = mem;
  }
  mem->refs = 1;
  mem->promised = false;
  return mem;
}

static void mem_put(struct zps_peer_round *round, struct zps_peer_mem *mem) {
  zps_plane_memory_put(&round->base.plane->memory, ZPS_LINE_PEER, &round->base.held, &mem->buf);
  mem->next_free = round->free_mems;
  round->free_mems = mem;
}

void zps_peer_mem_unref(struct zps_peer_round *round, struct zps_peer_mem *mem) {
  if (mem && --mem->refs == 0 && !mem->promised) mem_put(round, mem);
}

static zps_err_t get(struct zps_peer_task *task, uint64_t len) {
  struct zps_peer_round *round = task->round;
  /* A peer may have a small stream read, too, which takes registered memory. */
  if (len <= ZPS_WIRE_INLINE_MAX && round->program.instrs[task->instr].type != ZPS_INSTR_RECV) {
    task->out = zps_arena_get(&round->base.arena, (size_t)len);
    return task->out ? ZPS_OK : ZPS_ERR_NOMEM;
  }
  if (len > SIZE_MAX / 2) return ZPS_ERR_NOMEM;
  struct zps_peer_mem *mem = mem_new(round);
  if (!mem) return ZPS_ERR_NOMEM;
  const bool is_idle = round->base.n_tasks == 0 && round->base.n_reads == 0;
  const zps_err_t err =
      zps_plane_memory_get(&round->base.plane->memory, ZPS_LINE_PEER, &round->base.held, is_idle, len, &mem->buf);
  if (err != ZPS_OK) {
    mem_put(round, mem);
    return err;
  }
  task->mem = mem;
  task->out = mem->buf.data;
  return ZPS_OK;
}

zps_err_t zps_peer_get_memory(struct zps_peer_task *task, uint64_t len) {
  struct zps_peer_round *round = task->round;
  task->need_bytes = len;
  const zps_err_t err = get(task, len);
  if (err != ZPS_ERR_AGAIN) return err;
  task->next_waiting = NULL;
  *round->waiting_tail = task;
  round->waiting_tail = &task->next_waiting;
  zps_plane_memory_want(&round->base.plane->memory, ZPS_LINE_PEER, &round->wait);
  return err;
}

zps_err_t zps_peer_take_memory(struct zps_plane_wait *wait) {
  struct zps_peer_round *round = zps_container_of(wait, struct zps_peer_round, wait);
  while (round->waiting) {
    struct zps_peer_task *task = round->waiting;
    const zps_err_t err = get(task, task->need_bytes);
    if (err != ZPS_OK) return err;
    round->waiting = task->next_waiting;
    if (!round->waiting) round->waiting_tail = &round->waiting;
    zps_peer_start_task(task);
  }
  zps_peer_due(round);
  return ZPS_OK;
}

void zps_peer_no_memory_left(struct zps_plane_wait *wait, zps_err_t err, const char *text) {
  zps_round_fail(&zps_container_of(wait, struct zps_peer_round, wait)->base, err, "%s", text);
}

void zps_peer_free_all(struct zps_peer_round *round) {
  zps_peer_serve_free(round);
  round->free_tasks = NULL;
  for (struct zps_peer_task *task = round->tasks; task; task = task->next) zps_peer_task_put(task);
  round->free_mems = NULL;
  for (struct zps_peer_mem *mem = round->mems; mem; mem = mem->next) mem_put(round, mem);
  while (round->unexpected) {
    struct zps_unexpected_message *message = round->unexpected;
    round->unexpected = message->next;
    free(message);
  }
  round->waiting = NULL;
  round->waiting_tail = &round->waiting;
}
