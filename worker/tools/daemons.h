/*
 * The coordinator and the servers of one run: started, and looked after.
 *
 * A server that ends is told of in one line on stderr, with what has become of the job, and another one is started in
 * its place: jobs that begin from then on have it. It takes the place's number and its turn: server 1, server 1-2, ...
 * Where a server cannot start, or the job has failed, the run is to end. A coordinator that is killed is told of
 * likewise, and another one takes over what it knew, at its address. Single-threaded, as launch.h.
 */
#ifndef ZPS_TOOLS_DAEMONS_H
#define ZPS_TOOLS_DAEMONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_daemons;
struct zps_launch;
struct zps_tls;

/* All strings are borrowed, for as long as there are daemons. */
struct zps_daemons_config {
  const char *zenpsd; /* the daemon's program; NULL: beside this one, else from PATH */
  const char *listen; /* where the coordinator listens; NULL: at a Unix socket in the run's folder */
  const char *reach;  /* where all others find it; NULL: there. Both or none are NULL */
  const char *provider, *interface, *log_level; /* interface: may be NULL */
  const char *token_key; /* file of keys that ranks are let in by; NULL: the run has its own, if `listen` is NULL */
  struct zps_tls *tls;   /* to ask the coordinator with; NULL: none. Daemons read the environment's files */
  unsigned n_servers;
  uint64_t start_timeout_ms;
  bool goes_on; /* a job that loses a server goes on with the others; else it fails, and so does the run;
                 * and likewise one that loses its coordinator */
  bool elastic; /* a job that fails may have a successor, over servers that are there by then */
};

/* Starts them all, and waits for the coordinator. ZPS_ERR_CANCELED: *asked_to_stop_p is the signal. What has been
 * started is the launch's also on failure. */
zps_err_t zps_daemons_start(struct zps_launch *launch, const struct zps_daemons_config *config,
                            struct zps_daemons **daemons_p, int *asked_to_stop_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
const char *zps_daemons_address(const struct zps_daemons *daemons); /* of the coordinator */
/* For ZENPS_TOKEN_FILE of the ranks; NULL: they need none. */
const char *zps_daemons_token_file(const struct zps_daemons *daemons);
/* To be called after zps_launch_pump(). Not ZPS_OK: a daemon has ended, and the run cannot go on. NULL is allowed. */
zps_err_t zps_daemons_check(struct zps_daemons *daemons, struct zps_error *error) ZPS_MUSTCHECK;
/* zps_daemons_check() for a rank that has failed while no other runs. Ranks may learn of a server's end before this
 * process does: when a rank has failed the job, this waits for the server's end, a second at most. */
zps_err_t zps_daemons_await(struct zps_daemons *daemons, struct zps_error *error) ZPS_MUSTCHECK;
/* When they have ended. NULL is allowed. */
void zps_daemons_destroy(struct zps_daemons *daemons);

#endif
