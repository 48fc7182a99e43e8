/*
 * Servers that register, are away, come back, drain or are lost. Each event writes facts; a settle does what follows
 * from them. A server's process is known again by its secret.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/did_you_mean.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static zps_err_t server_check(const struct zps_member_client *client, const struct zps_server_spec *spec,
                              struct zps_error *error) {
  if (client->server || client->job || client->asker)
    return zps_fail(error, ZPS_ERR_BUSY, "this connection is registered already: one server or rank a connection");
  if (!zps_members_name_ok(spec->name) || !zps_members_name_ok(spec->host))
    return zps_fail(error, ZPS_ERR_INVALID, "server and host names are 1 to %u printable bytes", ZPS_NAME_MAX);
  return ZPS_OK;
}

static struct zps_member_server *find_named(const struct zps_members *members, const char *name) {
  for (unsigned i = 0; i < members->n_servers; i++)
    if (strcmp(members->servers[i]->name, name) == 0) return members->servers[i];
  return NULL;
}

/* Its secret is a process's, and so are host and number, but in containers every process is number 1. */
static bool is_same_process(const struct zps_member_server *server, const struct zps_server_spec *spec) {
  if (server->secret || spec->secret) return server->secret == spec->secret;
  return server->pid == spec->pid && strcmp(server->host, spec->host) == 0;
}

void zps_members_server_lost(struct zps_members *members, struct zps_member_server *server, const char *reason) {
  zps_log_about(.server = server->name);
  zps_members_server_remove(members, server);
  members->epoch++;
  zps_members_note(members, .type = ZPS_NOTE_SERVER_GONE, .server = server);
  if (server->client) {
    server->client->server = NULL;
  } else {
    members->n_away--;
  }
  if ((server->draining || members->draining) && server->n_jobs == 0) {
    zps_log_info("server '%s' has left", server->name);
  } else {
    zps_log_warn("server %u '%s' (host %s, pid %u) is lost: %s", server->index, server->name, server->host, server->pid,
                 reason);
  }
  for (struct zps_member_job *job = members->jobs; job; job = job->next)
    zps_members_place_lost(members, job, server, reason);
  free(server);
}

/* ------------------------------------------------------------ away, and back */

void zps_members_server_away(struct zps_members *members, struct zps_member_server *server, uint64_t until_ns,
                             const char *reason) {
  server->client->server = NULL;
  server->client = NULL;
  server->until_ns = until_ns;
  members->n_away++;
  zps_log_about(.server = server->name);
  zps_log_info("server %u '%s' (host %s, pid %u) is away: %s", server->index, server->name, server->host, server->pid,
               reason);
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    zps_members_joiner_gone(members, job, server);
    const uint32_t i = zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN);
    if (job->state != ZPS_JOB_OPENING || i == job->view.n_places) continue;
    job->view.places[i].is_refused = true; /* Its answer is lost, even if it is back before anybody looks. */
    zps_members_job_explain(job, server, "lost its connection", reason);
  }
}

static bool has_job(const struct zps_server_spec *spec, uint64_t job_id) {
  for (uint32_t i = 0; i < spec->n_jobs; i++)
    if (spec->jobs[i] == job_id) return true;
  return false;
}

/* The view change notes the job when it begins. A note ahead of it would keep a loss without a view change. */
static void lose_job(struct zps_members *members, struct zps_member_server *server, struct zps_member_job *job,
                     uint32_t position) {
  server->n_jobs--;
  zps_members_place_lost(members, job, server, "it has come back without the job");
  if (job->state == ZPS_JOB_CLOSING || job->view.places[position].state != ZPS_PLACE_LOST)
    zps_members_note(members, .type = ZPS_NOTE_JOB, .job = job);
}

