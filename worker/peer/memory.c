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
  mem->n_left = 0;
  return mem;
}

static void mem_put(struct zps_peer_round *round, struct zps_peer_mem *mem) {
  zps_plane_memory_put(&round->base.plane->memory, ZPS_LINE_PEER, &round->base.used, &mem->buf);
  mem->next_free = round->free_mems;
  round->free_mems = mem;
}

void zps_peer_mem_unref(struct zps_peer_round *round, struct zps_peer_mem *mem) {
  if (mem && --mem->refs == 0 && !mem->promised) mem_put(round, mem);
}

/* Of rounds between ranks in flight, the one that began first. */
static bool is_first(const struct zps_peer_round *round) {
  const struct zps_round *const base = &round->base;
  for (const struct zps_round *other = base->rounds->all; other; other = other->all_next)
    if (other->ops == base->ops && other->number < base->number && !zps_round_machine_over(other->machine))
      return false;
  return true;
}

static zps_err_t get_registered(struct zps_peer_round *round, uint64_t len, struct zps_peer_mem **mem_p) {
  if (len > SIZE_MAX / 2) return ZPS_ERR_NOMEM;
  struct zps_peer_mem *mem = mem_new(round);
  if (!mem) return ZPS_ERR_NOMEM;
  const bool is_idle = round->base.n_tasks == 0 && round->base.n_reads == 0;
  const bool spares = zps_plane_memory_spares(&round->base.plane->memory, 0, len);
  round->base.used.is_first = !spares && is_first(round); /* irrelevant where memory is spare */
  const zps_err_t err =
      zps_plane_memory_get(&round->base.plane->memory, ZPS_LINE_PEER, &round->base.used, is_idle, len, &mem->buf);
  if (err != ZPS_OK) {
    mem_put(round, mem);
    return err;
  }
  *mem_p = mem;
  return ZPS_OK;
}

/* The outermost JOIN of all rows that the stream is part of, for an output that has all rows, too: then they lie in its
 * room. ZPS_STREAM_NONE: there is none. */
static uint32_t whole_of(const struct zps_peer_task *task, uint64_t len) {
  const struct zps_peer_round *round = task->round;
  const struct zps_program *program = &round->program;
  const struct zps_instr *instr = &program->instrs[task->instr];
  if (len <= ZPS_WIRE_READ_BYTES || instr->type == ZPS_INSTR_JOIN) return ZPS_STREAM_NONE;
  const struct zps_stream *stream = &program->streams[instr->out];
  if (len != (stream->hi - stream->lo) * zps_peer_row_bytes(round)) return ZPS_STREAM_NONE;
  uint32_t whole = stream->whole;
  while (whole != ZPS_STREAM_NONE && program->streams[whole].whole != ZPS_STREAM_NONE)
    whole = program->streams[whole].whole;
  return whole;
}

static zps_err_t get_in_room(struct zps_peer_task *task, uint32_t whole) {
  struct zps_peer_round *round = task->round;
  const struct zps_stream *range = &round->program.streams[whole];
  const uint64_t row_bytes = zps_peer_row_bytes(round);
  struct zps_peer_stream *stream = &round->streams[whole];
  if (!stream->room) {
    const zps_err_t err = get_registered(round, (range->hi - range->lo) * row_bytes, &stream->room);
    if (err != ZPS_OK) return err;
  }
  stream->room->refs++;
  task->mem = stream->room;
  task->out = (char *)stream->room->buf.data +
              (round->program.streams[round->program.instrs[task->instr].out].lo - range->lo) * row_bytes;
  return ZPS_OK;
}

void zps_peer_room_put(struct zps_peer_round *round, uint32_t stream) {
  zps_peer_mem_unref(round, round->streams[stream].room);
  round->streams[stream].room = NULL;
}

static zps_err_t get(struct zps_peer_task *task, uint64_t len) {
  struct zps_peer_round *round = task->round;
  const uint32_t whole = whole_of(task, len);
  if (whole != ZPS_STREAM_NONE) return get_in_room(task, whole);
  /* A peer may have a small stream read, too, which takes registered memory. */
  if (len <= ZPS_WIRE_READ_BYTES && round->program.instrs[task->instr].type != ZPS_INSTR_RECV) {
    task->out = zps_arena_get(&round->base.arena, (size_t)len);
    return task->out ? ZPS_OK : ZPS_ERR_NOMEM;
  }
  const zps_err_t err = get_registered(round, len, &task->mem);
  if (err == ZPS_OK) task->out = task->mem->buf.data;
  return err;
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

/* Reads of lost ranks may still write to it, and keep it until they are over. */
static void mem_leave(struct zps_peer_round *round, struct zps_peer_mem *mem) {
  mem->owner = &round->base.plane->memory;
  zps_plane_memory_leave(mem->owner, ZPS_LINE_PEER, &round->base.used, &mem->buf);
}

void zps_peer_task_end(struct zps_peer_task *task) {
  struct zps_peer_mem *mem = task->mem;
  if (--mem->n_left == 0 && mem->owner) {
    zps_plane_memory_return(mem->owner, &mem->buf);
    free(mem);
  }
  free(task->ins);
  free(task);
}

void zps_peer_free_all(struct zps_peer_round *round) {
  zps_peer_serve_free(round);
  round->free_tasks = NULL;
  for (struct zps_peer_task *task = round->tasks; task; task = task->next) zps_peer_task_put(task);
  round->free_mems = NULL;
  for (struct zps_peer_mem **at = &round->mems, *mem; (mem = *at) != NULL;) {
    if (mem->n_left > 0) {
      *at = mem->next;
      mem_leave(round, mem);
    } else {
      mem_put(round, mem);
      at = &mem->next;
    }
  }
  while (round->unexpected) {
    struct zps_unexpected_message *message = round->unexpected;
    round->unexpected = message->next;
    free(message);
  }
  round->unexpected_tail = &round->unexpected;
  round->waiting = NULL;
  round->waiting_tail = &round->waiting;
}
