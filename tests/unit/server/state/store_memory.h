/* A store's backend in memory, whose process can die: what was written and not synced is lost then, from some byte on.
 */
#ifndef ZPS_TESTS_SERVER_STATE_STORE_MEMORY_H
#define ZPS_TESTS_SERVER_STATE_STORE_MEMORY_H

#include "server/state/store.h"

struct store_memory {
  struct zps_store_backend backend; /* zeroed at first, see store_memory_init() */
  char data[1 << 20];
  size_t len, durable;
  unsigned n_writes, n_syncs, n_replaced;
  bool fails; /* the next sync, and all after it */
};

void store_memory_init(struct store_memory *memory);
/* Ends the process. `kept` bytes of what was not durable are there after all. */
void store_memory_die(struct store_memory *memory, size_t kept);

#endif
