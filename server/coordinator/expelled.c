/* Processes that an administrator has expelled: they are known again, by the places that they had, when they call as
 * the ranks that they were. The last ones are, until the coordinator ends. */
#include <stdio.h>

#include "server/coordinator/members_impl.h"

void zps_members_expelled_add(struct zps_members *members, const struct zps_member_job *job,
                              const struct zps_member_rank *rank, const char *reason) {
  struct zps_member_expelled *const last = &members->expelled[members->n_expelled++ % ZPS_EXPELLED_MAX];
  *last = (struct zps_member_expelled){.job_id = job->job_id, .rank = rank->rank, .secret = rank->secret};
  snprintf(last->why, sizeof last->why, "%s", reason);
}

zps_err_t zps_members_may_be_back(const struct zps_members *members, uint64_t job_id, uint32_t rank, uint64_t secret,
                                  struct zps_error *error) {
  for (unsigned i = 0; i < ZPS_EXPELLED_MAX && i < members->n_expelled; i++) {
    const struct zps_member_expelled *const one = &members->expelled[i];
    if (one->job_id != job_id || one->rank != rank || (secret && one->secret != secret)) continue;
    return zps_fail(error, ZPS_ERR_REFUSED, "this process was rank %u of job 0x%016llx, and is in it no longer: %s",
                    rank, (unsigned long long)job_id, one->why);
  }
  return ZPS_OK;
}
