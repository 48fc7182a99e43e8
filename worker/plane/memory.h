/*
 * Registered memory: which request is served next, and how much a round may have. The one place that decides.
 *
 * Requests stand in one of three lines, one behind the other (common/session/memory.h). Rounds between ranks are asked
 * first, each in turn, also behind one that must go on waiting, since it may be the one whose end frees memory. Then
 * sums of servers: they end rounds, which frees memory, too. Then pushes, in the order in which rounds began to wait; a
 * round keeps its place until it has all that it needs, since two that each hold some of what there is could wait for
 * each other.
 *
 * A read from a peer that is lost may go on for as long as the peer is silent, and may write to its buffer until it
 * ends. The round goes on without that buffer, which is nobody's until then (zps_plane_memory_leave()): it takes from
 * the limit, but is no round's share of it.
 *
 * Engine thread.
 */
#ifndef ZPS_WORKER_PLANE_MEMORY_H
#define ZPS_WORKER_PLANE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/net/slab.h"
#include "common/session/memory.h"

enum zps_plane_line { ZPS_LINE_PEER, ZPS_LINE_PULL, ZPS_LINE_PUSH }; /* in the order in which they are served */

/* A request, embedded in the object that waits; `take` and `refused` are its owner's, the rest is zero at first. */
struct zps_plane_wait {
  struct zps_memory_wait wait;
  /* Takes memory with zps_plane_memory_get(). ZPS_OK: it has all it wants, and leaves the line; ZPS_ERR_AGAIN: it goes
   * on waiting; else it leaves the line, and is refused. */
  zps_err_t (*take)(struct zps_plane_wait *wait);
  /* The request is refused. `text` says why. */
  void (*refused)(struct zps_plane_wait *wait, zps_err_t err, const char *text);
};

/* Bytes of registered memory that a round holds. */
struct zps_plane_use {
  uint64_t push, pull;
  bool is_first; /* of rounds between ranks: of those in flight it began first */
};

struct zps_plane_memory { /* of a plane */
  struct zps_slab *slab;
  uint64_t limit_bytes;
  struct zps_plane_use used; /* by all rounds */
  uint64_t left_bytes;       /* in buffers that reads of lost peers may still write to */
  struct zps_memory_line lines;
  bool is_due; /* a request was added, or memory was freed */
  /* Frees some memory that is kept in case it is needed, and not counted in `used`; false: there is none. */
  bool (*reclaim)(void *ctx);
  void *reclaim_ctx;
};

/* Bytes in use, kept ones aside. */
static inline uint64_t zps_plane_memory_used(const struct zps_plane_memory *memory) {
  return memory->used.push + memory->used.pull + memory->left_bytes;
}

void zps_plane_memory_init(struct zps_plane_memory *memory, struct zps_slab *slab, uint64_t limit_bytes);
/* Stands in line; again: it keeps its place. */
void zps_plane_memory_want(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_wait *wait);
static inline bool zps_plane_memory_waits(const struct zps_plane_wait *wait) {
  return wait->wait.is_queued;
}
/* Leaves the line, if it stands in one. */
void zps_plane_memory_forget(struct zps_plane_memory *memory, struct zps_plane_wait *wait);
/* Hands out memory until nothing changes. */
void zps_plane_memory_serve(struct zps_plane_memory *memory);

/* A buffer for a round that holds `used`, by the rule of its line. ZPS_ERR_AGAIN: not now. `is_idle`: nothing of the
 * round is under way that could free memory; then ZPS_ERR_NOMEM where no other round can either. */
zps_err_t zps_plane_memory_get(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_use *used,
                               bool is_idle, uint64_t len_bytes, struct zps_buf *buf_p) ZPS_MUSTCHECK;
/* Gives back what zps_plane_memory_get() gave; nothing where there is nothing. */
void zps_plane_memory_put(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_use *used,
                          struct zps_buf *buf);
/* Gives up a buffer of a lost peer, where a read may still write to it. The round does not own it any more. It comes
 * back with zps_plane_memory_return(), when the fabric is through with it (zps_bulk_read.release). */
void zps_plane_memory_leave(struct zps_plane_memory *memory, enum zps_plane_line line, struct zps_plane_use *used,
                            const struct zps_buf *buf);
void zps_plane_memory_return(struct zps_plane_memory *memory, struct zps_buf *buf);
/* What the round holds is kept from here on, and may be reclaimed; or no longer. */
void zps_plane_memory_keep(struct zps_plane_memory *memory, const struct zps_plane_use *used, bool is_kept);
/* Whether a sum of `len_bytes` leaves the memory that a round needs which has not got `pushes_bytes` yet. */
bool zps_plane_memory_spares(const struct zps_plane_memory *memory, uint64_t pushes_bytes, uint64_t len_bytes);

#endif
