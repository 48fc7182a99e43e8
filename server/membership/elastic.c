/*
 * Elastic jobs: their ranks are gathered here, generation by generation. A process asks for a place; when all are there
 * that can be waited for, a job begins with them, whose ranks and world follow from who has come. That job is one like
 * any other. When it goes no further, its ranks move on: they leave it, and ask again.
 *
 * Of the last generation that ran, each rank has a seat here: it is in the job still, or on its way, or has asked, or
 * is gone. Generations begin in the settle that follows every event.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/membership/elastic.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define MOVE_NS (10 * ZPS_NS_PER_S) /* from leaving a generation to asking for the next */

struct zps_member_elastic *zps_members_elastic_find(const struct zps_members *members, const char *name) {
  struct zps_member_elastic *elastic = members->elastics;
  while (elastic && strcmp(elastic->name, name) != 0) elastic = elastic->next;
  return elastic;
}

struct zps_member_elastic *zps_members_elastic_create(struct zps_members *members, const char *name) {
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

bool zps_members_elastic_take(struct zps_member_elastic *elastic, struct zps_member_job *job) {
  struct zps_member_seat *const seats = calloc(job->world, sizeof *seats);
  if (!seats) return false;
  for (uint32_t r = 0; r < job->world; r++)
    seats[r].state = job->ranks[r]->state == ZPS_RANK_IN ? ZPS_SEAT_IN : ZPS_SEAT_GONE;
  free(elastic->seats);
  elastic->seats = seats;
  elastic->job = job;
  elastic->tenant = job->tenant;
  elastic->last_job = job->job_id;
  elastic->last_world = job->world;
  if (elastic->number < job->generation.number) elastic->number = job->generation.number;
  job->elastic = elastic;
  return true;
}

bool zps_members_elastic_moves(const struct zps_member_elastic *elastic) {
  for (uint32_t r = 0; r < elastic->last_world; r++)
    if (zps_member_seat_moves(&elastic->seats[r])) return true;
  return false;
}

void zps_members_elastic_note(struct zps_members *members, struct zps_member_elastic *elastic) {
  if (!zps_members_elastic_moves(elastic)) return;
  elastic->is_noted = true;
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SEATS, .elastic = elastic});
}

/* ------------------------------------------------------------ after a new start */

static bool is_last_generation(const struct zps_members *members, const struct zps_member_job *job) {
  for (const struct zps_member_job *other = members->jobs; other; other = other->next)
    if (other->generation.number > job->generation.number && strcmp(other->name, job->name) == 0) return false;
  return true;
}

bool zps_members_elastic_adopt(struct zps_members *members, struct zps_member_job *job) {
  if (job->elastic) return job->elastic->job == job;
  if (zps_members_elastic_find(members, job->name) || !is_last_generation(members, job)) return false;
  struct zps_member_elastic *const elastic = zps_members_elastic_create(members, job->name);
  return elastic && zps_members_elastic_take(elastic, job);
}

/* ------------------------------------------------------------ what becomes of ranks */

void zps_members_elastic_left(struct zps_members *members, struct zps_member_job *job, uint32_t rank, bool moves) {
  if (moves && !zps_members_elastic_adopt(members, job)) return;
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic || elastic->job != job) return;
  if (elastic->seats[rank].state == ZPS_SEAT_ASKED) return; /* over another connection: it is there already */
  elastic->seats[rank] =
      (struct zps_member_seat){.state = moves ? ZPS_SEAT_MOVING : ZPS_SEAT_GONE, .until_ns = members->now_ns + MOVE_NS};
  if (moves) zps_members_elastic_note(members, elastic);
}

void zps_members_elastic_opened(struct zps_member_job *job) {
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic) return;
  if (elastic->job) elastic->job->elastic = NULL; /* ranks that were left behind are in it */
  for (struct zps_member_asker *asker = elastic->askers; asker; asker = asker->next)
    asker->last_seat = asker->rank->last_seat = 0; /* so were these, that came while it was opened */
  free(elastic->seats);
  elastic->seats = elastic->next_seats;
  elastic->next_seats = NULL;
  for (uint32_t r = 0; r < job->world; r++) elastic->seats[r].state = ZPS_SEAT_IN;
  elastic->job = job;
  elastic->forming = NULL;
  elastic->is_changed = elastic->is_noted = false; /* the job's note takes the place of that of the seats */
  elastic->last_job = job->job_id;
  elastic->last_world = job->world;
}

void zps_members_elastic_dropped(struct zps_members *members, const struct zps_member_job *job,
                                 const struct zps_member_rank *rank, bool is_lost) {
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic || rank->last_seat == 0) return;
  struct zps_member_seat *const seat = &elastic->seats[rank->last_seat - 1];
  if (seat->state != ZPS_SEAT_ASKED) return;
  *seat = (struct zps_member_seat){.state = is_lost ? ZPS_SEAT_GONE : ZPS_SEAT_MOVING,
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
  zps_log_about(.job = elastic->name);
  zps_log_info("job '%s': host %s, pid %u no longer waits to join: its connection has ended", elastic->name,
               asker->rank->host, asker->rank->pid);
  zps_members_asker_refuse(members, asker, ZPS_ERR_CLOSED, "the connection has ended");
  if (last_seat && !is_lost)
    elastic->seats[last_seat - 1] =
        (struct zps_member_seat){.state = ZPS_SEAT_MOVING, .until_ns = members->now_ns + MOVE_NS};
}

void zps_members_elastic_refuse(struct zps_members *members, zps_err_t code, const char *text) {
  for (const struct zps_member_elastic *elastic = members->elastics; elastic; elastic = elastic->next)
    while (elastic->askers) zps_members_asker_refuse(members, elastic->askers, code, text);
}

void zps_members_elastic_fini(struct zps_members *members) {
  while (members->elastics) {
    struct zps_member_elastic *const elastic = members->elastics;
    members->elastics = elastic->next;
    zps_members_elastic_destroy(elastic);
  }
}
