/*
 * What one job may take of a server: memory and rounds in flight. Counted is what grows with what ranks ask for: links,
 * tensors with their statistics, rounds, small contributions, rows that pulls name, and registered buffers of pushes
 * and sums.
 *
 * A job that has used up its quota waits for what it gets back by itself, and others do not wait with it (memory.c).
 * Where nothing comes back, what it asked for ends with ZPS_ERR_QUOTA and both numbers.
 */
#ifndef ZPS_SERVER_SHARD_QUOTA_H
#define ZPS_SERVER_SHARD_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_job;

/* Of each job, on this server; 0: no bound. */
struct zps_quota {
  uint64_t memory_bytes; /* job.max_memory */
  uint64_t rounds;       /* job.max_rounds */
};

/* Counts `bytes` more of the job's, for `what` ("its links to 8 ranks"); or ZPS_ERR_QUOTA, and nothing is counted. */
zps_err_t zps_quota_take(struct zps_job *job, uint64_t bytes, const char *what, struct zps_error *error) ZPS_MUSTCHECK;
/* Counts `bytes` more for rows that the job's pulls name. They take half of server.memory_limit at most, of all jobs
 * together, and a job may have no more of them than it leaves to others: a quarter by itself, and less beside others
 * that name rows. So there is always room for one more job. ZPS_ERR_NOMEM, ZPS_ERR_QUOTA: nothing is counted. */
zps_err_t zps_quota_take_wants(struct zps_job *job, uint64_t bytes, struct zps_error *error) ZPS_MUSTCHECK;
void zps_quota_give_wants(struct zps_job *job, uint64_t bytes);
/* The job has no more rounds in flight than it may, with another one: else ZPS_ERR_QUOTA. */
zps_err_t zps_quota_round(const struct zps_job *job, struct zps_error *error) ZPS_MUSTCHECK;
/* Whether `bytes` more fit into the job's memory; with `is_half`, whether half of what its links and tensors leave
 * would then be free. */
bool zps_quota_fits(const struct zps_job *job, uint64_t bytes, bool is_half);

#endif
