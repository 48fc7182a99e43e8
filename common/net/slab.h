/*
 * Registered buffers in size classes, so that nothing on the data path registers memory.
 *
 * get/put belong to the progress thread; the bytes may be used by any thread in between. Classes are powers of two from
 * 4 KiB up (small ones carved out of slabs, large ones registered alone). Slabs have 1 MiB, or less where the limit is
 * small, so that buffers of few classes never take the memory of all. Freed large buffers are kept up to
 * `cache_bytes` and then released, and registrations that were not used for ZPS_SLAB_IDLE_NS are, too (sooner for a
 * while after zps_slab_trim()); the total never exceeds `limit_bytes` (ZPS_ERR_AGAIN: come back when something was put;
 * ZPS_ERR_NOMEM: it will not fit even then).
 *
 * A key that a peer was given reads all of its registration. So what peers of different jobs are told of lies in arenas
 * of their own: a registration has buffers of one arena alone, and goes with it, never to another one. Slabs of an
 * arena begin with 64 KiB and double up to 1 MiB, so that many small jobs take little.
 */
#ifndef ZPS_NET_SLAB_H
#define ZPS_NET_SLAB_H

#include "common/base/account.h"
#include "common/base/clock.h"
#include "common/net/net.h"

#define ZPS_SLAB_IDLE_NS (30 * ZPS_NS_PER_S)

struct zps_slab;
struct zps_slab_arena;

struct zps_buf {
  void *data;                    /* 64-byte aligned */
  size_t cap;                    /* at least the bytes asked for */
  const struct zps_net_mem *mem; /* contains data */
  uint64_t addr;                 /* the address that a peer passes to read `data` */
  uint64_t key;
  struct zps_net_keys more;
  void *owner; /* the slab's */
  struct zps_account *account;
};

struct zps_slab_stats {
  uint64_t in_use_bytes, cached_bytes; /* together: what is registered */
  uint64_t high_water_bytes;           /* the most that was ever registered */
};

zps_err_t zps_slab_create(struct zps_net *net, uint64_t limit_bytes, uint64_t cache_bytes,
                          struct zps_slab **slab_p) ZPS_MUSTCHECK;
/* The net was closed, and the registrations with it: from here on buffers are only put back, never handed out. Without
 * this call zps_slab_destroy() comes before zps_net_close(). */
void zps_slab_net_closed(struct zps_slab *slab);
/* All buffers must have been put, except quarantined ones, which are leaked with a warning. NULL is allowed. */
void zps_slab_destroy(struct zps_slab *slab);
/* Sets the source of memory, to which it also goes back, from here on: where `get` returns NULL, the process's own
 * memory is taken, as without this call. Idle memory is given up at once. `memory` must outlive the slab. */
struct zps_slab_memory {
  void *(*get)(void *ctx, size_t bytes); /* aligned to 4 KiB */
  void (*put)(void *ctx, void *data, size_t bytes);
  void *ctx;
};
void zps_slab_set_memory(struct zps_slab *slab, const struct zps_slab_memory *memory);
zps_err_t zps_slab_get(struct zps_slab *slab, size_t len, struct zps_buf *buf_p) ZPS_MUSTCHECK;
/* On somebody's behalf: `account`, which may be NULL, holds the bytes of an arena's buffers until they are put. */
zps_err_t zps_slab_arena_open(struct zps_slab *slab, struct zps_account *account,
                              struct zps_slab_arena **arena_p) ZPS_MUSTCHECK;
/* There are no more buffers to be had from it. Its registrations go, and their keys with them, one with each call of
 * zps_slab_age(), those that are in use when they are not any more. NULL is allowed. */
void zps_slab_arena_close(struct zps_slab_arena *arena);
/* The bytes of its buffers that are in use: changes until the arena is closed. */
const uint64_t *zps_slab_arena_used(const struct zps_slab_arena *arena);
zps_err_t zps_slab_get_for(struct zps_slab_arena *arena, size_t len, struct zps_buf *buf_p) ZPS_MUSTCHECK;
/* How many bytes a buffer for `len` has. */
uint64_t zps_slab_bytes(size_t len);
/* Zeroes *buf; a zeroed buf is allowed. */
void zps_slab_put(struct zps_slab *slab, struct zps_buf *buf);
/* Takes the time, and gives back a registration that was idle too long, or whose arena is closed; one a call, because
 * that takes a while. Returns the time of the next call that it needs; ZPS_NEVER while nothing is idle. */
uint64_t zps_slab_age(struct zps_slab *slab, uint64_t now_ns);
/* For the next ZPS_SLAB_IDLE_NS, registrations without a user are kept for `keep_ns`. */
void zps_slab_trim(struct zps_slab *slab, uint64_t keep_ns);
void zps_slab_stats(const struct zps_slab *slab, struct zps_slab_stats *stats_p);

#endif
