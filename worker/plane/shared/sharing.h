/* How a job's ranks of one host come to share memory: segment.h and neighbours.h, at the time when ranks are linked. */
#ifndef ZPS_WORKER_PLANE_SHARED_SHARING_H
#define ZPS_WORKER_PLANE_SHARED_SHARING_H

#include "worker/plane/shared/neighbours.h"

struct zenps_job;

struct zps_sharing {
  struct zps_neighbours_config config; /* `near` is ours */
  int fd;                              /* where others find us; -1: nobody is to */
};

/* Ahead of the time when all ranks are told that all are linked, so that whoever comes after it finds us. What does not
 * work is logged, and nothing is shared. */
void zps_sharing_begin(struct zenps_job *job, struct zps_sharing *sharing);
/* After it. Fails where the job does. */
zps_err_t zps_sharing_meet(struct zenps_job *job, struct zps_sharing *sharing, struct zps_error *error) ZPS_MUSTCHECK;
void zps_sharing_fini(struct zps_sharing *sharing);

#endif
