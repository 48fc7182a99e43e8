/* Joins that wait: for the other ranks, for servers, for the servers' answers; or until their time is up. */
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

void zps_members_join_drop(struct zps_members *members, struct zps_member_job *job, uint32_t r, zps_err_t code,
                           const char *text) {
  if (!job->error.code) zps_fail(&job->error, code, "%s", text);
  zps_members_seat_leave(members, job->ranks[r], false);
  zps_members_join_answer(members, job, job->ranks[r], code, text);
  free(job->ranks[r]);
  job->ranks[r] = NULL;
  job->n_joined--;
}

void zps_members_job_drop_joins(struct zps_members *members, struct zps_member_job *job, zps_err_t code,
                                const char *text) {
  uint32_t left = job->n_joined;
  for (uint32_t r = 0; left; r++) {
    if (!job->ranks[r]) continue;
    left--;
    zps_members_join_drop(members, job, r, code, text);
  }
}

/* "2, 5-7": the ranks that have not joined. */
static void missing_ranks(const struct zps_member_job *job, char *buf, size_t size) {
  buf[0] = '\0';
  for (uint32_t r = 0, last; r < job->world; r = last + 1) {
    last = r;
    if (job->ranks[r]) continue;
    while (last + 1 < job->world && !job->ranks[last + 1]) last++;
    if (strlen(buf) + 32 > size) {
      zps_text_add(buf, size, ", ...");
      return;
    }
    zps_text_add(buf, size, "%s%u", buf[0] ? ", " : "", r);
    if (last > r) zps_text_add(buf, size, "-%u", last);
  }
}

static void timeout_text(const struct zps_members *members, const struct zps_member_job *job,
                         const struct zps_member_rank *rank, struct zps_error *error) {
  const double seconds = (double)rank->timeout_ms / 1000;
  if (job->n_joined < job->world) {
    char missing[200];
    missing_ranks(job, missing, sizeof missing);
    zps_fail(error, ZPS_ERR_MISSING, "job '%s': after %g s %u of %u ranks had not joined: %s", job->name, seconds,
             job->world - job->n_joined, job->world, missing);
  } else if (job->state == ZPS_JOB_OPENING) {
    zps_fail(error, ZPS_ERR_MISSING, "job '%s': all %u ranks joined, but after %g s %u of %u servers had not opened it",
             job->name, job->world, seconds, job->n_pending, job->view.n_places);
  } else {
    unsigned draining = 0;
    for (unsigned i = 0; i < members->n_servers; i++) draining += members->servers[i]->draining;
    const uint32_t need = members->config.min_servers ? members->config.min_servers : 1;
    zps_fail(error, ZPS_ERR_MISSING,
             "job '%s': all %u ranks joined, but after %g s there were %u servers of the %u needed (and %u draining)",
             job->name, job->world, seconds, members->n_servers - draining, need, draining);
  }
}

uint64_t zps_members_joins_expire(struct zps_members *members, struct zps_member_job *job) {
  const uint64_t now_ns = members->now_ns;
  uint64_t deadline = ZPS_NEVER;
  if (job->state > ZPS_JOB_OPENING || zps_members_job_is_opened(job)) return deadline;
  /* Ranks whose time is up together are told which ranks were missing at that time, so they do not name each other. */
  struct zps_error error;
  bool known = false;
  uint32_t left = job->n_joined;
  for (uint32_t r = 0; left; r++) {
    struct zps_member_rank *rank = job->ranks[r];
    if (!rank) continue;
    left--;
    if (!zps_members_is_due(rank->deadline_ns, now_ns, &deadline)) continue;
    if (!known) {
      timeout_text(members, job, rank, &error);
      zps_log_failure(ZPS_LOG_WARN, &error);
      known = true;
    }
    if (job->state == ZPS_JOB_OPENING || job->generation.number > 0) { /* no other will come for it */
      zps_members_job_drop_joins(members, job, error.code, error.text);
      return ZPS_NEVER;
    }
    zps_members_join_drop(members, job, r, error.code, error.text);
  }
  return deadline;
}
