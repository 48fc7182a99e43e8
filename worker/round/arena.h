/* Small payloads of one round: pieces that do not move until the next round, from chunks that are kept. */
#ifndef ZPS_WORKER_ROUND_ARENA_H
#define ZPS_WORKER_ROUND_ARENA_H

#include <stddef.h>

struct zps_arena_chunk;

struct zps_arena { /* all zero: empty */
  struct zps_arena_chunk *first, *current;
  size_t used; /* of the current chunk */
};

/* 8-byte aligned; NULL when memory is short. `len` is at most 64 KiB. */
void *zps_arena_get(struct zps_arena *arena, size_t len);
/* Everything handed out is free again; the memory stays. */
void zps_arena_reset(struct zps_arena *arena);
void zps_arena_fini(struct zps_arena *arena);

#endif
