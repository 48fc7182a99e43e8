/*
 * Ranks of a job that are lost, leave, are away or come back. Each event writes facts; a settle does what follows from
 * them. A rank's process is known again by its secret.
 */
#include <stdio.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* ------------------------------------------------------------ gone */

/* A rank of a job that has run is gone, in peace or not. */
static void rank_gone(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                      zps_err_t code, const char *text) {
  rank->state = code == ZPS_ERR_CLOSED ? ZPS_RANK_LEFT : ZPS_RANK_LOST;
  *(code == ZPS_ERR_CLOSED ? &job->n_left : &job->n_lost) += 1;
  job->n_joined--;
  zps_members_note(members, .type = ZPS_NOTE_RANK, .job = job, .rank = rank->rank);
  if (rank->client) {
    zps_members_tensors_fail(members, job, rank->client, code, text);
    rank->client->job = NULL;
  } else {
    members->n_away--;
  }
  zps_members_groups_drop(members, job, rank->rank, false, code, text);
  rank->client = NULL;
  job->version++;
  if (job->n_joined)
    zps_members_act_servers(
        members, job, (struct zps_action){.type = ZPS_ACT_RANK_GONE, .rank = rank->rank, .code = code, .text = text});
}

void zps_members_rank_lost(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                           const char *reason) {
  zps_log_about(.job = job->name, ZPS_LOG_RANK(rank->rank));
  struct zps_error error;
  zps_fail(&error, ZPS_ERR_PEER_LOST, "job '%s': rank %u (host %s, pid %u) was lost: %s", job->name, rank->rank,
           rank->host, rank->pid, reason);
  zps_log_failure(ZPS_LOG_WARN, &error);
  zps_members_seat_leave(members, rank, true);
  if (job->state == ZPS_JOB_JOINING && job->generation.number == 0) {
    zps_members_join_drop(members, job, rank->rank, error.code, error.text);
  } else if (job->state <= ZPS_JOB_OPENING) {
    zps_members_job_drop_joins(members, job, error.code, error.text);
  } else {
    rank_gone(members, job, rank, error.code, error.text);
    zps_members_job_break(job, error.code, rank->rank, error.text);
  }
}

/* It is told itself, since its connection may stand; the others are as of any rank. */
void zps_members_rank_expel(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                            const char *reason) {
  zps_log_about(.job = job->name, ZPS_LOG_RANK(rank->rank), .code = ZPS_ERR_PEER_LOST);
  struct zps_error error;
  zps_fail(&error, ZPS_ERR_PEER_LOST, "job '%s': rank %u (host %s, pid %u) was lost: %s", job->name, rank->rank,
           rank->host, rank->pid, reason);
  zps_log_warn("audit: job=%s rank=%u host=%s pid=%u is expelled: %s", job->name, rank->rank, rank->host, rank->pid,
               reason);
  if (job->state >= ZPS_JOB_RUNNING) {
    if (rank->client) zps_members_tensors_fail(members, job, rank->client, error.code, error.text);
    zps_members_groups_drop(members, job, rank->rank, true, error.code, error.text);
  }
  if (job->state == ZPS_JOB_RUNNING) /* in other states it knows already why the job failed, or its join reports it */
    zps_members_act(members, .type = ZPS_ACT_JOB_FAILED, .client = rank->client, .job = job, .rank = rank->rank,
                    .code = error.code, .text = error.text);
  zps_members_rank_lost(members, job, rank, reason);
}

