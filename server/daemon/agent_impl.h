/* Functions that the agent's files share. */
#ifndef ZPS_SERVER_DAEMON_AGENT_IMPL_H
#define ZPS_SERVER_DAEMON_AGENT_IMPL_H

#include "common/control/json.h"
#include "server/daemon/agent_jobs.h"
#include "server/shard/shard.h"

/* The coordinator's calls, carried out on the jobs' shard, and noted; what is open already is not opened again.
 * ZPS_ERR_UNSUPPORTED for a method that is none. ZPS_ERR_TIMEOUT: the shard is stuck, and jobs->is_stuck is set.
 * *result_p stays NULL for an empty answer. */
zps_err_t zps_agent_carry_out(struct zps_agent_jobs *jobs, const char *method, const zps_json *params,
                              zps_json **result_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The answer to stats.get. */
zps_err_t zps_agent_stats(struct zps_shard *shard, zps_json **result_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
