/* Joins that wait: for the other ranks, for servers, for the servers' answers; or until their time is up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

void zps_members_join_answer(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                             zps_err_t code, const char *text) {
  void *token = rank->token;
  struct zps_member_client *client = rank->client;
  rank->token = NULL;
  if (code) client->job = NULL;
  zps_members_act(members, &(struct zps_action){.type = code ? ZPS_ACT_JOIN_FAILED : ZPS_ACT_JOIN_DONE,
                                                .client = client,
                                                .token = token,
                                                .job = job,
                                                .rank = rank->rank,
                                                .code = code,
                                                .text = text});
}

void zps_members_join_drop(struct zps_members *members, struct zps_member_job *job, uint32_t r, zps_err_t code,
                           const char *text) {
  if (!job->error.code) zps_fail(&job->error, code, "%s", text);
  zps_members_join_answer(members, job, job->ranks[r], code, text);
  free(job->ranks[r]);
  job->ranks[r] = NULL;
  if (--job->n_joined == 0) zps_members_job_close(members, job, text);
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

/* The job of this name that takes joins, or whose ranks a second process must not take: the youngest one that has
 * neither failed nor begun to end. */
static struct zps_member_job *job_by_name(struct zps_members *members, const char *name) {
  struct zps_member_job *found = NULL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    if (strcmp(job->name, name) == 0 && job->state != ZPS_JOB_CLOSING && job->n_left == 0) found = job;
  }
  return found;
}

static zps_err_t join_check(const struct zps_members *members, const struct zps_member_client *client,
                            const struct zps_join_spec *spec, struct zps_error *error) {
  if (client->server || client->job)
    return zps_fail(error, ZPS_ERR_BUSY, "this connection has joined already: one server or rank a connection");
  if (!zps_members_name_ok(spec->job) || !zps_members_name_ok(spec->host))
    return zps_fail(error, ZPS_ERR_INVALID, "job and host names are 1 to %u printable bytes", ZPS_NAME_MAX);
  if (spec->rack && spec->rack[0] && !zps_members_name_ok(spec->rack))
    return zps_fail(error, ZPS_ERR_INVALID, "rack labels are at most %u printable bytes", ZPS_NAME_MAX);
  if (spec->world == 0 || spec->world > ZPS_WORLD_MAX || spec->rank >= spec->world)
    return zps_fail(error, ZPS_ERR_INVALID, "job '%s': rank %u of %u; a job has 1 to %u ranks, numbered from 0",
                    spec->job, spec->rank, spec->world, ZPS_WORLD_MAX);
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

zps_err_t zps_members_join(struct zps_members *members, struct zps_member_client *client,
                           const struct zps_join_spec *spec, void *token, uint64_t now_ns, struct zps_error *error) {
  zps_err_t err = join_check(members, client, spec, error);
  if (err) return err;
  struct zps_member_job *job = job_by_name(members, spec->job);
  if (!job) {
    err = zps_members_job_create(members, spec, now_ns, &job, error);
    if (err) return err;
  }
  struct zps_member_rank *rank = NULL;
  err = join_fits(members, job, spec, error);
  if (!err) {
    rank = calloc(1, sizeof *rank);
    if (!rank) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for rank %u of job '%s'", spec->rank, spec->job);
  }
  if (err) {
    if (job->n_joined == 0) zps_members_job_close(members, job, "nobody joined");
    return err;
  }
  rank->state = ZPS_RANK_JOINING;
  rank->rank = spec->rank;
  rank->pid = spec->pid;
  strcpy(rank->host, spec->host);
  if (spec->rack) strcpy(rank->rack, spec->rack);
  rank->fabric = *spec->fabric;
  rank->memory = memory_names[0];
  rank->timeout_ms = spec->timeout_ms;
  rank->deadline_ns = now_ns + spec->timeout_ms * ZPS_NS_PER_MS;
  rank->token = token;
  rank->client = client;
  client->job = job;
  client->rank = spec->rank;
  job->ranks[spec->rank] = rank;
  job->n_joined++;
  job->error.code = ZPS_OK; /* it gathers again */
  zps_log_debug("job '%s': rank %u (host %s, pid %u) has joined, %u of %u", job->name, spec->rank, spec->host,
                spec->pid, job->n_joined, job->world);
  zps_members_job_try_open(members, job);
  return ZPS_OK;
}

/* "2, 5-7": the ranks that have not joined. */
static void missing_ranks(const struct zps_member_job *job, char *buf, size_t size) {
  size_t len = 0;
  buf[0] = '\0';
  for (uint32_t r = 0; r < job->world; r++) {
    if (job->ranks[r]) continue;
    uint32_t last = r;
    while (last + 1 < job->world && !job->ranks[last + 1]) last++;
    if (len + 32 > size) {
      snprintf(buf + len, size - len, ", ...");
      return;
    }
    len += (size_t)snprintf(buf + len, size - len, "%s%u", len ? ", " : "", r);
    if (last > r) len += (size_t)snprintf(buf + len, size - len, "-%u", last);
    r = last;
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
             job->name, job->world, seconds, job->n_pending, job->n_servers);
  } else {
    unsigned draining = 0;
    for (unsigned i = 0; i < members->n_servers; i++) draining += members->servers[i]->draining;
    const uint32_t need = members->config.min_servers ? members->config.min_servers : 1;
    zps_fail(error, ZPS_ERR_MISSING,
             "job '%s': all %u ranks joined, but after %g s there were %u servers of the %u needed (and %u draining)",
             job->name, job->world, seconds, members->n_servers - draining, need, draining);
  }
}

uint64_t zps_members_job_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns) {
  uint64_t deadline = ZPS_NEVER;
  if (job->state > ZPS_JOB_OPENING) return deadline;
  /* Ranks whose time is up together are told which ranks were missing at that time, so they do not name each other. */
  struct zps_error error;
  bool known = false;
  uint32_t left = job->n_joined;
  for (uint32_t r = 0; left; r++) {
    struct zps_member_rank *rank = job->ranks[r];
    if (!rank) continue;
    left--;
    if (rank->deadline_ns > now_ns) {
      if (rank->deadline_ns < deadline) deadline = rank->deadline_ns;
      continue;
    }
    if (!known) {
      timeout_text(members, job, rank, &error);
      zps_log_warn("%s", error.text);
      known = true;
    }
    if (job->state == ZPS_JOB_OPENING) {
      zps_members_job_drop_joins(members, job, error.code, error.text);
      return ZPS_NEVER;
    }
    zps_members_join_drop(members, job, r, error.code, error.text);
  }
  return deadline;
}
