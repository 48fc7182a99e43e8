/* The ranks' links to each other: each says when it has made its own, and hears when all have. Until then a rank must
 * not send to another one, which may have posted no receives for it. */
#include <stdio.h>
#include <string.h>

#include "server/coordinator/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static void answer(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                   zps_err_t code, const char *text) {
  void *token = rank->link_token;
  rank->link_token = NULL;
  zps_members_act(members, &(struct zps_action){.type = code ? ZPS_ACT_LINKED_FAILED : ZPS_ACT_LINKED_DONE,
                                                .client = rank->client,
                                                .token = token,
                                                .job = job,
                                                .rank = rank->rank,
                                                .code = code,
                                                .text = text});
}

void zps_members_links_fail(struct zps_members *members, struct zps_member_job *job, zps_err_t code, const char *text) {
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r] && job->ranks[r]->link_token) answer(members, job, job->ranks[r], code, text);
}

void zps_members_link_drop(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                           zps_err_t code, const char *text) {
  if (rank->link_token) answer(members, job, rank, code, text);
}

zps_err_t zps_members_linked(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                             uint64_t timeout_ms, void *token, uint64_t now_ns, struct zps_error *error) {
  struct zps_member_job *job = client->job;
  zps_err_t err = zps_members_running(job, job_id, error);
  if (err) return err;
  struct zps_member_rank *rank = job->ranks[client->rank];
  if (rank->link_token)
    return zps_fail(error, ZPS_ERR_BUSY, "rank %u of job '%s' waits for the other ranks' links already", rank->rank,
                    job->name);
  rank->link_token = token;
  rank->link_timeout_ms = timeout_ms;
  rank->link_deadline_ns = now_ns + timeout_ms * ZPS_NS_PER_MS;
  for (uint32_t r = 0; r < job->world && !job->linked; r++) {
    const struct zps_member_rank *other = job->ranks[r];
    if (other->state != ZPS_RANK_IN) {
      char text[ZPS_NAME_MAX * 2 + 64];
      snprintf(text, sizeof text, "rank %u (host %s, pid %u) has left job '%s'", r, other->host, other->pid, job->name);
      answer(members, job, rank, ZPS_ERR_MISSING, text);
      return ZPS_OK;
    }
    if (!other->link_token) return ZPS_OK;
  }
  if (!job->linked) zps_log_debug("job '%s': the %u ranks are linked to each other", job->name, job->world);
  job->linked = true;
  for (uint32_t r = 0; r < job->world; r++)
    if (job->ranks[r]->link_token) answer(members, job, job->ranks[r], ZPS_OK, NULL);
  return ZPS_OK;
}

/* "2, 5": the ranks that have not come. */
static void missing_ranks(const struct zps_member_job *job, char *buf, size_t size) {
  size_t len = 0;
  buf[0] = '\0';
  for (uint32_t r = 0; r < job->world && len + 16 < size; r++) {
    if (!job->ranks[r]->link_token) len += (size_t)snprintf(buf + len, size - len, "%s%u", len ? ", " : "", r);
  }
}

uint64_t zps_members_links_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns) {
  uint64_t deadline = ZPS_NEVER;
  if (job->state != ZPS_JOB_RUNNING || job->linked) return deadline;
  char missing[200] = "", text[600];
  for (uint32_t r = 0; r < job->world; r++) {
    struct zps_member_rank *rank = job->ranks[r];
    if (!rank->link_token) continue;
    if (rank->link_deadline_ns > now_ns) {
      if (rank->link_deadline_ns < deadline) deadline = rank->link_deadline_ns;
      continue;
    }
    /* Ranks whose time is up together do not name each other. */
    if (!missing[0]) missing_ranks(job, missing, sizeof missing);
    snprintf(text, sizeof text,
             "job '%s': after %g s these ranks have not opened a tensor with a worker-to-worker scheme: %s", job->name,
             (double)rank->link_timeout_ms / 1000, missing);
    answer(members, job, rank, ZPS_ERR_MISSING, text);
  }
  return deadline;
}
