/* A rank arrives: it joins a job, or asks for a seat in an elastic one. Its wishes must fit those of the others, and
 * the servers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/elastic.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/config.h"
#include "common/base/log.h"

/* The youngest job of this name, unless it has failed or begun to end: it takes joins, or refuses taken ranks. */
static struct zps_member_job *job_by_name(struct zps_members *members, const char *name) {
  struct zps_member_job *found = NULL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    const bool is_over = job->state == ZPS_JOB_CLOSING || job->n_left > 0 || job->n_joined == 0;
    if (strcmp(job->name, name) == 0 && !is_over) found = job;
  }
  return found;
}

static zps_err_t join_check(const struct zps_members *members, const struct zps_member_client *client,
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

/* The servers agree with each other. */
static zps_err_t server_fits(const struct zps_members *members, const struct zps_net_info *fabric, const char *who,
                             struct zps_error *error) {
  return members->n_servers == 0
             ? ZPS_OK
             : zps_members_fabric_check(fabric, who, &members->servers[0]->fabric, members->servers[0]->name, error);
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
          job->name, job->places, other, who, spec->places, zps_config_label("job.server_places"));
  }
  const struct zps_member_rank *holder = job->ranks[spec->rank];
  if (holder)
    return zps_fail(error, ZPS_ERR_RANK_TAKEN,
                    "rank %u of job '%s' is held by host %s, pid %u; host %.60s, pid %u cannot have it too", spec->rank,
                    job->name, holder->host, holder->pid, spec->host, spec->pid);
  return first ? zps_members_fabric_check(spec->fabric, who, &first->fabric, other, error)
               : server_fits(members, spec->fabric, who, error);
}

/* The jobs that one tenant may have. A client's certificate, token, or else address names its tenant. ZPS_ERR_QUOTA:
 * too many of its jobs wait (`config.max_waiting`), or it has its share of all. */
static zps_err_t tenant_may_begin(const struct zps_members *members, const struct zps_member_client *client,
                                  const char *name, struct zps_error *error) {
  const uint32_t max_waiting = members->config.max_waiting, max_jobs = members->config.max_jobs;
  uint32_t n_own = 0, n_waiting = 0;
  for (const struct zps_member_job *job = members->jobs; job; job = job->next) {
    if (!zps_origin_is(&job->tenant, &client->tenant)) continue;
    n_own++;
    n_waiting += job->state == ZPS_JOB_JOINING;
  }
  for (const struct zps_member_elastic *elastic = members->elastics; elastic; elastic = elastic->next)
    n_waiting +=
        elastic->askers && !elastic->job && !elastic->forming && zps_origin_is(&elastic->tenant, &client->tenant);
  if (max_waiting && n_waiting >= max_waiting)
    return zps_fail(error, ZPS_ERR_QUOTA,
                    "job '%.60s': %u jobs of its certificate, token or address wait for ranks or servers, and %u may "
                    "(%s)",
                    name, n_waiting, max_waiting, zps_config_label("job.max_waiting"));
  const uint32_t n_others = members->n_jobs - n_own, share = n_others < max_jobs ? (max_jobs - n_others + 1) / 2 : 0;
  if (!client->has_share || members->n_jobs >= max_jobs || n_own < share) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_QUOTA,
                  "job '%.60s': there are %u jobs of its certificate or token, and there may be %u: half of the jobs "
                  "that others leave of %u",
                  name, n_own, share, max_jobs);
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

