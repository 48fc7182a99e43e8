/* How a job's ranks of one host come to share memory: segment.h and neighbours.h, at the time when ranks are linked. */
#ifndef ZPS_WORKER_PLANE_SHARING_H
#define ZPS_WORKER_PLANE_SHARING_H

#include "worker/plane/shared/neighbours.h"

struct zps_join;
struct zps_join_peers;
struct zps_plane;
struct zps_worker_options;

struct zps_sharing {
  const struct zps_worker_options *options; /* borrowed */
  struct zps_neighbours_config config;      /* `near` is ours */
  int fd;                                   /* this rank's socket; -1: none */
};

/* Before this rank reports its links: a rank that has heard that all are linked finds the socket of every other one. A
 * failure is logged, and nothing is shared. */
void zps_sharing_begin(struct zps_sharing *sharing, const struct zps_worker_options *options,
                       const struct zps_join *join, const struct zps_join_peers *peers);
/* After all ranks are linked. Fails where the job does. */
zps_err_t zps_sharing_meet(struct zps_sharing *sharing, struct zps_plane *plane, struct zps_error *error) ZPS_MUSTCHECK;
void zps_sharing_fini(struct zps_sharing *sharing);

#endif
