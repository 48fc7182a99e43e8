#include "worker/round/arena.h"

#include <assert.h>
#include <stdlib.h>

#define CHUNK_BYTES (64u << 10)

struct zps_arena_chunk {
  struct zps_arena_chunk *next;
  _Alignas(8) unsigned char data[CHUNK_BYTES];
};

void *zps_arena_get(struct zps_arena *arena, size_t len) {
  len = (len + 7) & ~(size_t)7;
  assert(len <= CHUNK_BYTES);
  if (!arena->current || arena->used + len > CHUNK_BYTES) {
    struct zps_arena_chunk **next_p = arena->current ? &arena->current->next : &arena->first;
    if (!*next_p) {
      *next_p = malloc(sizeof **next_p);
      if (!*next_p) return NULL;
      (*next_p)->next = NULL;
    }
    arena->current = *next_p;
    arena->used = 0;
  }
  void *piece = arena->current->data + arena->used;
  arena->used += len;
  return piece;
}

void zps_arena_reset(struct zps_arena *arena) {
  arena->current = NULL;
  arena->used = 0;
}

void zps_arena_fini(struct zps_arena *arena) {
  for (struct zps_arena_chunk *chunk = arena->first, *next; chunk; chunk = next) {
    next = chunk->next;
    free(chunk);
  }
  *arena = (struct zps_arena){0};
}
