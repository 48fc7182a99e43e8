/* A fake worker as the parts of the rig see it: shard_rig.c drives it, shard_rig_inbox.c keeps the messages to it. */
#ifndef ZPS_TESTS_SERVER_SHARD_SHARD_RIG_RANK_H
#define ZPS_TESTS_SERVER_SHARD_SHARD_RIG_RANK_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/session/checks.h"
#include "common/session/link.h"
#include "tests/unit/server/shard/shard_rig.h"

enum { RIG_BUFS_MAX = 4096 };

struct kept_abort;

/* The messages that came and were not taken yet. */
struct rig_inbox {
  pthread_mutex_t lock;
  pthread_cond_t more;
  uint32_t epoch; /* results that were announced in an earlier one are dropped */
  struct rig_result *results;
  struct kept_abort *aborts, *taken;
};

struct rig_rank {
  struct zps_engine *engine;
  struct zps_net_peer *peer;
  struct zps_link *link;
  struct zps_bulk_peer *bulk;
  const struct rig_layout *layouts[RIG_TENSORS];
  unsigned n_layouts;
  struct zps_buf bufs[RIG_BUFS_MAX];
  unsigned n_bufs;
  bool gives, overwrites;
  struct zps_checks *checks;
  struct rig_inbox inbox;
};

/* Not cmocka's: it must work on any thread. */
#define RIG_CHECK(condition)                                          \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                        \
    }                                                                 \
  } while (0)

void rig_inbox_init(struct rig_inbox *inbox);
void rig_inbox_fini(struct rig_inbox *inbox);
/* On the engine's thread, as what follows. */
void rig_inbox_set_epoch(struct rig_inbox *inbox, uint32_t epoch);
/* The engine's handler of frames; `ctx` is the rank. */
void rig_on_frame(void *ctx, const struct zps_frame *frame);

#endif
