/* What --elastic says of a run: between how many ranks its job goes on. */
#ifndef ZPS_TOOLS_ELASTIC_H
#define ZPS_TOOLS_ELASTIC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum zps_rank_loss {
  ZPS_RANK_LOSS_AUTO, /* CONTINUE; without --elastic, FAIL */
  ZPS_RANK_LOSS_CONTINUE,
  ZPS_RANK_LOSS_RESTART,
  ZPS_RANK_LOSS_FAIL,
};

/* As the user has given them. */
struct zps_elastic_options {
  const char *range;     /* --elastic; NULL: it is not there */
  uint64_t ranks;        /* -n; 0: it is not there */
  uint64_t join_wait_ms; /* --join-wait; 0: it is not there */
  enum zps_rank_loss loss;
};

struct zps_elastic {
  unsigned min, max; /* 0: the job is not elastic */
  enum zps_rank_loss loss;
};

/* How a place's processes have ended: one that is given to ending soon after its start is not filled for ever. */
struct zps_tries {
  unsigned in_a_row; /* those that ended soon, since the last one that did not */
};

enum { ZPS_TRIES_MAX = 5, ZPS_TRIES_SOON_S = 10 };

/* ZPS_ERR_INVALID, with what would be right: "2:" is no range, -n is not within it, or an option asks for --elastic. */
zps_err_t zps_elastic_find(const struct zps_elastic_options *options, struct zps_elastic *elastic,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* A process has ended, that long after its start. Whether another one is to take its place. */
bool zps_tries_again(struct zps_tries *tries, uint64_t lived_ns);

#endif
