/*
 * Servers that are to take free places in a running job (refill.c): their answers, and their release. Any other change
 * to the job cancels the placement; it is retried later. A server that is gone, drains or refuses does not hold the
 * others up.
 */
#include "server/coordinator/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static bool is_active(const struct zps_member_joiner *joiner) {
  return joiner->server && !joiner->is_sent_away;
}

bool zps_members_refill_is_active(const struct zps_member_job *job) {
  for (uint32_t i = 0; job->joiners && i < job->n_servers; i++)
    if (is_active(&job->joiners[i])) return true;
  return false;
}

bool zps_member_job_admits(const struct zps_member_job *job, uint32_t position) {
  return job->joiners && position < job->n_servers && is_active(&job->joiners[position]);
}

uint32_t zps_member_job_since(const struct zps_member_job *job, uint32_t position) {
  if (zps_member_job_admits(job, position)) return job->joiners[position].since;
  return job->since ? job->since[position] : 0;
}

/* ------------------------------------------------------------ sent away */

/* Answers to what it was asked may be under way: until they are here it is asked nothing more. */
static void send_away(struct zps_members *members, const struct zps_member_job *job, uint32_t position,
                      const char *why) {
  struct zps_member_joiner *const joiner = &job->joiners[position];
  joiner->is_sent_away = true;
  joiner->server->n_jobs--;
  zps_members_act(
      members,
      &(struct zps_action){
          .type = ZPS_ACT_JOB_CLOSE, .client = joiner->server->client, .job = job, .position = position, .text = why});
  if (joiner->n_pending == 0 || !joiner->server->client) *joiner = (struct zps_member_joiner){.server = NULL};
}

static void settle(const struct zps_members *members, struct zps_member_job *job) {
  job->refill_ns = members->now_ns + ZPS_REFILL_SETTLE_NS;
}

void zps_members_refill_end(struct zps_members *members, struct zps_member_job *job, const char *why) {
  if (!zps_members_refill_is_active(job)) return;
  zps_log_info("job '%s': no servers take the places that are free, for now: %s", job->name, why);
  for (uint32_t i = 0; i < job->n_servers; i++)
    if (is_active(&job->joiners[i])) send_away(members, job, i, why);
  settle(members, job);
}

/* The others take their places without it. */
static void send_one_away(struct zps_members *members, struct zps_member_job *job, uint32_t position, const char *why) {
  zps_log_info("job '%s': server '%s' takes no place, for now: %s", job->name, job->joiners[position].server->name,
               why);
  send_away(members, job, position, why);
  if (!zps_members_refill_is_active(job)) settle(members, job);
}

struct zps_member_joiner *zps_member_joiner_find(const struct zps_member_job *job,
                                                 const struct zps_member_server *server) {
  for (uint32_t i = 0; job->joiners && i < job->n_servers; i++)
    if (job->joiners[i].server == server) return &job->joiners[i];
  return NULL;
}

void zps_members_refill_gone(struct zps_members *members, struct zps_member_job *job,
                             const struct zps_member_server *server) {
  struct zps_member_joiner *const joiner = zps_member_joiner_find(job, server);
  if (!joiner) return;
  const bool was_active = is_active(joiner);
  if (was_active) joiner->server->n_jobs--;
  *joiner = (struct zps_member_joiner){.server = NULL};
  if (!was_active) return;
  zps_log_info("job '%s': server '%s' takes no place, for now: it is gone", job->name, server->name);
  if (!zps_members_refill_is_active(job)) settle(members, job);
}

void zps_members_refill_drains(struct zps_members *members, struct zps_member_job *job) {
  for (uint32_t i = 0; job->joiners && i < job->n_servers; i++)
    if (is_active(&job->joiners[i]) && job->joiners[i].server->draining) send_one_away(members, job, i, "it drains");
}

/* ------------------------------------------------------------ answered */

bool zps_members_refill_answered(struct zps_members *members, struct zps_member_job *job,
                                 const struct zps_member_server *server, zps_err_t code, const char *text) {
  struct zps_member_joiner *const joiner = zps_member_joiner_find(job, server);
  if (!joiner || code == ZPS_ERR_CLOSED) return joiner;
  if (joiner->n_pending > 0) joiner->n_pending--;
  if (joiner->is_sent_away) {
    if (joiner->n_pending == 0) *joiner = (struct zps_member_joiner){.server = NULL};
  } else if (code) {
    zps_log_warn("job '%s': server %u '%s' (host %s) cannot take a place in it: %s", job->name, server->index,
                 server->name, server->host, text);
    send_one_away(members, job, (uint32_t)(joiner - job->joiners), "it could not");
  }
  return true;
}
