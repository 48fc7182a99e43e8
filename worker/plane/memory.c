#include "worker/plane/memory.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/net/slab.h"

void zps_plane_memory_init(struct zps_plane_memory *memory, struct zps_slab *slab, uint64_t limit_bytes) {
  *memory = (struct zps_plane_memory){.slab = slab, .limit_bytes = limit_bytes};
  for (unsigned line = 0; line < ZPS_LINES; line++) memory->last_p[line] = &memory->first[line];
}

/* ------------------------------------------------------------ lines */

void zps_plane_memory_want(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_wait *wait) {
  if (line != ZPS_LINE_PEER) memory->is_due = true;
  if (wait->prev_p) return;
  wait->next = NULL;
  wait->prev_p = memory->last_p[line];
  *wait->prev_p = wait;
  memory->last_p[line] = &wait->next;
}

static void leave(struct zps_plane_memory *memory, struct zps_plane_wait *wait) {
  for (unsigned line = 0; line < ZPS_LINES; line++) {
    if (memory->last_p[line] == &wait->next) memory->last_p[line] = wait->prev_p;
  }
  *wait->prev_p = wait->next;
  if (wait->next) wait->next->prev_p = wait->prev_p;
  wait->prev_p = NULL;
}

void zps_plane_memory_forget(struct zps_plane_memory *memory, struct zps_plane_wait *wait) {
  if (wait->prev_p) leave(memory, wait);
  memory->is_due = true;
}

static void refuse(const struct zps_plane_memory *memory, struct zps_plane_wait *wait, zps_err_t err) {
  char text[192];
  snprintf(text, sizeof text,
           "no registered memory for it: the limit is %" PRIu64 " bytes, %" PRIu64
           " are in use; raise ZENPS_MEMORY_LIMIT, or the limit of locked memory",
           memory->limit_bytes, memory->held.push + memory->held.pull);
  wait->refused(wait, err, text);
}

static bool try_one(struct zps_plane_memory *memory, struct zps_plane_wait *wait) {
  const zps_err_t err = wait->take(wait);
  if (err == ZPS_ERR_AGAIN) return false;
  if (wait->prev_p) leave(memory, wait);
  if (err != ZPS_OK) refuse(memory, wait, err);
  return true;
}

void zps_plane_memory_serve(struct zps_plane_memory *memory) {
  while (memory->is_due) {
    memory->is_due = false;
    for (struct zps_plane_wait *wait = memory->first[ZPS_LINE_PEER], *next; wait; wait = next) {
      next = wait->next;
      try_one(memory, wait);
      if (next && !next->prev_p) { /* its round has ended with this one's */
        memory->is_due = true;
        break;
      }
    }
    for (unsigned line = ZPS_LINE_PULL; line <= ZPS_LINE_PUSH; line++) {
      while (memory->first[line])
        if (!try_one(memory, memory->first[line])) return;
    }
  }
}

/* ------------------------------------------------------------ how much */

/* Half of the memory is kept for sums, unless this round is the only one that pushes. */
static bool may_push(const struct zps_plane_memory *memory, const struct zps_plane_held *held, uint64_t len_bytes) {
  return memory->held.push == held->push || memory->held.push + len_bytes <= memory->limit_bytes / 2;
}

/* Half of the memory is for rounds that have begun: one that holds nothing yet does not take from it. */
static bool may_begin(const struct zps_plane_memory *memory, const struct zps_plane_held *held, uint64_t len_bytes) {
  const uint64_t all = memory->held.push + memory->held.pull;
  return all == held->push || held->push > 0 || all + len_bytes <= memory->limit_bytes / 2;
}

/* No other round holds memory that could come back. */
static bool is_alone(const struct zps_plane_memory *memory, enum zps_plane_line line,
                     const struct zps_plane_held *held) {
  const bool pull_alone = memory->held.pull == (line == ZPS_LINE_PULL ? held->pull : 0);
  return memory->held.push == held->push && pull_alone;
}

zps_err_t zps_plane_memory_get(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_held *held,
                               bool is_idle, uint64_t len_bytes, struct zps_buf *buf_p) {
  if (line == ZPS_LINE_PUSH && !may_push(memory, held, len_bytes)) return ZPS_ERR_AGAIN;
  if (line == ZPS_LINE_PEER && !may_begin(memory, held, len_bytes)) return ZPS_ERR_AGAIN;
  const zps_err_t err = zps_slab_get(memory->slab, (size_t)len_bytes, buf_p);
  if (err != ZPS_OK) return err == ZPS_ERR_AGAIN && is_idle && is_alone(memory, line, held) ? ZPS_ERR_NOMEM : err;
  *(line == ZPS_LINE_PULL ? &held->pull : &held->push) += buf_p->cap;
  *(line == ZPS_LINE_PULL ? &memory->held.pull : &memory->held.push) += buf_p->cap;
  return ZPS_OK;
}

void zps_plane_memory_put(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_held *held,
                          struct zps_buf *buf) {
  if (!buf->owner) return;
  *(line == ZPS_LINE_PULL ? &held->pull : &held->push) -= buf->cap;
  *(line == ZPS_LINE_PULL ? &memory->held.pull : &memory->held.push) -= buf->cap;
  zps_slab_put(memory->slab, buf);
  memory->is_due = true;
}

bool zps_plane_memory_spares(const struct zps_plane_memory *memory, uint64_t pushes_bytes, uint64_t len_bytes) {
  return memory->held.push + memory->held.pull + pushes_bytes + len_bytes <= memory->limit_bytes / 2;
}
