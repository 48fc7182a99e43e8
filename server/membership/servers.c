/* Servers: in, draining, lost; and what ends with the connection of a client, with time, or with the module. */
#include <stdlib.h>
#include <string.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

static zps_err_t server_check(struct zps_members *members, const struct zps_member_client *client,
                              const struct zps_server_spec *spec, struct zps_error *error) {
  if (client->server || client->job || client->asker)
    return zps_fail(error, ZPS_ERR_BUSY, "this connection is registered already: one server or rank a connection");
  if (!zps_members_name_ok(spec->name) || !zps_members_name_ok(spec->host))
    return zps_fail(error, ZPS_ERR_INVALID, "server and host names are 1 to %u printable bytes", ZPS_NAME_MAX);
  if (members->draining) return zps_fail(error, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  return ZPS_OK;
}

struct zps_member_server *zps_members_server_named(const struct zps_members *members, const char *name) {
  for (unsigned i = 0; i < members->n_servers; i++)
    if (strcmp(members->servers[i]->name, name) == 0) return members->servers[i];
  return NULL;
}

/* Its secret is a process's, and so are host and number, but in containers every process is number 1. */
static bool is_same_process(const struct zps_member_server *server, const struct zps_server_spec *spec) {
  if (server->secret || spec->secret) return server->secret == spec->secret;
  return server->pid == spec->pid && strcmp(server->host, spec->host) == 0;
}

zps_err_t zps_members_server_register(struct zps_members *members, struct zps_member_client *client,
                                      const struct zps_server_spec *spec, bool resumes, struct zps_error *error) {
  zps_err_t err = server_check(members, client, spec, error);
  if (err) return err;
  struct zps_member_server *const other = zps_members_server_named(members, spec->name);
  const bool is_same = other && is_same_process(other, spec);
  if (is_same && resumes && spec->secret) {
    zps_members_server_resume(members, other, client, spec);
    return ZPS_OK;
  }
  if (other && !is_same && other->client)
    return zps_fail(error, ZPS_ERR_BUSY,
                    "server name '%s' is held by host %s, pid %u: give each server its own server.name", spec->name,
                    other->host, other->pid);
  if (other) zps_members_server_lost(members, other, is_same ? "it registered again" : "another process has its name");
  if (members->n_servers >= ZPS_SERVERS_MAX)
    return zps_fail(error, ZPS_ERR_REFUSED, "there are %u servers already, the most there can be", ZPS_SERVERS_MAX);
  if (members->n_servers) {
    err = zps_members_fabric_check(spec->fabric, spec->name, &members->servers[0]->fabric, members->servers[0]->name,
                                   error);
    if (err) return err;
  }
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
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SERVER, .server = server});
  zps_log_info("server %u '%s' (host %s, pid %u) is in: %s at %s", server->index, server->name, server->host,
               server->pid, server->fabric.provider, server->fabric.address);
  zps_members_jobs_try_open(members);
  return ZPS_OK;
}

void zps_members_server_lost(struct zps_members *members, struct zps_member_server *server, const char *reason) {
  zps_members_server_remove(members, server);
  members->epoch++;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SERVER_GONE, .server = server});
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
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    zps_members_job_server_lost(members, job, server, reason);
  }
  free(server);
  zps_members_jobs_try_open(members); /* they may have waited for it to come back */
}

void zps_members_client_lost(struct zps_members *members, struct zps_member_client *client, const char *reason) {
  if (client->server) zps_members_server_lost(members, client->server, reason);
  if (client->asker) zps_members_asker_gone(members, client->asker, true);
  if (client->job) zps_members_rank_lost(members, client->job, client->job->ranks[client->rank], reason);
}

uint64_t zps_members_tick(struct zps_members *members, uint64_t now_ns) {
  members->now_ns = now_ns;
  uint64_t deadline = zps_members_away_tick(members, now_ns);
  const uint64_t elastic_deadline = zps_members_elastic_tick(members, now_ns);
  if (elastic_deadline < deadline) deadline = elastic_deadline;
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    const uint64_t job_deadline = zps_members_job_tick(members, job, now_ns);
    if (job_deadline < deadline) deadline = job_deadline;
  }
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    const uint64_t suspects_deadline = zps_members_suspects_tick(members, job, now_ns);
    if (suspects_deadline < deadline) deadline = suspects_deadline;
  }
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    const uint64_t groups_deadline = zps_members_groups_tick(members, job, now_ns);
    if (groups_deadline < deadline) deadline = groups_deadline;
    uint64_t map_deadline = zps_members_map_tick(members, job, now_ns);
    if (map_deadline == ZPS_NEVER && zps_members_drain_try(members, job))
      map_deadline = zps_members_map_tick(members, job, now_ns);
    if (map_deadline < deadline) deadline = map_deadline;
    const uint64_t placement_deadline = zps_members_placement_tick(members, job, now_ns);
    if (placement_deadline < deadline) deadline = placement_deadline;
    const uint64_t closes_deadline = zps_members_closes_tick(members, job, now_ns);
    if (closes_deadline < deadline) deadline = closes_deadline;
    const uint64_t closing_deadline = zps_members_closing_tick(members, job, now_ns);
    if (closing_deadline < deadline) deadline = closing_deadline;
  }
  return deadline;
}

void zps_members_drain(struct zps_members *members) {
  members->draining = true;
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    if (job->state == ZPS_JOB_JOINING)
      zps_members_job_drop_joins(members, job, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  }
  zps_members_elastic_refuse(members, ZPS_ERR_REFUSED, "the coordinator is shutting down");
}

void zps_members_set_min_servers(struct zps_members *members, uint32_t min_servers) {
  members->config.min_servers = min_servers;
  zps_members_jobs_try_open(members);
}

void zps_members_destroy(struct zps_members *members) {
  if (!members) return;
  while (members->jobs) { /* their ranks are away */
    struct zps_member_job *job = members->jobs;
    members->jobs = job->next;
    zps_members_job_free(job);
  }
  zps_members_elastic_fini(members);
  for (unsigned i = 0; i < members->n_servers; i++) free(members->servers[i]);
  free(members->servers);
  free(members->weights);
  free(members);
}
