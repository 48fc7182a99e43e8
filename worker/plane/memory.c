#include "worker/plane/memory.h"

#include <inttypes.h>
#include <stdio.h>

#define ZPS_LOG_COMPONENT "plane"
#include "common/base/container.h"
#include "common/base/log.h"

/* ------------------------------------------------------------ lines */

static void refuse(const struct zps_plane_memory *memory, struct zps_plane_wait *wait, zps_err_t err) {
  char text[192];
  snprintf(text, sizeof text,
           "no registered memory for it: the limit is %" PRIu64 " bytes, %" PRIu64
           " are in use; raise ZENPS_MEMORY_LIMIT, or the limit of locked memory",
           memory->limit_bytes, zps_plane_memory_used(memory));
  wait->refused(wait, err, text);
}

/* take() may end its round, and other rounds: then the request has left the line. */
static enum zps_memory_answer ask(void *ctx, struct zps_memory_wait *common) {
  struct zps_plane_memory *memory = ctx;
  struct zps_plane_wait *wait = zps_container_of(common, struct zps_plane_wait, wait);
  const zps_err_t err = wait->take(wait);
  if (!common->is_queued) return ZPS_MEMORY_REFUSED;
  if (err == ZPS_OK) return ZPS_MEMORY_NOW;
  if (err == ZPS_ERR_AGAIN) return common->age == ZPS_LINE_PEER ? ZPS_MEMORY_PASSED : ZPS_MEMORY_LATER;
  zps_memory_cancel(&memory->lines, common);
  refuse(memory, wait, err);
  return ZPS_MEMORY_REFUSED;
}

void zps_plane_memory_init(struct zps_plane_memory *memory, struct zps_slab *slab, uint64_t limit_bytes) {
  *memory = (struct zps_plane_memory){.slab = slab, .limit_bytes = limit_bytes};
  zps_memory_init(&memory->lines, ask, memory);
}

void zps_plane_memory_want(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_wait *wait) {
  if (line != ZPS_LINE_PEER) memory->is_due = true; /* a request of that line was tried just now */
  if (wait->wait.is_queued) return;
  wait->wait = (struct zps_memory_wait){.age = line};
  zps_memory_add(&memory->lines, &wait->wait);
}

void zps_plane_memory_forget(struct zps_plane_memory *memory, struct zps_plane_wait *wait) {
  zps_memory_cancel(&memory->lines, &wait->wait);
  memory->is_due = true;
}

void zps_plane_memory_serve(struct zps_plane_memory *memory) {
  if (!memory->is_due) return;
  memory->is_due = false;
  zps_memory_serve(&memory->lines);
}

/* ------------------------------------------------------------ how much */

static uint64_t half(const struct zps_plane_memory *memory) {
  return (memory->limit_bytes - memory->left_bytes) / 2;
}

/* Half of the memory is kept for sums, unless this round is the only one that pushes. */
static bool may_push(const struct zps_plane_memory *memory, const struct zps_plane_use *used, uint64_t len_bytes) {
  return memory->used.push == used->push || memory->used.push + len_bytes <= half(memory);
}

/* Half of the memory is for the round that began first: with that it comes to its end, whatever the others hold. Rounds
 * that each have a part of what they need would wait for each other. */
static bool may_exchange(const struct zps_plane_memory *memory, const struct zps_plane_use *used, uint64_t len_bytes) {
  const uint64_t all = memory->used.push + memory->used.pull;
  return all == used->push || used->is_first || all + len_bytes <= half(memory);
}

/* No other round, and no read of a lost peer, holds memory that could come back. */
static bool is_alone(const struct zps_plane_memory *memory, enum zps_plane_line line,
                     const struct zps_plane_use *used) {
  const bool pull_alone = memory->used.pull == (line == ZPS_LINE_PULL ? used->pull : 0);
  return memory->used.push == used->push && pull_alone && memory->left_bytes == 0;
}

zps_err_t zps_plane_memory_get(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_use *used,
                               bool is_idle, uint64_t len_bytes, struct zps_buf *buf_p) {
  if (line == ZPS_LINE_PUSH && !may_push(memory, used, len_bytes)) return ZPS_ERR_AGAIN;
  if (line == ZPS_LINE_PEER && !may_exchange(memory, used, len_bytes)) return ZPS_ERR_AGAIN;
  zps_err_t err = zps_slab_get(memory->slab, (size_t)len_bytes, buf_p);
  while (err == ZPS_ERR_AGAIN && memory->reclaim && memory->reclaim(memory->reclaim_ctx))
    err = zps_slab_get(memory->slab, (size_t)len_bytes, buf_p);
  if (err != ZPS_OK) return err == ZPS_ERR_AGAIN && is_idle && is_alone(memory, line, used) ? ZPS_ERR_NOMEM : err;
  *(line == ZPS_LINE_PULL ? &used->pull : &used->push) += buf_p->cap;
  *(line == ZPS_LINE_PULL ? &memory->used.pull : &memory->used.push) += buf_p->cap;
  return ZPS_OK;
}

static void take_from(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_use *used,
                      const struct zps_buf *buf) {
  *(line == ZPS_LINE_PULL ? &used->pull : &used->push) -= buf->cap;
  *(line == ZPS_LINE_PULL ? &memory->used.pull : &memory->used.push) -= buf->cap;
  memory->is_due = true;
}

void zps_plane_memory_put(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_use *used,
                          struct zps_buf *buf) {
  if (!buf->owner) return;
  take_from(memory, line, used, buf);
  zps_slab_put(memory->slab, buf);
}

void zps_plane_memory_leave(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_use *used,
                            const struct zps_buf *buf) {
  take_from(memory, line, used, buf);
  memory->left_bytes += buf->cap;
}

void zps_plane_memory_return(struct zps_plane_memory *memory, struct zps_buf *buf) {
  memory->left_bytes -= buf->cap;
  zps_slab_put(memory->slab, buf);
  memory->is_due = true;
  if (memory->left_bytes == 0) zps_log_info("no read of a lost server or rank holds memory any more");
}

void zps_plane_memory_keep(struct zps_plane_memory *memory, const struct zps_plane_use *used, bool is_kept) {
  memory->used.push += is_kept ? -used->push : used->push;
  memory->used.pull += is_kept ? -used->pull : used->pull;
}

bool zps_plane_memory_spares(const struct zps_plane_memory *memory, uint64_t pushes_bytes, uint64_t len_bytes) {
  return memory->used.push + memory->used.pull + pushes_bytes + len_bytes <= half(memory);
}
