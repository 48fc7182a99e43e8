/* A rank arrives: what it says must fit what the others of its job say, and the servers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/config.h"
#include "common/base/log.h"

/* The job of this name that takes joins, or whose ranks a second process must not take: the youngest one that has
 * neither failed nor begun to end. */
static struct zps_member_job *job_by_name(struct zps_members *members, const char *name) {
  struct zps_member_job *found = NULL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    const bool is_over = job->state == ZPS_JOB_CLOSING || job->n_left > 0 || job->n_joined == 0;
    if (strcmp(job->name, name) == 0 && !is_over) found = job;
  }
  return found;
}

zps_err_t zps_members_join_check(const struct zps_members *members, const struct zps_member_client *client,
                                 const struct zps_join_spec *spec, struct zps_error *error) {
  if (client->server || client->job || client->asker)
    return zps_fail(error, ZPS_ERR_BUSY, "this connection has joined already: one server or rank a connection");
  if (!zps_members_name_ok(spec->job) || !zps_members_name_ok(spec->host))
    return zps_fail(error, ZPS_ERR_INVALID, "job and host names are 1 to %u printable bytes", ZPS_NAME_MAX);
  if (spec->rack && spec->rack[0] && !zps_members_name_ok(spec->rack))
    return zps_fail(error, ZPS_ERR_INVALID, "rack labels are at most %u printable bytes", ZPS_NAME_MAX);
  if (members->draining)
    return zps_fail(error, ZPS_ERR_REFUSED, "job '%s': the coordinator is shutting down", spec->job);
  return ZPS_OK;
}

static zps_err_t join_fits(const struct zps_members *members, const struct zps_member_job *job,
                           const struct zps_join_spec *spec, struct zps_error *error) {
  char who[ZPS_NAME_MAX + 64], other[ZPS_NAME_MAX + 64];
  snprintf(who, sizeof who, "rank %u (host %s, pid %u)", spec->rank, spec->host, spec->pid);
  const struct zps_member_rank *first = NULL;
  for (uint32_t r = 0; r < job->world && !first; r++) first = job->ranks[r];
  if (first) {
    snprintf(other, sizeof other, "rank %u (host %s, pid %u)", first->rank, first->host, first->pid);
    if (job->world != spec->world)
      return zps_fail(error, ZPS_ERR_SHAPE, "job '%.60s' has %u ranks, says %.160s; %.160s says %u", job->name,
                      job->world, other, who, spec->world);
    if (job->places != spec->places)
      return zps_fail(
          error, ZPS_ERR_SHAPE,
          "job '%.60s' is to have room for %u servers, says %.160s; %.160s says %u (ZENPS_SERVER_PLACES; 0: as "
          "the coordinator's %s)",
          job->name, job->places, other, who, spec->places, zps_config_said("job.server_places"));
  }
  const struct zps_member_rank *holder = job->ranks[spec->rank];
  if (holder)
    return zps_fail(error, ZPS_ERR_RANK_TAKEN,
                    "rank %u of job '%s' is held by host %s, pid %u; host %.60s, pid %u cannot have it too", spec->rank,
                    job->name, holder->host, holder->pid, spec->host, spec->pid);
  if (first) return zps_members_fabric_check(spec->fabric, who, &first->fabric, other, error);
  if (members->n_servers)
    return zps_members_fabric_check(spec->fabric, who, &members->servers[0]->fabric, members->servers[0]->name, error);
  return ZPS_OK;
}

static const char *const memory_names[] = {"host", "staged", "hmem", "dmabuf"};

zps_err_t zps_members_memory(struct zps_member_client *client, uint64_t job_id, const char *name,
                             struct zps_error *error) {
  const zps_err_t err = zps_members_running(client->job, job_id, error);
  if (err) return err;
  for (size_t i = 0; i < sizeof memory_names / sizeof memory_names[0]; i++) {
    if (strcmp(name, memory_names[i]) != 0) continue;
    client->job->ranks[client->rank]->memory = memory_names[i];
    return ZPS_OK;
  }
  return zps_fail(error, ZPS_ERR_PROTOCOL, "memory '%.40s' is none of host, staged, hmem and dmabuf", name);
}