/* What the server missed follows. */
static void resume(struct zps_members *members, struct zps_member_server *server, struct zps_member_client *client,
                   const struct zps_server_spec *spec) {
  if (server->client) zps_members_server_away(members, server, 0, "it is back over another connection");
  server->client = client;
  client->server = server;
  if (spec->draining && !server->stops) {
    server->draining = server->stops = true;
    zps_members_note(members, .type = ZPS_NOTE_SERVER, .server = server);
  }
  members->n_away--;
  zps_log_about(.server = server->name);
  zps_log_info("server %u '%s' (host %s, pid %u) is back", server->index, server->name, server->host, server->pid);
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    const uint32_t i = zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING);
    if (i == job->view.n_places) continue;
    if (!has_job(spec, job->job_id)) {
      lose_job(members, server, job, i);
      continue;
    }
    job->view.places[i].notified = ZPS_NOTIFIED_NOTHING;
    if (!zps_view_server(&job->view, i)) continue;
    zps_members_notify_gone(members, job, i, client);
    zps_members_tensors_resume(members, job, i);
  }
}

/* ------------------------------------------------------------ registered */

/* Whether there is room among the servers beside `former`, and its fabric is theirs. It takes the place of `former`,
 * unless that is NULL. */
static zps_err_t check_place(const struct zps_members *members, const struct zps_server_spec *spec,
                             const struct zps_member_server *former, struct zps_error *error) {
  if (!former && members->n_servers >= ZPS_SERVERS_MAX)
    return zps_fail(error, ZPS_ERR_REFUSED, "there are %u servers already, the most there can be", ZPS_SERVERS_MAX);
  for (unsigned i = 0; i < members->n_servers; i++) {
    const struct zps_member_server *const server = members->servers[i];
    if (server != former)
      return zps_members_fabric_check(spec->fabric, spec->name, &server->fabric, server->name, error);
  }
  return ZPS_OK;
}

zps_err_t zps_members_server_register(struct zps_members *members, struct zps_member_client *client,
                                      const struct zps_server_spec *spec, bool resumes, struct zps_error *error) {
  zps_err_t err = server_check(client, spec, error);
  if (err) return err;
  struct zps_member_server *const other = find_named(members, spec->name);
  const bool is_same = other && is_same_process(other, spec);
  if (is_same && resumes && spec->secret) {
    resume(members, other, client, spec);
    return ZPS_OK;
  }
  if (members->draining) return zps_fail(error, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  if (other && !is_same && other->client)
    return zps_fail(error, ZPS_ERR_BUSY,
                    "server name '%s' is held by host %s, pid %u: give each server its own server.name", spec->name,
                    other->host, other->pid);
  err = check_place(members, spec, other, error);
  if (err) return err;
  if (other) zps_members_server_lost(members, other, is_same ? "it registered again" : "another process has its name");
  struct zps_member_server *server = NULL;
  if (zps_members_server_add(members, members->next_server, &server))
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for another server");
  members->next_server++;
  server->pid = spec->pid;
  strcpy(server->name, spec->name);
  strcpy(server->host, spec->host);
  server->fabric = *spec->fabric;
  server->secret = spec->secret;
  server->draining = server->stops = spec->draining;
  server->came_ns = members->now_ns;
  server->client = client;
  client->server = server;
  members->epoch++;
  zps_members_note(members, .type = ZPS_NOTE_SERVER, .server = server);
  zps_log_about(.server = server->name);
  zps_log_info("server %u '%s' (host %s, pid %u) is in: %s at %s", server->index, server->name, server->host,
               server->pid, server->fabric.provider, server->fabric.address);
  return ZPS_OK;
}

/* ------------------------------------------------------------ draining */

static void drain(struct zps_members *members, struct zps_member_server *server, bool stops) {
  const bool is_news = !server->draining || (stops && !server->stops);
  server->draining = true;
  server->stops |= stops;
  if (!is_news) return;
  zps_log_about(.server = server->name);
  zps_log_info("server '%s' is draining%s", server->name, stops ? ": its process is about to end" : "");
  zps_members_note(members, .type = ZPS_NOTE_SERVER, .server = server);
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
  *server_p = find_named(members, name);
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
  zps_log_about(.server = server->name);
  zps_log_info("server '%s' takes jobs again", server->name);
  zps_members_note(members, .type = ZPS_NOTE_SERVER, .server = server);
  return ZPS_OK;
}
