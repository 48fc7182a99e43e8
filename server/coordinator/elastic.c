/*
 * Elastic jobs: their ranks are gathered here, generation by generation. A process asks for a place; when all are there
 * that can be waited for, a job begins with them, whose ranks and world follow from who has come. That job is one like
 * any other. When it goes no further, its ranks move on: they leave it, and ask again.
 *
 * Of the last generation that ran, each rank has a seat here: it is in the job still, or on its way, or has asked, or
 * is gone. Generations begin in the tick, which follows every event.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/elastic.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define MOVE_NS (10 * ZPS_NS_PER_S) /* from leaving a generation to asking for the next */

static struct zps_member_elastic *find(const struct zps_members *members, const char *name) {
  struct zps_member_elastic *elastic = members->elastics;
  while (elastic && strcmp(elastic->name, name) != 0) elastic = elastic->next;
  return elastic;
}

static struct zps_member_elastic *create(struct zps_members *members, const char *name) {
  struct zps_member_elastic *const elastic = calloc(1, sizeof *elastic);
  if (!elastic) return NULL;
  snprintf(elastic->name, sizeof elastic->name, "%s", name);
  elastic->next = members->elastics;
  members->elastics = elastic;
  return elastic;
}

void zps_members_elastic_destroy(struct zps_member_elastic *elastic) {
  free(elastic->seats);
  free(elastic->next_seats);
  free(elastic);
}

/* Of a job that runs, or has run. False: memory is short. */
static bool take_job(struct zps_member_elastic *elastic, struct zps_member_job *job) {
  struct zps_member_place *const seats = calloc(job->world, sizeof *seats);
  if (!seats) return false;
  for (uint32_t r = 0; r < job->world; r++)
    seats[r].state = job->ranks[r]->state == ZPS_RANK_IN ? ZPS_SEAT_IN : ZPS_SEAT_GONE;
  free(elastic->seats);
  elastic->seats = seats;
  elastic->job = job;
  elastic->last_number = job->generation.number;
  elastic->last_world = job->world;
  if (elastic->number < elastic->last_number) elastic->number = elastic->last_number;
  job->elastic = elastic;
  return true;
}

/* The youngest job of this name that runs, or whose ranks have not left it. */
static struct zps_member_job *job_by_name(const struct zps_members *members, const char *name) {
  struct zps_member_job *found = NULL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next)
    if (strcmp(job->name, name) == 0 && job->state >= ZPS_JOB_RUNNING && job->n_joined > 0) found = job;
  return found;
}

/* ------------------------------------------------------------ what becomes of ranks */

void zps_members_elastic_left(struct zps_members *members, struct zps_member_job *job, uint32_t rank, bool moves) {
  struct zps_member_elastic *elastic = job->elastic;
  if (!elastic && moves) { /* the coordinator has started again meanwhile */
    elastic = find(members, job->name);
    if (!elastic) elastic = create(members, job->name);
    if (!elastic || elastic->job || !take_job(elastic, job)) return;
  }
  if (!elastic || elastic->job != job) return;
  elastic->seats[rank] = (struct zps_member_place){.state = moves ? ZPS_SEAT_MOVING : ZPS_SEAT_GONE,
                                                   .until_ns = members->now_ns + MOVE_NS};
}

void zps_members_elastic_opened(struct zps_member_job *job) {
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic) return;
  if (elastic->job) elastic->job->elastic = NULL; /* ranks that were left behind are in it */
  free(elastic->seats);
  elastic->seats = elastic->next_seats;
  elastic->next_seats = NULL;
  for (uint32_t r = 0; r < job->world; r++) elastic->seats[r].state = ZPS_SEAT_IN;
  elastic->job = job;
  elastic->forming = NULL;
  elastic->is_changed = false;
  elastic->last_number = job->generation.number;
  elastic->last_world = job->world;
}

void zps_members_elastic_dropped(struct zps_members *members, const struct zps_member_job *job,
                                 const struct zps_member_rank *rank, bool is_lost) {
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic || rank->last_seat == 0) return;
  struct zps_member_place *const seat = &elastic->seats[rank->last_seat - 1];
  if (seat->state != ZPS_SEAT_ASKED) return;
  *seat = (struct zps_member_place){.state = is_lost ? ZPS_SEAT_GONE : ZPS_SEAT_MOVING,
                                    .until_ns = members->now_ns + MOVE_NS};
}

