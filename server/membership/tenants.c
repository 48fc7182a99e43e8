/* The jobs that one tenant may have. A client's certificate, token, or else address names its tenant. */
#include "common/base/config.h"
#include "server/membership/elastic.h"

zps_err_t zps_members_tenant_may_begin(const struct zps_members *members, const struct zps_member_client *client,
                                       const char *name, struct zps_error *error) {
  const uint32_t max_waiting = members->config.max_waiting, max_jobs = members->config.max_jobs;
  uint32_t n_own = 0, n_waiting = 0;
  for (const struct zps_member_job *job = members->jobs; job; job = job->next) {
    if (!zps_origin_is(&job->tenant, &client->tenant)) continue;
    n_own++;
    n_waiting += job->state == ZPS_JOB_JOINING;
  }
  for (const struct zps_member_elastic *elastic = members->elastics; elastic; elastic = elastic->next)
    n_waiting +=
        elastic->askers && !elastic->job && !elastic->forming && zps_origin_is(&elastic->tenant, &client->tenant);
  if (max_waiting && n_waiting >= max_waiting)
    return zps_fail(error, ZPS_ERR_QUOTA,
                    "job '%.60s': %u jobs of its certificate, token or address wait for ranks or servers, and %u may "
                    "(%s)",
                    name, n_waiting, max_waiting, zps_config_said("job.max_waiting"));
  const uint32_t n_others = members->n_jobs - n_own, share = n_others < max_jobs ? (max_jobs - n_others + 1) / 2 : 0;
  if (!client->has_share || members->n_jobs >= max_jobs || n_own < share) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_QUOTA,
                  "job '%.60s': there are %u jobs of its certificate or token, and there may be %u: half of the jobs "
                  "that others leave of %u",
                  name, n_own, share, max_jobs);
}
