/*
 * Servers that are to have no more jobs: since their process is about to end, or since an administrator says so. A job
 * that runs leaves them as soon as it can, all of its servers that drain at once: when nobody of the job is away, and
 * nothing else changes who has its partitions. What keeps it there until it ends is said by zps_members_stays().
 */
#include <stdio.h>
#include <string.h>

#include "common/base/near.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* ------------------------------------------------------------ jobs */

/* Sums that servers keep for pulls would be gone. */
static const struct zps_member_tensor *with_sums_kept(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->n_tensors; i++)
    if (job->tensors[i]->spec.staleness > 0) return job->tensors[i];
  return NULL;
}

static const struct zps_member_rank *that_holds(const struct zps_member_job *job) {
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

static bool has_others(const struct zps_member_job *job) {
  for (uint32_t i = 0; i < job->view.n_places; i++)
    if (zps_view_server(&job->view, i) && !zps_view_server(&job->view, i)->draining) return true;
  return false;
}

bool zps_members_cannot_move(const struct zps_members *members, const struct zps_member_job *job,
                             struct zps_error *why) {
  const struct zps_member_tensor *const tensor = with_sums_kept(job);
  const struct zps_member_rank *const holder = that_holds(job);
  if (!members->config.replays)
    zps_fail(why, ZPS_ERR_REFUSED, "a job goes on with other servers only where coordinator.server_loss is replay");
  else if (tensor)
    zps_fail(why, ZPS_ERR_REFUSED, "its servers keep sums of tensor '%.100s' for pulls to come (staleness)",
             tensor->spec.name);
  else if (holder)
    zps_fail(why, ZPS_ERR_REFUSED, "rank %u: %s", holder->rank, holder->held);
  else
    return false;
  return true;
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

bool zps_members_drain_try(struct zps_members *members, struct zps_member_job *job) {
  struct zps_error why;
  bool any_drains = false;
  zps_members_placement_drains(members, job);
  if (job->state != ZPS_JOB_RUNNING || job->map.state != ZPS_MAP_NONE) return false;
  for (uint32_t i = 0; i < job->view.n_places; i++)
    any_drains = any_drains || (zps_view_server(&job->view, i) && zps_view_server(&job->view, i)->draining);
  return any_drains && !zps_member_job_any_away(job) && !zps_members_stays(members, job, &why) &&
         zps_members_map_drained(members, job);
}

static void try_all(struct zps_members *members) {
  for (struct zps_member_job *job = members->jobs; job; job = job->next) zps_members_drain_try(members, job);
}

/* ------------------------------------------------------------ servers */

static void drain(struct zps_members *members, struct zps_member_server *server, bool stops) {
  const bool is_news = !server->draining || (stops && !server->stops);
  server->draining = true;
  server->stops |= stops;
  if (!is_news) return;
  zps_log_info("server '%s' is draining%s", server->name, stops ? ": its process is about to end" : "");
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SERVER, .server = server});
  try_all(members);
}

zps_err_t zps_members_server_drain(struct zps_members *members, struct zps_member_client *client, unsigned *jobs_p,
                                   struct zps_error *error) {
  if (!client->server) return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection is not registered as a server");
  drain(members, client->server, true);
  *jobs_p = client->server->n_jobs;
  return ZPS_OK;
}

static zps_err_t find(const struct zps_members *members, const char *name, struct zps_member_server **server_p,
                      struct zps_error *error) {
  struct zps_near near;
  char meant[ZPS_NAME_MAX + 32];
  *server_p = zps_members_server_named(members, name);
  if (*server_p) return ZPS_OK;
  zps_near_begin(&near, name, strlen(name));
  for (unsigned i = 0; i < members->n_servers; i++) zps_near_try(&near, members->servers[i]->name);
  return zps_fail(error, ZPS_ERR_UNKNOWN, "there is no server '%.100s': %szenpsctl members lists those that there are",
                  name, zps_near_say(&near, "did you mean '", "'? ", meant, sizeof meant));
}

zps_err_t zps_members_drain_named(struct zps_members *members, const char *name,
                                  const struct zps_member_server **server_p, struct zps_error *error) {
  struct zps_member_server *server;
  unsigned n_others = 0;
  const zps_err_t err = find(members, name, &server, error);
  if (err) return err;
  for (unsigned i = 0; i < members->n_servers; i++)
    n_others += members->servers[i] != server && !members->servers[i]->draining;
  if (!server->draining && n_others == 0)
    return zps_fail(error, ZPS_ERR_REFUSED,
                    "server '%s' is the last that takes jobs: start another one first, or take one back by "
                    "zenpsctl undrain; to end it all the same, send its process SIGTERM",
                    server->name);
  drain(members, server, false);
  *server_p = server;
  return ZPS_OK;
}

zps_err_t zps_members_undrain_named(struct zps_members *members, const char *name,
                                    const struct zps_member_server **server_p, struct zps_error *error) {
  struct zps_member_server *server;
  const zps_err_t err = find(members, name, &server, error);
  if (err) return err;
  if (server->stops)
    return zps_fail(error, ZPS_ERR_REFUSED,
                    "server '%s' (host %s, pid %u) is stopping: its process ends when its jobs have; start it anew",
                    server->name, server->host, server->pid);
  *server_p = server;
  zps_members_cutoffs_pardon(members, server);
  if (!server->draining) return ZPS_OK;
  server->draining = false;
  server->came_ns = members->now_ns;
  zps_log_info("server '%s' takes jobs again", server->name);
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SERVER, .server = server});
  zps_members_jobs_try_open(members);
  return ZPS_OK;
}
