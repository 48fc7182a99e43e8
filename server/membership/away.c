/*
 * Servers and ranks whose connection has ended, but whose process may live: they are away until they come back, over
 * another connection, or until their time is up. Meanwhile nothing is sent to them; what they missed is told when they
 * are back. A server's process is known again by its secret, and so is a rank's.
 */
#include <string.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* ------------------------------------------------------------ away */

static void server_away(struct zps_members *members, struct zps_member_server *server, uint64_t until_ns,
                        const char *reason) {
  server->client->server = NULL;
  server->client = NULL;
  server->until_ns = until_ns;
  members->n_away++;
  zps_log_info("server %u '%s' (host %s, pid %u) is away: %s", server->index, server->name, server->host, server->pid,
               reason);
  for (struct zps_member_job *job = members->jobs; job; job = job->next)
    zps_members_placement_gone(members, job, server);
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) { /* it cannot answer openings */
    next = job->next;
    bool is_here = false;
    for (uint32_t i = 0; i < job->view.n_places; i++) is_here = is_here || zps_view_server(&job->view, i) == server;
    if (job->state != ZPS_JOB_OPENING || !is_here) continue;
    struct zps_error error;
    zps_fail(&error, ZPS_ERR_SERVER_LOST, "job '%s': server %u '%s' (host %s, pid %u) lost its connection: %s",
             job->name, server->index, server->name, server->host, server->pid, reason);
    zps_members_job_place_anew(members, job, error.text);
  }
}

static void rank_away(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                      uint64_t until_ns, const char *reason) {
  zps_log_info("job '%s': rank %u (host %s, pid %u) is away: %s", job->name, rank->rank, rank->host, rank->pid, reason);
  zps_members_tensors_fail(members, job, rank->client, ZPS_ERR_CLOSED, reason);
  zps_members_groups_away(members, job, rank->rank, ZPS_ERR_CLOSED, reason);
  zps_members_placement_cancel(members, job, "a rank is away");
  rank->client->job = NULL;
  rank->client = NULL;
  rank->until_ns = until_ns;
  members->n_away++;
}

void zps_members_client_away(struct zps_members *members, struct zps_member_client *client, uint64_t until_ns,
                             const char *reason) {
  struct zps_member_job *const job = client->job;
  struct zps_member_rank *const rank = job ? job->ranks[client->rank] : NULL;
  if ((client->server && !client->server->secret) || (rank && (rank->state != ZPS_RANK_IN || !rank->secret))) {
    zps_members_client_lost(members, client, reason);
    return;
  }
  if (client->asker) zps_members_asker_gone(members, client->asker, false);
  if (client->server) server_away(members, client->server, until_ns, reason);
  if (rank) rank_away(members, job, rank, until_ns, reason);
}

/* ------------------------------------------------------------ back */

static bool has_job(const struct zps_server_spec *spec, uint64_t job_id) {
  for (uint32_t i = 0; i < spec->n_jobs; i++)
    if (spec->jobs[i] == job_id) return true;
  return false;
}

void zps_members_tell_gone(struct zps_members *members, const struct zps_member_job *job, uint32_t position,
                           struct zps_member_client *server) {
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *rank = job->ranks[r];
    if (rank->state == ZPS_RANK_IN) continue;
    zps_members_act(members,
                    &(struct zps_action){.type = ZPS_ACT_RANK_GONE,
                                         .client = server,
                                         .job = job,
                                         .position = position,
                                         .rank = r,
                                         .code = rank->state == ZPS_RANK_LEFT ? ZPS_ERR_CLOSED : ZPS_ERR_PEER_LOST,
                                         .text = job->error.code ? job->error.text : "it left the job"});
  }
}

void zps_members_server_resume(struct zps_members *members, struct zps_member_server *server,
                               struct zps_member_client *client, const struct zps_server_spec *spec) {
  if (server->client) zps_members_client_away(members, server->client, 0, "it is back over another connection");
  server->client = client;
  client->server = server;
  if (spec->draining && !server->stops) {
    server->draining = server->stops = true;
    zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SERVER, .server = server});
  }
  members->n_away--;
  zps_log_info("server %u '%s' (host %s, pid %u) is back", server->index, server->name, server->host, server->pid);
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    const uint32_t i = zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING);
    if (i == job->view.n_places) continue;
    if (!has_job(spec, job->job_id)) {
      server->n_jobs--;
      zps_members_job_server_lost(members, job, server, "it has come back without the job");
      zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB, .job = job});
      continue;
    }
    if (zps_view_server(&job->view, i)) {
      zps_members_tell_gone(members, job, i, client);
      zps_members_tensors_resume(members, job, i);
    }
    zps_members_map_server_back(members, job, i);
  }
  zps_members_jobs_try_open(members);
}

void zps_members_rank_resume(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                             struct zps_member_client *client) {
  if (rank->client == client) return;
  if (rank->client) zps_members_client_away(members, rank->client, 0, "it is back over another connection");
  rank->client = client;
  rank->origin = client->origin;
  if (!job->origin.is_known) job->origin = client->origin; /* this coordinator has started again */
  client->job = job;
  client->rank = rank->rank;
  members->n_away--;
  zps_log_info("job '%s': rank %u (host %s, pid %u) is back", job->name, rank->rank, rank->host, rank->pid);
  if (job->state == ZPS_JOB_CLOSING) {
    uint32_t lost = 0;
    while (lost < job->world && job->ranks[lost]->state != ZPS_RANK_LOST) lost++;
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_JOB_FAILED,
                                                  .client = client,
                                                  .job = job,
                                                  .rank = lost < job->world ? lost : ZPS_NO_RANK,
                                                  .code = job->error.code,
                                                  .text = job->error.text});
    return;
  }
  for (uint32_t r = 0; r < job->world; r++) {
    if (job->ranks[r]->state != ZPS_RANK_LEFT) continue;
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_RANK_LEFT, .client = client, .job = job, .rank = r});
  }
  if (zps_members_elastic_is_changed(job))
    zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_JOB_CHANGED, .client = client, .job = job});
  zps_members_map_rank_back(members, job, rank->rank);
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

/* ------------------------------------------------------------ those that do not come back */

static const char late[] = "it did not come back in time";

/* Returns whether there was one: members may be others then. */
static bool lose_one(struct zps_members *members, uint64_t now_ns, uint64_t *deadline_ns) {
  *deadline_ns = ZPS_NEVER;
  for (unsigned i = 0; i < members->n_servers; i++) {
    struct zps_member_server *const server = members->servers[i];
    if (server->client) continue;
    if (server->until_ns <= now_ns) {
      zps_members_server_lost(members, server, late);
      return true;
    }
    if (server->until_ns < *deadline_ns) *deadline_ns = server->until_ns;
  }
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    for (uint32_t r = 0; job->state >= ZPS_JOB_RUNNING && r < job->world; r++) {
      struct zps_member_rank *const rank = job->ranks[r];
      if (rank->state != ZPS_RANK_IN || rank->client) continue;
      if (rank->until_ns <= now_ns) {
        zps_members_rank_lost(members, job, rank, late);
        return true;
      }
      if (rank->until_ns < *deadline_ns) *deadline_ns = rank->until_ns;
    }
  }
  return false;
}

uint64_t zps_members_away_tick(struct zps_members *members, uint64_t now_ns) {
  uint64_t deadline_ns = ZPS_NEVER;
  while (members->n_away > 0 && lose_one(members, now_ns, &deadline_ns)) continue;
  return deadline_ns;
}
