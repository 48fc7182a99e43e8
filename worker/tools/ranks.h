/*
 * The ranks of one run: started, and what becomes of the run when one of them is lost.
 *
 * A rank is lost when a signal kills it, or when it exits otherwise than with 0. Of a job that is not elastic that is
 * the end. An elastic one goes on with those that are left, as long as they are enough, and zenpsrun may start another
 * process in the place of the one that is lost; either way one line on stderr says so. Once a rank has ended with 0 the
 * job has done its work: one that is lost from then on is not made up for, and makes the run fail, which the others
 * still end by themselves. Single-threaded, as launch.h.
 */
#ifndef ZPS_TOOLS_RANKS_H
#define ZPS_TOOLS_RANKS_H

#include <stdbool.h>

#include "common/base/err.h"
#include "worker/tools/elastic.h"
#include "worker/tools/launch.h"

struct zps_ranks;

/* Starts the rank of the place (0, 1, ...) by zps_launch_start(), under the label. */
typedef zps_err_t (*zps_ranks_start_fn)(void *ctx, unsigned place, const char *label, const struct zps_child **child_p,
                                        struct zps_error *error);

struct zps_ranks_config {
  struct zps_launch *launch;
  unsigned n, first; /* places, and the rank of the first of them */
  struct zps_elastic elastic;
  zps_ranks_start_fn start;
  void *ctx;
};

/* Starts them all. What has been started is the launch's also on failure. */
zps_err_t zps_ranks_start(const struct zps_ranks_config *config, struct zps_ranks **ranks_p,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* To be called after zps_launch_pump(): whether those that are left are to be stopped, since one is lost that they
 * cannot go on without. */
bool zps_ranks_check(struct zps_ranks *ranks);
/* The loss that makes the run fail, as is known by now; NULL: none. */
const struct zps_child *zps_ranks_failure(const struct zps_ranks *ranks);
/* Says it on stderr, in one line. */
void zps_ranks_tell_failure(const struct zps_ranks *ranks, const struct zps_child *failed);

#endif
