#include "server/coordinator/members_impl.h"

#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"
#include "common/base/text.h"

zps_err_t zps_members_create(const struct zps_members_config *config, struct zps_members **members_p) {
  struct zps_members *members = calloc(1, sizeof *members);
  if (!members) return ZPS_ERR_NOMEM;
  members->config = *config;
  members->epoch = 1;
  *members_p = members;
  return ZPS_OK;
}

void zps_members_destroy(struct zps_members *members) {
  if (!members) return;
  free(members->servers);
  free(members);
}

bool zps_members_name_ok(const char *name) {
  const size_t len = strnlen(name, ZPS_NAME_MAX + 1);
  return len > 0 && len <= ZPS_NAME_MAX && zps_text_printable(name, len) == len;
}

/* libfabric renamed its "net" provider to "tcp" without changing what it speaks. */
static const char *provider_kind(const struct zps_net_info *fabric) {
  return strcmp(fabric->provider, "net") == 0 ? "tcp" : fabric->provider;
}

zps_err_t zps_members_fabric_check(const struct zps_net_info *a, const char *who_a, const struct zps_net_info *b,
                                   const char *who_b, struct zps_error *error) {
  if (strcmp(provider_kind(a), provider_kind(b)) == 0 && strcmp(a->addr_format, b->addr_format) == 0) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_REFUSED,
      "%s uses fabric provider %s (%s), but %s uses %s (%s): set the same provider and kind of address on both", who_a,
      a->provider, a->addr_format, who_b, b->provider, b->addr_format);
}

static zps_err_t server_check(struct zps_members *members, const struct zps_member_client *client,
                              const struct zps_server_spec *spec, struct zps_error *error) {
  if (client->server || client->job)
    return zps_fail(error, ZPS_ERR_BUSY, "this connection is registered already: one server or rank a connection");
  if (!zps_members_name_ok(spec->name) || !zps_members_name_ok(spec->host))
    return zps_fail(error, ZPS_ERR_INVALID, "server and host names are 1 to %u printable bytes", ZPS_NAME_MAX);
  if (members->draining) return zps_fail(error, ZPS_ERR_REFUSED, "the coordinator is shutting down");
  return ZPS_OK;
}

zps_err_t zps_members_server_register(struct zps_members *members, struct zps_member_client *client,
                                      const struct zps_server_spec *spec, struct zps_error *error) {
  zps_err_t err = server_check(members, client, spec, error);
  if (err) return err;
  for (unsigned i = 0; i < members->n_servers; i++) {
    struct zps_member_server *other = members->servers[i];
    if (strcmp(other->name, spec->name) != 0) continue;
    if (other->pid != spec->pid || strcmp(other->host, spec->host) != 0)
      return zps_fail(error, ZPS_ERR_BUSY,
                      "server name '%s' is held by host %s, pid %u: give each server its own server.name", spec->name,
                      other->host, other->pid);
    zps_members_client_lost(members, other->client, "it registered again");
    break;
  }
  if (members->n_servers >= ZPS_SERVERS_MAX)
    return zps_fail(error, ZPS_ERR_REFUSED, "there are %u servers already, the most there can be", ZPS_SERVERS_MAX);
  if (members->n_servers) {
    err = zps_members_fabric_check(spec->fabric, spec->name, &members->servers[0]->fabric, members->servers[0]->name,
                                   error);
    if (err) return err;
  }
  if (members->n_servers == members->cap_servers) {
    const unsigned cap = members->cap_servers ? 2 * members->cap_servers : 8;
    struct zps_member_server **grown = realloc(members->servers, cap * sizeof *grown);
    if (!grown) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for another server");
    members->servers = grown;
    members->cap_servers = cap;
  }
  struct zps_member_server *server = calloc(1, sizeof *server);
  if (!server) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for another server");
  server->index = members->next_server++;
  server->pid = spec->pid;
  strcpy(server->name, spec->name);
  strcpy(server->host, spec->host);
  server->fabric = *spec->fabric;
  server->client = client;
  client->server = server;
  members->servers[members->n_servers++] = server;
  members->epoch++;
  zps_log_info("server %u '%s' (host %s, pid %u) is in: %s at %s", server->index, server->name, server->host,
               server->pid, server->fabric.provider, server->fabric.address);
  zps_members_jobs_try_open(members);
  return ZPS_OK;
}

zps_err_t zps_members_server_drain(struct zps_members *members, struct zps_member_client *client, unsigned *jobs_p,
                                   struct zps_error *error) {
  (void)members;
  if (!client->server) return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection is not registered as a server");
  if (!client->server->draining) zps_log_info("server '%s' is draining", client->server->name);
  client->server->draining = true;
  *jobs_p = client->server->n_jobs;
  return ZPS_OK;
}

static void server_lost(struct zps_members *members, struct zps_member_client *client, const char *reason) {
  struct zps_member_server *server = client->server;
  unsigned at = 0;
  while (members->servers[at] != server) at++;
  memmove(members->servers + at, members->servers + at + 1, (members->n_servers - at - 1) * sizeof *members->servers);
  members->n_servers--;
  members->epoch++;
  client->server = NULL;
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
}

void zps_members_client_lost(struct zps_members *members, struct zps_member_client *client, const char *reason) {
  if (client->server) server_lost(members, client, reason);
  if (client->job) zps_members_rank_lost(members, client, reason);
}

uint64_t zps_members_tick(struct zps_members *members, uint64_t now_ns) {
  uint64_t deadline = ZPS_NEVER;
  for (struct zps_member_job *job = members->jobs, *next; job; job = next) {
    next = job->next;
    const uint64_t job_deadline = zps_members_job_tick(members, job, now_ns);
    if (job_deadline < deadline) deadline = job_deadline;
  }
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    const uint64_t groups_deadline = zps_members_groups_tick(members, job, now_ns);
    if (groups_deadline < deadline) deadline = groups_deadline;
    const uint64_t closes_deadline = zps_members_closes_tick(members, job, now_ns);
    if (closes_deadline < deadline) deadline = closes_deadline;
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
}

void zps_members_set_min_servers(struct zps_members *members, uint32_t min_servers) {
  members->config.min_servers = min_servers;
  zps_members_jobs_try_open(members);
}

unsigned zps_members_servers(const struct zps_members *members) {
  return members->n_servers;
}
const struct zps_member_server *zps_members_server(const struct zps_members *members, unsigned index) {
  return members->servers[index];
}
unsigned zps_members_jobs(const struct zps_members *members) {
  return members->n_jobs;
}
const struct zps_member_job *zps_members_job(const struct zps_members *members, uint64_t job_id) {
  return zps_members_job_find(members, job_id);
}
const struct zps_member_job *zps_members_job_first(const struct zps_members *members) {
  return members->jobs;
}
uint32_t zps_members_epoch(const struct zps_members *members) {
  return members->epoch;
}

struct zps_member_job *zps_members_job_find(const struct zps_members *members, uint64_t job_id) {
  struct zps_member_job *job = members->jobs;
  while (job && job->job_id != job_id) job = job->next;
  return job;
}