static zps_err_t leave(struct zps_members *members, struct zps_member_client *client, uint64_t job_id, bool moves,
                       struct zps_error *error) {
  struct zps_member_job *job = client->job;
  if (!job || job->job_id != job_id || job->state < ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection has not joined job 0x%016llx", (unsigned long long)job_id);
  struct zps_member_rank *rank = job->ranks[client->rank];
  char text[ZPS_NAME_MAX * 2 + 64];
  snprintf(text, sizeof text, "rank %u (host %s, pid %u) left the job", rank->rank, rank->host, rank->pid);
  if (moves)
    zps_members_elastic_left(members, job, rank->rank); /* Record first: if the journal loses its tail here,
                                                           the rank simply has not left. */
  rank_gone(members, job, rank, ZPS_ERR_CLOSED, text);
  if (job->state == ZPS_JOB_RUNNING)
    zps_members_act_ranks(members, job, (struct zps_action){.type = ZPS_ACT_RANK_LEFT, .rank = rank->rank});
  return ZPS_OK;
}

zps_err_t zps_members_leave(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                            struct zps_error *error) {
  return leave(members, client, job_id, false, error);
}

zps_err_t zps_members_move_on(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                              struct zps_error *error) {
  return leave(members, client, job_id, true, error);
}

/* ------------------------------------------------------------ away, and back */

void zps_members_rank_away(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                           uint64_t until_ns, const char *reason) {
  zps_log_about(.job = job->name, ZPS_LOG_RANK(rank->rank));
  zps_log_info("job '%s': rank %u (host %s, pid %u) is away: %s", job->name, rank->rank, rank->host, rank->pid, reason);
  zps_members_tensors_fail(members, job, rank->client, ZPS_ERR_CLOSED, reason);
  zps_members_groups_drop(members, job, rank->rank, true, ZPS_ERR_CLOSED, reason);
  job->version++;
  rank->client->job = NULL;
  rank->client = NULL;
  rank->until_ns = until_ns;
  members->n_away++;
}

void zps_members_rank_resume(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                             struct zps_member_client *client) {
  if (rank->client == client) return;
  if (rank->client) zps_members_rank_away(members, job, rank, 0, "it is back over another connection");
  rank->client = client;
  rank->origin = client->origin;
  if (!job->origin.is_known) job->origin = client->origin; /* this coordinator has started again */
  client->job = job;
  client->rank = rank->rank;
  rank->notified = ZPS_NOTIFIED_NOTHING;
  rank->has_change = false;
  members->n_away--;
  zps_log_about(.job = job->name, ZPS_LOG_RANK(rank->rank));
  zps_log_info("job '%s': rank %u (host %s, pid %u) is back", job->name, rank->rank, rank->host, rank->pid);
  if (job->state == ZPS_JOB_CLOSING) {
    uint32_t lost = 0;
    while (lost < job->world && job->ranks[lost]->state != ZPS_RANK_LOST) lost++;
    zps_members_act(members, .type = ZPS_ACT_JOB_FAILED, .client = client, .job = job,
                    .rank = lost < job->world ? lost : ZPS_NO_RANK, .code = job->error.code, .text = job->error.text);
    return;
  }
  for (uint32_t r = 0; r < job->world; r++) {
    if (job->ranks[r]->state != ZPS_RANK_LEFT) continue;
    zps_members_act(members, .type = ZPS_ACT_RANK_LEFT, .client = client, .job = job, .rank = r);
  }
}

zps_err_t zps_members_resume(struct zps_members *members, struct zps_member_client *client,
                             const struct zps_resume_spec *spec, struct zps_error *error) {
  const zps_err_t err = zps_members_may_be_back(members, spec->job_id, spec->rank, spec->secret, error);
  if (err) return err;
  struct zps_member_job *const job = zps_members_job_find(members, spec->job_id);
  struct zps_member_rank *const rank = job && spec->rank < job->world ? job->ranks[spec->rank] : NULL;
  if (!job || job->state < ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "there is no job 0x%016llx any more", (unsigned long long)spec->job_id);
  if (!rank || !rank->secret || rank->secret != spec->secret)
    return zps_fail(error, ZPS_ERR_REFUSED, "job '%s': rank %u is another process", job->name, spec->rank);
  if (rank->state == ZPS_RANK_LEFT)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s': rank %u has left it", job->name, spec->rank);
  if (rank->state == ZPS_RANK_LOST)
    return zps_fail(error, ZPS_ERR_PEER_LOST, "job '%s': rank %u was taken for lost meanwhile: %s", job->name,
                    spec->rank, job->error.text);
  if (client->server || (client->job && (client->job != job || client->rank != spec->rank)))
    return zps_fail(error, ZPS_ERR_BUSY, "this connection is another's already: one server or rank a connection");
  zps_members_rank_resume(members, job, rank, client);
  return ZPS_OK;
}
