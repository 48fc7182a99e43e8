/* Facts about a job that events of several kinds write. A settle does what follows from them. */
#include <stdio.h>
#include <string.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

void zps_members_job_break(struct zps_member_job *job, zps_err_t code, uint32_t lost_rank, const char *text) {
  if (job->state != ZPS_JOB_RUNNING || job->error.code) return;
  zps_fail(&job->error, code, "%s", text);
  job->lost_rank = lost_rank;
}

void zps_members_join_answer(struct zps_members *members, const struct zps_member_job *job,
                             struct zps_member_rank *rank, zps_err_t code, const char *text) {
  void *token = rank->token;
  struct zps_member_client *client = rank->client;
  rank->token = NULL;
  if (code) client->job = NULL;
  zps_members_act(members, .type = code ? ZPS_ACT_JOIN_FAILED : ZPS_ACT_JOIN_DONE, .client = client, .token = token,
                  .job = job, .rank = rank->rank, .code = code, .text = text);
}

/* ------------------------------------------------------------ servers that join */

static uint32_t find(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_JOINING | 1u << ZPS_PLACE_DISMISSED);
}

void zps_members_joiner_gone(const struct zps_members *members, struct zps_member_job *job,
                             const struct zps_member_server *server) {
  const uint32_t position = find(job, server);
  if (position == job->view.n_places) return;
  const bool was_joining = zps_member_job_admits(job, position);
  if (was_joining) job->view.places[position].server->n_jobs--;
  zps_view_vacate(&job->view, position);
  if (!was_joining) return;
  zps_log_about(.job = job->name, .server = server->name);
  zps_log_info("job '%s': server '%s' takes no place, for now: it is gone", job->name, server->name);
  if (zps_view_count(&job->view, ZPS_PLACE_JOINING) == 0) job->placement_ns = members->now_ns + ZPS_PLACEMENT_SETTLE_NS;
}

static void take_answer(struct zps_member_job *job, uint32_t position) {
  struct zps_view_place *const place = &job->view.places[position];
  if (place->n_pending > 0) place->n_pending--;
  if (place->state == ZPS_PLACE_DISMISSED && place->n_pending == 0) zps_view_vacate(&job->view, position);
}

bool zps_members_joiner_answered(struct zps_member_job *job, const struct zps_member_server *server, zps_err_t code,
                                 const char *text) {
  const uint32_t position = find(job, server);
  if (position == job->view.n_places || code == ZPS_ERR_CLOSED) return position < job->view.n_places;
  if (code && zps_member_job_admits(job, position)) {
    job->view.places[position].is_refused = true;
    zps_log_about(.job = job->name, .server = server->name, .code = code);
    zps_log_warn("job '%s': server %u '%s' (host %s) cannot take a place in it: %s", job->name, server->index,
                 server->name, server->host, text);
  }
  take_answer(job, position);
  return true;
}

void zps_members_call_dropped(struct zps_members *members, const struct zps_member_client *server, uint64_t job_id) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job || !server->server) return;
  const uint32_t position = zps_view_find(&job->view, server->server, 1u << ZPS_PLACE_DISMISSED);
  if (position < job->view.n_places) take_answer(job, position);
}

/* ------------------------------------------------------------ servers that the job has */

void zps_members_job_add_lost(struct zps_member_job *job, const char *name) {
  if (job->state == ZPS_JOB_CLOSING) return; /* A job that has failed misses no server. */
  const size_t len = strlen(job->lost_servers), size = sizeof job->lost_servers;
  const int n = snprintf(job->lost_servers + len, size - len, "%s%s", len ? ", " : "", name);
  if (n >= (int)(size - len)) strcpy(job->lost_servers + size - sizeof "...", "...");
}

void zps_members_job_explain(struct zps_member_job *job, const struct zps_member_server *server, const char *what,
                             const char *reason) {
  strcpy(job->map.server, server->name);
  zps_fail(&job->map.why, ZPS_ERR_SERVER_LOST, "job '%s': server %u '%s' (host %s, pid %u) %s: %s", job->name,
           server->index, server->name, server->host, server->pid, what, reason);
}

void zps_members_place_lost(struct zps_members *members, struct zps_member_job *job,
                            const struct zps_member_server *server, const char *reason) {
  zps_members_joiner_gone(members, job, server);
  zps_members_cutoff_gone(job, server);
  const uint32_t i = zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING);
  if (i == job->view.n_places) return;
  const bool was_in = job->view.places[i].state == ZPS_PLACE_IN;
  zps_view_vacate(&job->view, i);
  if (!was_in) return;
  job->view.places[i].state = ZPS_PLACE_LOST;
  job->view.places[i].was_lost = true;
  zps_members_job_add_lost(job, server->name);
  zps_members_job_explain(job, server, "was lost", reason);
}

void zps_members_place_cut_off(struct zps_member_job *job, uint32_t position, const char *reason) {
  struct zps_view_place *const place = &job->view.places[position];
  place->is_cut_off = true;
  zps_members_job_add_lost(job, place->server->name);
  if (reason) zps_members_job_explain(job, place->server, "was lost", reason);
}

void zps_members_place_release(struct zps_members *members, struct zps_member_job *job, uint32_t position,
                               const char *reason) {
  struct zps_member_server *const server = job->view.places[position].server;
  zps_view_vacate(&job->view, position);
  server->n_jobs--;
  zps_members_act(members, .type = ZPS_ACT_JOB_CLOSE, .client = server->client, .job = job, .position = position,
                  .text = reason);
}

void zps_members_act_servers(struct zps_members *members, const struct zps_member_job *job, struct zps_action action) {
  action.job = job;
  for (action.position = 0; action.position < job->view.n_places; action.position++) {
    const struct zps_member_server *const server = zps_view_server(&job->view, action.position);
    action.client = server ? server->client : NULL;
    if (server) zps_members_act_on(members, &action);
  }
}

void zps_members_act_ranks(struct zps_members *members, const struct zps_member_job *job, struct zps_action action) {
  action.job = job;
  for (uint32_t r = 0; r < job->world; r++) {
    action.client = job->ranks[r]->client;
    if (job->ranks[r]->state == ZPS_RANK_IN) zps_members_act_on(members, &action);
  }
}

void zps_members_notify_gone(struct zps_members *members, const struct zps_member_job *job, uint32_t position,
                             struct zps_member_client *server) {
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *rank = job->ranks[r];
    if (rank->state == ZPS_RANK_IN) continue;
    zps_members_act(members, .type = ZPS_ACT_RANK_GONE, .client = server, .job = job, .position = position, .rank = r,
                    .code = rank->state == ZPS_RANK_LEFT ? ZPS_ERR_CLOSED : ZPS_ERR_PEER_LOST,
                    .text = job->error.code ? job->error.text : "it left the job");
  }
}
