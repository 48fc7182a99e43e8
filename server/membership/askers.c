/* Processes that ask for a place in an elastic job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/elastic.h"

/* The youngest job of this name that runs, or whose ranks have not left it. */
static struct zps_member_job *job_by_name(const struct zps_members *members, const char *name) {
  struct zps_member_job *found = NULL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next)
    if (strcmp(job->name, name) == 0 && job->state >= ZPS_JOB_RUNNING && job->n_joined > 0) found = job;
  return found;
}

static zps_err_t check(const struct zps_members *members, const struct zps_next_spec *spec,
                       const struct zps_member_elastic *elastic, struct zps_error *error) {
  char who[ZPS_NAME_MAX + 64];
  snprintf(who, sizeof who, "host %s, pid %u", spec->join.host, spec->join.pid);
  if (spec->min_world > spec->max_world)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "job '%s' of at least %u and at most %u ranks: min_world is more than max_world", spec->join.job,
                    spec->min_world, spec->max_world);
  if (elastic && elastic->askers &&
      (spec->min_world != elastic->min_world || spec->max_world != elastic->max_world ||
       spec->wait_ms != elastic->wait_ms))
    return zps_fail(error, ZPS_ERR_SHAPE,
                    "job '%.60s': %.160s wants %u to %u ranks and a wait of %g s; others want %u to %u and %g s",
                    spec->join.job, who, spec->min_world, spec->max_world, (double)spec->wait_ms / 1000,
                    elastic->min_world, elastic->max_world, (double)elastic->wait_ms / 1000);
  if (elastic && elastic->askers)
    return zps_members_fabric_check(spec->join.fabric, who, &elastic->askers->rank->fabric, elastic->askers->rank->host,
                                    error);
  return members->n_servers == 0 ? ZPS_OK
                                 : zps_members_fabric_check(spec->join.fabric, who, &members->servers[0]->fabric,
                                                            members->servers[0]->name, error);
}

/* The same process, which did not hear its answer, over another connection. */
static bool ask_again(struct zps_members *members, struct zps_member_elastic *elastic, struct zps_member_client *client,
                      uint64_t secret, const char *name, void *token) {
  if (secret == 0) return false;
  for (struct zps_member_asker *asker = elastic ? elastic->askers : NULL; asker; asker = asker->next) {
    if (asker->rank->secret != secret) continue;
    zps_members_asker_gone(members, asker, false);
    return false; /* it is a new one */
  }
  for (struct zps_member_job *job = members->jobs; job; job = job->next) {
    if (strcmp(job->name, name) != 0 || job->state == ZPS_JOB_CLOSING) continue;
    for (uint32_t r = 0; r < job->world; r++) {
      if (!job->ranks[r] || job->ranks[r]->secret != secret || job->ranks[r]->state > ZPS_RANK_IN) continue;
      zps_members_join_again(members, job, job->ranks[r], client, token);
      return true;
    }
  }
  return false;
}

/* A process whose leave was not heard. */
static bool is_rank(const struct zps_member_job *job, const struct zps_join_spec *spec, uint32_t r) {
  return job && job->ranks[r]->pid == spec->pid && strcmp(job->ranks[r]->host, spec->host) == 0;
}

/* Its seat of the last generation, if it has one: 1 more than its number. */
static uint32_t seat_of(const struct zps_member_elastic *elastic, const struct zps_next_spec *spec) {
  if (spec->generation == 0 || spec->last_job != elastic->last_job || spec->last_rank >= elastic->last_world) return 0;
  const enum zps_seat_state state = elastic->seats[spec->last_rank].state;
  if (state == ZPS_SEAT_MOVING || (state == ZPS_SEAT_IN && is_rank(elastic->job, &spec->join, spec->last_rank)))
    return spec->last_rank + 1;
  return 0;
}

static void append(struct zps_member_elastic *elastic, struct zps_member_asker *asker) {
  struct zps_member_asker **link = &elastic->askers;
  while (*link) link = &(*link)->next;
  *link = asker;
}

zps_err_t zps_members_next(struct zps_members *members, struct zps_member_client *client,
                           const struct zps_next_spec *spec, void *token, uint64_t now_ns, struct zps_error *error) {
  zps_err_t err = zps_members_join_check(members, client, &spec->join, error);
  if (!err && spec->generation > 0) err = zps_members_may_be_back(members, spec->last_job, spec->last_rank, 0, error);
  if (err) return err;
  struct zps_member_elastic *elastic = zps_members_elastic_find(members, spec->join.job);
  if (ask_again(members, elastic, client, spec->join.secret, spec->join.job, token)) return ZPS_OK;
  err = check(members, spec, elastic, error);
  struct zps_member_job *const job = elastic ? NULL : job_by_name(members, spec->join.job); /* After a new start. */
  const bool is_new = elastic ? !elastic->askers && !elastic->job && !elastic->forming : !job;
  if (!err && is_new) err = zps_members_tenant_may_begin(members, client, spec->join.job, error);
  if (err) return err;
  struct zps_member_asker *const asker = calloc(1, sizeof *asker);
  struct zps_member_rank *rank = NULL;
  err = asker ? zps_members_rank_make(&spec->join, client, token, now_ns, &rank, error)
              : zps_fail(error, ZPS_ERR_NOMEM, "no memory for another rank of job '%s'", spec->join.job);
  if (!err && !elastic) {
    elastic = zps_members_elastic_create(members, spec->join.job);
    if (!elastic || (job && !zps_members_elastic_take(elastic, job)))
      err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", spec->join.job);
  }
  if (err) {
    free(asker);
    free(rank);
    return err;
  }
  if (is_new || !elastic->tenant.is_known) elastic->tenant = client->tenant;
  if (!elastic->askers) {
    elastic->min_world = spec->min_world;
    elastic->max_world = spec->max_world;
    elastic->wait_ms = spec->wait_ms;
  }
  *asker = (struct zps_member_asker){.elastic = elastic,
                                     .rank = rank,
                                     .last_seat = seat_of(elastic, spec),
                                     .last_generation = spec->generation,
                                     .step = spec->step,
                                     .asked_ns = now_ns};
  rank->last_seat = asker->last_seat;
  const bool was_in = asker->last_seat && elastic->seats[asker->last_seat - 1].state == ZPS_SEAT_IN;
  if (asker->last_seat) elastic->seats[asker->last_seat - 1].state = ZPS_SEAT_ASKED;
  if (was_in) zps_members_elastic_note(members, elastic);
  client->asker = asker;
  append(elastic, asker);
  return ZPS_OK;
}
