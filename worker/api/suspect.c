#define ZPS_LOG_COMPONENT "job"
#include "worker/api/suspect.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/text.h"
#include "worker/api/job.h"

/* A round over servers is under way here. */
static bool waits(void *ctx) {
  const struct zenps_job *job = ctx;
  for (const struct zps_round *round = job->rounds.all; round; round = round->all_next)
    if (round->ops->can_give && !zps_round_machine_over(round->machine)) return true;
  return false;
}

static void suspect(void *ctx, uint32_t *servers, uint32_t n, const char *why) {
  struct zenps_job *job = ctx;
  struct zps_job_suspects suspects = {.job_id = job->join.job_id, .n_servers = n, .servers = servers};
  if (job->rounds.fail_code != ZPS_OK) return;
  snprintf(suspects.why, sizeof suspects.why, "%s", why);
  for (size_t i = 0, len = strlen(suspects.why); (i += zps_text_printable(suspects.why + i, len - i)) < len; i++)
    suspects.why[i] = '?';
  if (n > 0)
    zps_log_warn_limited("%u of %u servers cannot be reached, the first of them %s (%s): the coordinator is told",
                         (unsigned)n, (unsigned)job->join.n_places, job->join.servers[servers[0]].name, suspects.why);
  if (zps_membership_suspect(&job->membership, &suspects) != ZPS_OK)
    zps_log_info("the coordinator is out of reach, too: it is told later");
}

void zps_worker_suspect_init(struct zenps_job *job) {
  job->plane.reach = (struct zps_plane_reach){.ctx = job, .waits = waits, .suspect = suspect};
}