/* The same process over another connection, since it did not hear the answer over the first. */
static void join_again(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
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

static zps_err_t rank_make(const struct zps_join_spec *spec, struct zps_member_client *client, void *token,
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
  zps_err_t err = join_check(members, client, spec, error);
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
    join_again(members, job, holder, client, token);
    return ZPS_OK;
  }
  if (!job) {
    err = tenant_may_begin(members, client, spec->job, error);
    if (!err) err = zps_members_job_create(members, spec, now_ns, &job, error);
    if (err) return err;
    job->origin = client->origin;
    job->tenant = client->tenant;
  }
  struct zps_member_rank *rank = NULL;
  err = join_fits(members, job, spec, error);
  if (!err) err = rank_make(spec, client, token, now_ns, &rank, error);
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

/* ------------------------------------------------------------ elastic jobs */

static zps_err_t next_fits(const struct zps_members *members, const struct zps_next_spec *spec,
                           const struct zps_member_elastic *elastic, struct zps_error *error) {
  char who[ZPS_NAME_MAX + 64];
  const struct zps_member_rank *const first = elastic->askers;
  snprintf(who, sizeof who, "host %s, pid %u", spec->join.host, spec->join.pid);
  if (first && (spec->min_world != elastic->min_world || spec->max_world != elastic->max_world ||
                spec->wait_ms != elastic->wait_ms))
    return zps_fail(error, ZPS_ERR_SHAPE,
                    "job '%.60s': %.160s wants %u to %u ranks and a wait of %g s; others want %u to %u and %g s",
                    spec->join.job, who, spec->min_world, spec->max_world, (double)spec->wait_ms / 1000,
                    elastic->min_world, elastic->max_world, (double)elastic->wait_ms / 1000);
  return first ? zps_members_fabric_check(spec->join.fabric, who, &first->fabric, first->host, error)
               : server_fits(members, spec->join.fabric, who, error);
}

/* The same process, which did not hear its answer, over another connection. */
static bool ask_again(struct zps_members *members, struct zps_member_client *client, const struct zps_join_spec *spec,
                      void *token) {
  const struct zps_member_elastic *const elastic = zps_members_elastic_find(members, spec->job);
  if (spec->secret == 0) return false;
  for (struct zps_member_rank *rank = elastic ? elastic->askers : NULL; rank; rank = rank->next_asker) {
    if (rank->secret != spec->secret) continue;
    zps_members_asker_gone(members, rank, false);
    return false; /* it is a new one */
  }
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    if (strcmp(job->name, spec->job) != 0 || job->state == ZPS_JOB_CLOSING) continue;
    for (uint32_t r = 0; r < job->world; r++) {
      if (!job->ranks[r] || job->ranks[r]->secret != spec->secret || job->ranks[r]->state > ZPS_RANK_IN) continue;
      join_again(members, job, job->ranks[r], client, token);
      return true;
    }
  }
  return false;
}

/* The process is this rank of the job, and nobody heard that it left. */
static bool is_in(const struct zps_member_job *job, const struct zps_join_spec *spec, uint32_t r) {
  return job && job->ranks[r]->state == ZPS_RANK_IN && job->ranks[r]->pid == spec->pid &&
         strcmp(job->ranks[r]->host, spec->host) == 0;
}

/* Its seat of the last generation, if it has one: 1 more than its number. */
static uint32_t seat_of(const struct zps_member_elastic *elastic, const struct zps_next_spec *spec) {
  const uint32_t r = spec->last_rank;
  if (spec->generation == 0 || spec->last_job != elastic->last_job || r >= elastic->last_world) return 0;
  const bool is_moving = elastic->moves[r] ? elastic->moves[r] != ZPS_NEVER : is_in(elastic->job, &spec->join, r);
  return is_moving ? r + 1 : 0;
}

zps_err_t zps_members_next(struct zps_members *members, struct zps_member_client *client,
                           const struct zps_next_spec *spec, void *token, uint64_t now_ns, struct zps_error *error) {
  zps_err_t err = join_check(members, client, &spec->join, error);
  if (!err && spec->generation > 0) err = zps_members_may_be_back(members, spec->last_job, spec->last_rank, 0, error);
  if (!err && spec->min_world > spec->max_world)
    err = zps_fail(error, ZPS_ERR_INVALID,
                   "job '%s' of at least %u and at most %u ranks: min_world is more than max_world", spec->join.job,
                   spec->min_world, spec->max_world);
  if (err) return err;
  if (ask_again(members, client, &spec->join, token)) return ZPS_OK;
  struct zps_member_elastic *const elastic = zps_members_elastic_get(members, spec->join.job);
  struct zps_member_rank *rank = NULL;
  if (!elastic) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", spec->join.job);
  const bool is_new = !elastic->askers && !elastic->job && !elastic->forming;
  err = next_fits(members, spec, elastic, error);
  if (!err && is_new) err = tenant_may_begin(members, client, spec->join.job, error);
  if (!err) err = rank_make(&spec->join, client, token, now_ns, &rank, error);
  if (err) return err; /* The next settle takes an elastic job away that nobody asks for. */
  if (is_new || !elastic->tenant.is_known) elastic->tenant = client->tenant;
  if (!elastic->askers) {
    elastic->min_world = spec->min_world;
    elastic->max_world = spec->max_world;
    elastic->wait_ms = spec->wait_ms;
  }
  rank->last_seat = seat_of(elastic, spec);
  rank->last_generation = spec->generation;
  rank->step = spec->step;
  const bool was_in = rank->last_seat && elastic->moves[spec->last_rank] == 0;
  zps_members_asker_add(elastic, rank);
  if (was_in) zps_members_elastic_note(members, elastic);
  return ZPS_OK;
}
