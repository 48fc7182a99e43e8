/* Where streams lie, and the tasks that make them. */
#include <stdlib.h>

#include "worker/peer/peer.h"

/* ------------------------------------------------------------ tasks */

struct zps_peer_task *zps_peer_task_get(struct zps_peer_round *exchange, uint32_t instr) {
  struct zps_peer_task *task = exchange->free_tasks;
  if (task) {
    exchange->free_tasks = task->next_free;
  } else {
    task = calloc(1, sizeof *task);
    if (!task) return NULL;
    task->next = exchange->tasks;
    exchange->tasks = task;
  }
  task->exchange = exchange;
  task->instr = instr;
  task->mem = NULL;
  task->out = NULL;
  task->reading = false;
  task->task.round = exchange->round;
  return task;
}

void zps_peer_task_put(struct zps_peer_task *task) {
  task->next_free = task->exchange->free_tasks;
  task->exchange->free_tasks = task;
}

/* ------------------------------------------------------------ memory */

static struct zps_peer_mem *mem_new(struct zps_peer_round *exchange) {
  struct zps_peer_mem *mem = exchange->free_mems;
  if (mem) {
    exchange->free_mems = mem->next_free;
  } else {
    mem = calloc(1, sizeof *mem);
    if (!mem) return NULL;
    mem->next = exchange->mems;
    exchange->mems = mem;
  }
  mem->refs = 1;
  mem->promised = false;
  return mem;
}

static void mem_put(struct zps_peer_round *exchange, struct zps_peer_mem *mem) {
  struct zps_round *round = exchange->round;
  zps_round_put_buf(round, &mem->buf, &round->push_held, &round->plane->push_held);
  mem->next_free = exchange->free_mems;
  exchange->free_mems = mem;
}

void zps_peer_mem_unref(struct zps_peer_round *exchange, struct zps_peer_mem *mem) {
  if (mem && --mem->refs == 0 && !mem->promised) mem_put(exchange, mem);
}

/* Half of the memory is for whoever has begun: a round that holds nothing yet does not take from it. */
static zps_err_t slab_get(struct zps_peer_round *exchange, uint64_t len, struct zps_buf *buf) {
  struct zps_round *round = exchange->round;
  struct zps_plane *plane = round->plane;
  const uint64_t held = plane->push_held + plane->pull_held;
  const bool alone = held == round->push_held;
  if (!alone && round->push_held == 0 && held + len > plane->memory_limit_bytes / 2) return ZPS_ERR_AGAIN;
  const zps_err_t err = zps_slab_get(zps_engine_slab(plane->engine), (size_t)len, buf);
  if (err == ZPS_OK) {
    round->push_held += buf->cap;
    plane->push_held += buf->cap;
    return err;
  }
  /* Nothing is under way that could free any. */
  return err == ZPS_ERR_AGAIN && alone && round->n_tasks == 0 && round->n_reads == 0 ? ZPS_ERR_NOMEM : err;
}

static zps_err_t get(struct zps_peer_task *task, uint64_t len) {
  struct zps_peer_round *exchange = task->exchange;
  /* A peer may have small things read, too: into registered memory. */
  if (len <= ZPS_WIRE_INLINE_MAX && exchange->program.instrs[task->instr].type != ZPS_INSTR_RECV) {
    task->out = zps_arena_get(&exchange->round->arena, (size_t)len);
    return task->out ? ZPS_OK : ZPS_ERR_NOMEM;
  }
  if (len > SIZE_MAX / 2) return ZPS_ERR_NOMEM;
  struct zps_peer_mem *mem = mem_new(exchange);
  if (!mem) return ZPS_ERR_NOMEM;
  const zps_err_t err = slab_get(exchange, len, &mem->buf);
  if (err != ZPS_OK) {
    mem_put(exchange, mem);
    return err;
  }
  task->mem = mem;
  task->out = mem->buf.data;
  return ZPS_OK;
}

zps_err_t zps_peer_get_memory(struct zps_peer_task *task, uint64_t len) {
  struct zps_peer_round *exchange = task->exchange;
  task->need_bytes = len;
  const zps_err_t err = get(task, len);
  if (err != ZPS_ERR_AGAIN) return err;
  task->next_hungry = NULL;
  *exchange->hungry_tasks_tail = task;
  exchange->hungry_tasks_tail = &task->next_hungry;
  zps_plane_wait_memory(exchange->round->plane, exchange->round);
  return err;
}

zps_err_t zps_peer_take_memory(struct zps_round *round) {
  struct zps_peer_round *exchange = round->exchange;
  while (exchange->hungry_tasks) {
    struct zps_peer_task *task = exchange->hungry_tasks;
    const zps_err_t err = get(task, task->need_bytes);
    if (err != ZPS_OK) return err;
    exchange->hungry_tasks = task->next_hungry;
    if (!exchange->hungry_tasks) exchange->hungry_tasks_tail = &exchange->hungry_tasks;
    zps_peer_start_task(task);
  }
  zps_peer_advance(exchange);
  return exchange->hungry_tasks ? ZPS_ERR_AGAIN : ZPS_OK;
}

void zps_peer_free_all(struct zps_peer_round *exchange) {
  zps_peer_serve_free(&exchange->serve);
  exchange->free_tasks = NULL;
  for (struct zps_peer_task *task = exchange->tasks; task; task = task->next) zps_peer_task_put(task);
  exchange->free_mems = NULL;
  for (struct zps_peer_mem *mem = exchange->mems; mem; mem = mem->next) mem_put(exchange, mem);
  while (exchange->unexpected) {
    struct zps_unexpected_message *message = exchange->unexpected;
    exchange->unexpected = message->next;
    free(message);
  }
  exchange->hungry_tasks = NULL;
  exchange->hungry_tasks_tail = &exchange->hungry_tasks;
}
