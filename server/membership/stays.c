/* Reasons for a running job to keep its servers: sums that only they have, ranks that ask for it, no other server. */
#include <stdio.h>

#include "common/base/config.h"
#include "server/membership/members_impl.h"

/* Sums that servers keep for pulls would be gone. */
static const struct zps_member_tensor *find_stale(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++)
    if (job->tensors[i]->spec.staleness > 0) return job->tensors[i];
  return NULL;
}

static const struct zps_member_rank *find_holder(const struct zps_member_job *job) {
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r] && job->ranks[r]->state == ZPS_RANK_IN && job->ranks[r]->held[0]) return job->ranks[r];
  return NULL;
}

zps_err_t zps_members_held(struct zps_member_client *client, uint64_t job_id, const char *why,
                           struct zps_error *error) {
  const zps_err_t err = zps_members_running(client->job, job_id, error);
  if (!err) snprintf(client->job->ranks[client->rank]->held, ZPS_HELD_MAX + 1, "%s", why);
  return err;
}

bool zps_members_cannot_move(const struct zps_members *members, const struct zps_member_job *job,
                             struct zps_error *why) {
  const struct zps_member_tensor *const tensor = find_stale(job);
  const struct zps_member_rank *const holder = find_holder(job);
  if (!members->config.replays)
    zps_fail(why, ZPS_ERR_REFUSED, "a job goes on with other servers only where %s is replay",
             zps_config_said("coordinator.server_loss"));
  else if (tensor)
    zps_fail(why, ZPS_ERR_REFUSED, "its servers keep sums of tensor '%.100s' for pulls to come (staleness)",
             tensor->spec.name);
  else if (holder)
    zps_fail(why, ZPS_ERR_REFUSED, "rank %u: %s", holder->rank, holder->held);
  else
    return false;
  return true;
}

static bool has_others(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_server(&job->view, i) && !zps_view_server(&job->view, i)->draining) return true;
  return false;
}

bool zps_members_stays(const struct zps_members *members, const struct zps_member_job *job, struct zps_error *why) {
  if (job->state == ZPS_JOB_CLOSING)
    zps_fail(why, job->error.code, "it has failed, and waits for its ranks to leave: %.200s", job->error.text);
  else if (members->config.replays && !has_others(job))
    zps_fail(why, ZPS_ERR_REFUSED, "it has no other server that does not drain");
  else
    return zps_members_cannot_move(members, job, why);
  return true;
}

bool zps_member_job_any_away(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_server(&job->view, i) && !zps_view_server(&job->view, i)->client) return true;
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r]->state == ZPS_RANK_IN && !job->ranks[r]->client) return true;
  return false;
}
