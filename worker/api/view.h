/*
 * The job's view, as this rank has it: the servers, and the partitions' owners in its tensors. worker/round/replay.h
 * has what becomes of rounds.
 */
#ifndef ZPS_WORKER_API_VIEW_H
#define ZPS_WORKER_API_VIEW_H

#include "proto/control_change.h"
#include "worker/round/tensor.h"

struct zenps_job;
struct zenps_tensor;

/* A table of owners; those before it are in use by rounds that began with them. */
struct zps_owner_table {
  struct zps_owner_table *next;
  uint32_t owners[];
};

/* The job's servers are known, and connected: a view that came before that is installed now. */
void zps_worker_view_connected(struct zenps_job *job);
void zps_worker_view_free(struct zenps_job *job);
/* Installs a view of the coordinator's. The view that the job has, and an older one, change nothing. On the control
 * thread. */
void zps_worker_view(struct zenps_job *job, const struct zps_view_image *view);
/* On the control thread. */
void zps_worker_replay(struct zenps_job *job, const struct zps_job_steps *steps);
/* On the engine thread. */
void zps_worker_mapped(void *job, const struct zps_job_steps *steps); /* see zps_replay */
void zps_worker_hold(void *job, const char *why);
struct zps_round_tensor *zps_worker_served_tensor(void *job, uint32_t tensor);

/* The owners that the coordinator has named, which it copies. False: no memory. */
bool zps_worker_owners_set(struct zenps_tensor *tensor, const uint32_t *owners);
/* Under the job's lock: before others see the tensor. Servers that are not in by then own nothing of it. ZPS_ERR_NOMEM.
 */
zps_err_t zps_worker_owners_remap(struct zenps_tensor *tensor) ZPS_MUSTCHECK;
void zps_worker_owners_free(struct zenps_tensor *tensor);

#endif
