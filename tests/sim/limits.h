/* What one job may take of a server and of the coordinator: job.max_memory, job.max_rounds, job.max_tensors. They hold
 * for all jobs alike: one that needs more by the plan is limited, and its steps may end with ERR_QUOTA; no other's may.
 */
#ifndef ZPS_TESTS_SIM_LIMITS_H
#define ZPS_TESTS_SIM_LIMITS_H

#include "tests/sim/plan.h"

struct sim_process;

/* By dice: makes some job need more than others, and sets a limit between. */
void sim_plan_limit(struct sim_plan *plan);
/* 0: there is no limit of this sort. */
uint64_t sim_limit_most(const struct sim_plan *plan, enum sim_limit limit);
/* Whether the job may be told ERR_QUOTA. */
bool sim_job_is_limited(const struct sim_plan *plan, uint32_t job);
/* Whether it needs more tensors than it may have. */
bool sim_job_lacks_tensors(const struct sim_plan *plan, uint32_t job);
/* Whether the text of an ERR_QUOTA says which limit it is, the limit, and what it does not suffice for. */
bool sim_quota_is_told(const struct sim_plan *plan, const char *text);
/* Accounts of jobs that servers of this process have opened, and in which bytes are still taken. */
uint32_t sim_accounts_left(const struct sim_process *process);

#endif