void zps_members_elastic_job_gone(const struct zps_member_job *job) {
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic) return;
  if (elastic->job == job) elastic->job = NULL;
  if (elastic->forming == job) elastic->forming = NULL;
}

bool zps_members_elastic_is_changed(const struct zps_member_job *job) {
  return job->elastic && job->elastic->job == job && job->elastic->is_changed;
}

/* ------------------------------------------------------------ askers */

static void remove_asker(struct zps_member_asker *asker) {
  struct zps_member_asker **link = &asker->elastic->askers;
  while (*link != asker) link = &(*link)->next;
  *link = asker->next;
}

void zps_members_asker_seated(struct zps_member_asker *asker) {
  remove_asker(asker);
  asker->rank->client->asker = NULL;
  free(asker);
}

void zps_members_asker_refuse(struct zps_members *members, struct zps_member_asker *asker, zps_err_t code,
                              const char *text) {
  if (asker->last_seat) asker->elastic->seats[asker->last_seat - 1].state = ZPS_SEAT_GONE;
  zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_JOIN_FAILED,
                                                .client = asker->rank->client,
                                                .token = asker->rank->token,
                                                .rank = asker->rank->rank,
                                                .code = code,
                                                .text = text});
  struct zps_member_rank *const rank = asker->rank;
  zps_members_asker_seated(asker);
  free(rank);
}

void zps_members_asker_gone(struct zps_members *members, struct zps_member_asker *asker, bool is_lost) {
  struct zps_member_elastic *const elastic = asker->elastic;
  const uint32_t last_seat = asker->last_seat;
  zps_log_info("job '%s': host %s, pid %u waits no longer to be let in: its connection has ended", elastic->name,
               asker->rank->host, asker->rank->pid);
  zps_members_asker_refuse(members, asker, ZPS_ERR_CLOSED, "the connection has ended");
  if (last_seat && !is_lost)
    elastic->seats[last_seat - 1] =
        (struct zps_member_place){.state = ZPS_SEAT_MOVING, .until_ns = members->now_ns + MOVE_NS};
}

void zps_members_elastic_refuse(struct zps_members *members, zps_err_t code, const char *text) {
  for (const struct zps_member_elastic *elastic = members->elastics; elastic; elastic = elastic->next)
    while (elastic->askers) zps_members_asker_refuse(members, elastic->askers, code, text);
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
  if (spec->generation == 0 || spec->generation != elastic->last_number || spec->last_rank >= elastic->last_world)
    return 0;
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
  if (err) return err;
  struct zps_member_elastic *elastic = find(members, spec->join.job);
  if (ask_again(members, elastic, client, spec->join.secret, spec->join.job, token)) return ZPS_OK;
  err = check(members, spec, elastic, error);
  if (err) return err;
  struct zps_member_asker *const asker = calloc(1, sizeof *asker);
  struct zps_member_rank *rank = NULL;
  err = asker ? zps_members_rank_make(&spec->join, client, token, now_ns, &rank, error)
              : zps_fail(error, ZPS_ERR_NOMEM, "no memory for another rank of job '%s'", spec->join.job);
  if (!err && !elastic) {
    struct zps_member_job *const job = job_by_name(members, spec->join.job);
    elastic = create(members, spec->join.job);
    if (!elastic || (job && !take_job(elastic, job)))
      err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for job '%s'", spec->join.job);
  }
  if (err) {
    free(asker);
    free(rank);
    return err;
  }
  if (!elastic->askers) {
    elastic->min_world = spec->min_world;
    elastic->max_world = spec->max_world;
    elastic->wait_ms = spec->wait_ms;
  }
  if (elastic->number < spec->generation) elastic->number = spec->generation;
  *asker = (struct zps_member_asker){
      .elastic = elastic, .rank = rank, .last_seat = seat_of(elastic, spec), .step = spec->step, .asked_ns = now_ns};
  rank->last_seat = asker->last_seat;
  if (asker->last_seat) elastic->seats[asker->last_seat - 1].state = ZPS_SEAT_ASKED;
  client->asker = asker;
  append(elastic, asker);
  return ZPS_OK;
}

void zps_members_elastic_fini(struct zps_members *members) {
  while (members->elastics) {
    struct zps_member_elastic *const elastic = members->elastics;
    members->elastics = elastic->next;
    zps_members_elastic_destroy(elastic);
  }
}