void zps_members_join_again(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                            struct zps_member_client *client, void *token) {
  if (rank->state == ZPS_RANK_IN) {
    zps_members_rank_resume(members, job, rank, client);
    rank->token = token;
    zps_members_join_answer(members, job, rank, ZPS_OK, NULL);
    return;
  }
  zps_members_join_answer(members, job, rank, ZPS_ERR_CLOSED, "it has joined again");
  rank->client = client;
  rank->origin = client->origin;
  rank->token = token;
  client->job = job;
  client->rank = rank->rank;
}

zps_err_t zps_members_rank_make(const struct zps_join_spec *spec, struct zps_member_client *client, void *token,
                                uint64_t now_ns, struct zps_member_rank **rank_p, struct zps_error *error) {
  struct zps_member_rank *const rank = calloc(1, sizeof *rank);
  if (!rank) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for rank %u of job '%s'", spec->rank, spec->job);
  rank->state = ZPS_RANK_JOINING;
  rank->rank = spec->rank;
  rank->pid = spec->pid;
  strcpy(rank->host, spec->host);
  if (spec->rack) strcpy(rank->rack, spec->rack);
  rank->fabric = *spec->fabric;
  rank->origin = client->origin;
  rank->secret = spec->secret;
  rank->memory = memory_names[0];
  rank->timeout_ms = spec->timeout_ms;
  rank->deadline_ns = now_ns + spec->timeout_ms * ZPS_NS_PER_MS;
  rank->token = token;
  rank->client = client;
  *rank_p = rank;
  return ZPS_OK;
}

zps_err_t zps_members_join(struct zps_members *members, struct zps_member_client *client,
                           const struct zps_join_spec *spec, void *token, uint64_t now_ns, struct zps_error *error) {
  zps_err_t err = zps_members_join_check(members, client, spec, error);
  if (err) return err;
  if (spec->world == 0 || spec->world > ZPS_WORLD_MAX || spec->rank >= spec->world)
    return zps_fail(error, ZPS_ERR_INVALID, "job '%s': rank %u of %u; a job has 1 to %u ranks, numbered from 0",
                    spec->job, spec->rank, spec->world, ZPS_WORLD_MAX);
  if (spec->places > ZPS_SERVERS_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "job '%s': room for %u servers is asked for; a job has up to %u", spec->job,
                    spec->places, ZPS_SERVERS_MAX);
  struct zps_member_job *job = job_by_name(members, spec->job);
  struct zps_member_rank *const holder = job && spec->rank < job->world ? job->ranks[spec->rank] : NULL;
  if (holder && spec->secret && holder->secret == spec->secret && spec->world == job->world) {
    zps_members_join_again(members, job, holder, client, token);
    return ZPS_OK;
  }
  if (!job) {
    err = zps_members_tenant_may_begin(members, client, spec->job, error);
    if (!err) err = zps_members_job_create(members, spec, now_ns, &job, error);
    if (err) return err;
    job->origin = client->origin;
    job->tenant = client->tenant;
  }
  struct zps_member_rank *rank = NULL;
  err = join_fits(members, job, spec, error);
  if (!err) err = zps_members_rank_make(spec, client, token, now_ns, &rank, error);
  if (err) return err;
  client->job = job;
  client->rank = spec->rank;
  job->ranks[spec->rank] = rank;
  job->n_joined++;
  job->error.code = ZPS_OK; /* it gathers again */
  zps_log_about(.job = job->name, ZPS_LOG_RANK(spec->rank));
  zps_log_debug("job '%s': rank %u (host %s, pid %u) has joined, %u of %u", job->name, spec->rank, spec->host,
                spec->pid, job->n_joined, job->world);
  return ZPS_OK;
}
