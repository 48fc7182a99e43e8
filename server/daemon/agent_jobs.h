/*
 * The jobs and tensors that the agent has opened on the shard, and the coordinator's incarnation that had them opened.
 * A job that the coordinator does not know is closed: at once when the coordinator is the one that had it opened, since
 * it has decided so; after a grace when it has lost its memory, since the job's ranks go on without it.
 */
#ifndef ZPS_SERVER_DAEMON_AGENT_JOBS_H
#define ZPS_SERVER_DAEMON_AGENT_JOBS_H

#include "common/control/json.h"
#include "server/shard/shard.h"

struct zps_agent_job {
  uint64_t job_id;
  char name[ZPS_NAME_MAX + 1];
  uint64_t incarnation; /* Coordinator that decides on its end. 0: the next to answer a registration. */
  uint64_t orphan_ns;   /* Since when no coordinator knows it. 0: one does. */
  uint32_t *tensors;
  uint32_t n_tensors;
  uint64_t cap_tensors;
  struct zps_agent_job *next;
};

struct zps_agent_jobs {
  struct zps_shard *shard;
  struct zps_agent_job *first;
  uint32_t n;
  uint64_t incarnation; /* Coordinator that this server is registered with. 0: none yet. */
  bool is_stuck; /* the shard has not taken a call: what the coordinator wants open is no longer what is open there */
};

void zps_agent_jobs_fini(struct zps_agent_jobs *jobs);

/* Ids of all jobs, for the caller to free(); NULL when memory is short. */
uint64_t *zps_agent_jobs_list(const struct zps_agent_jobs *jobs);
/* The shard has been stuck: closes all jobs, which have missed a call. False: it is stuck still. */
bool zps_agent_jobs_restart(struct zps_agent_jobs *jobs);
/* Registered with the coordinator `incarnation`, which knows `known`. */
void zps_agent_jobs_registered(struct zps_agent_jobs *jobs, uint64_t incarnation, const uint64_t *known, uint32_t n,
                               uint64_t now_ns);
/* The connection has ended. The next jobs may come ahead of the answer to the next registration. */
void zps_agent_jobs_unregistered(struct zps_agent_jobs *jobs);
/* Closes the jobs that have been orphans for so long. */
void zps_agent_jobs_tick(struct zps_agent_jobs *jobs, uint64_t grace_ns, uint64_t now_ns);

/* ---- Of the agent's other files ---- */

/* The coordinator's calls, carried out on the jobs' shard, and noted; what is open already is not opened again.
 * ZPS_ERR_UNSUPPORTED for a method that is none. ZPS_ERR_TIMEOUT: the shard is stuck, and jobs->is_stuck is set.
 * *result_p stays NULL for an empty answer. */
zps_err_t zps_agent_carry_out(struct zps_agent_jobs *jobs, const char *method, const zps_json *params,
                              zps_json **result_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The name of the job that such a call is about, for the log; empty: none. */
void zps_agent_call_job(const struct zps_agent_jobs *jobs, const char *method, const zps_json *params,
                        char name[ZPS_NAME_MAX + 1]);
/* The answer to stats.get. */
zps_err_t zps_agent_stats(struct zps_shard *shard, zps_json **result_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
