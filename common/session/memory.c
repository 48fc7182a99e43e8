#include "common/session/memory.h"

void zps_memory_init(struct zps_memory_line *memory,
                     enum zps_memory_answer (*ask)(void *ctx, struct zps_memory_wait *wait), void *ctx) {
  *memory = (struct zps_memory_line){.ask = ask, .ctx = ctx};
}

static bool is_before(const struct zps_memory_wait *a, const struct zps_memory_wait *b) {
  return a->age != b->age ? a->age < b->age : a->part < b->part;
}

/* From the end, since most come in order. */
void zps_memory_add(struct zps_memory_line *memory, struct zps_memory_wait *wait) {
  struct zps_memory_wait *after = memory->last;
  while (after && is_before(wait, after)) after = after->prev;
  wait->prev = after;
  wait->next = after ? after->next : memory->first;
  *(after ? &after->next : &memory->first) = wait;
  *(wait->next ? &wait->next->prev : &memory->last) = wait;
  wait->is_queued = true;
}

void zps_memory_cancel(struct zps_memory_line *memory, struct zps_memory_wait *wait) {
  if (!wait->is_queued) return;
  *(wait->prev ? &wait->prev->next : &memory->first) = wait->next;
  *(wait->next ? &wait->next->prev : &memory->last) = wait->prev;
  wait->is_queued = false;
}

void zps_memory_serve(struct zps_memory_line *memory) {
  if (memory->is_serving) return;
  memory->is_serving = true;
  for (struct zps_memory_wait *wait = memory->first; wait;) {
    const enum zps_memory_answer answer = memory->ask(memory->ctx, wait);
    if (answer == ZPS_MEMORY_LATER) break;
    if (answer == ZPS_MEMORY_PASSED) {
      wait = wait->is_queued ? wait->next : memory->first;
      continue;
    }
    if (answer == ZPS_MEMORY_NOW) {
      zps_memory_cancel(memory, wait);
      if (wait->granted) wait->granted(wait);
    }
    wait = memory->first;
  }
  memory->is_serving = false;
}
