/* The records of a journal, put together to a membership, as a coordinator does at its start and zenpsctl state check
 * does to see whether one could. */
#ifndef ZPS_SERVER_COORDINATOR_REPLAY_H
#define ZPS_SERVER_COORDINATOR_REPLAY_H

#include <stddef.h>

#include "server/coordinator/records.h"

struct zps_replay {
  struct zps_members *members; /* Without anybody in it at first. */
  const char *cluster;         /* The cluster of the journal; NULL: any. */
  uint64_t incarnation;        /* Of the header, once it was read. */
  uint64_t n;                  /* Records that were taken. */
  uint64_t now_ns;
  struct zps_error error; /* Names the first record that was not taken, and says why. */
};

/* A zps_journal_take_fn; `ctx` is a struct zps_replay. */
zps_err_t zps_replay_take(void *ctx, const char *text, size_t len) ZPS_MUSTCHECK;

#endif
