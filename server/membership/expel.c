/* Ranks that an administrator expels, though they live: to their job they are lost, and they hear it. */
#include <stdio.h>
#include <string.h>

#include "server/membership/members_impl.h"

static bool is_in(const struct zps_member_job *job, uint32_t rank) {
  return rank < job->world && job->ranks[rank] && job->ranks[rank]->state <= ZPS_RANK_IN;
}

/* The youngest of this name that the rank is in; else the youngest. */
static struct zps_member_job *find(const struct zps_members *members, const char *name, uint32_t rank) {
  struct zps_member_job *found = NULL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next)
    if (strcmp(job->name, name) == 0 && (!found || is_in(job, rank) || !is_in(found, rank))) found = job;
  return found;
}

static zps_err_t not_in(const struct zps_member_job *job, uint32_t rank, struct zps_error *error) {
  if (rank >= job->world)
    return zps_fail(error, ZPS_ERR_INVALID, "job '%s' has ranks 0 to %u, and no rank %u", job->name, job->world - 1,
                    rank);
  return zps_fail(error, ZPS_ERR_REFUSED, "rank %u is not in job '%s': it %s", rank, job->name,
                  !job->ranks[rank]                          ? "has not joined"
                  : job->ranks[rank]->state == ZPS_RANK_LEFT ? "has left"
                                                             : "was lost");
}

zps_err_t zps_members_kick(struct zps_members *members, const char *name, uint32_t rank, const char *reason,
                           struct zps_member_kicked *kicked, struct zps_error *error) {
  char why[ZPS_KICK_REASON_MAX + 60];
  struct zps_member_job *const job = find(members, name, rank);
  if (!job) return zps_members_no_such_job(members, name, error);
  if (!is_in(job, rank)) return not_in(job, rank, error);
  struct zps_member_rank *const at = job->ranks[rank];
  *kicked = (struct zps_member_kicked){.job_id = job->job_id, .rank = rank, .pid = at->pid};
  snprintf(kicked->job, sizeof kicked->job, "%s", job->name);
  snprintf(kicked->host, sizeof kicked->host, "%s", at->host);
  snprintf(why, sizeof why, "an administrator expelled it: %s", reason);
  if (job->state >= ZPS_JOB_RUNNING) zps_members_expelled_add(members, job, at, why);
  zps_members_rank_expel(members, job, at, why);
  zps_members_settle(members);
  const struct zps_member_job *const left = zps_members_job_find(members, kicked->job_id);
  kicked->job_state = left ? zps_job_state_name(left->state) : "ended";
  return ZPS_OK;
}
