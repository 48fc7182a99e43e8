#include "server/membership/elastic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void zps_members_elastic_destroy(struct zps_members *members, struct zps_member_elastic *elastic) {
  struct zps_member_elastic **link = &members->elastics;
  while (*link != elastic) link = &(*link)->next;
  *link = elastic->next;
  if (elastic->job) elastic->job->elastic = NULL;
  free(elastic->moves);
  free(elastic);
}

/* Ranks that were left behind are in the generation before it. */
static void take_job(struct zps_member_elastic *elastic, struct zps_member_job *job) {
  if (elastic->job) elastic->job->elastic = NULL;
  elastic->job = job;
  elastic->last_job = job->job_id;
  elastic->last_world = job->world;
  elastic->is_changed = elastic->is_noted = false; /* The job's note takes the place of that of the seats. */
  job->elastic = elastic;
}

/* The youngest one that runs, or that ranks have not left. */
static struct zps_member_job *last_generation(const struct zps_members *members, const char *name) {
  struct zps_member_job *found = NULL;
  for (struct zps_member_job *job = members->jobs; job; job = job->next)
    if (strcmp(job->name, name) == 0 && job->state >= ZPS_JOB_RUNNING && job->n_joined > 0) found = job;
  return found;
}

struct zps_member_elastic *zps_members_elastic_get(struct zps_members *members, const char *name) {
  struct zps_member_elastic *elastic = zps_members_elastic_find(members, name);
  if (elastic) return elastic;
  struct zps_member_job *const job = last_generation(members, name);
  elastic = zps_members_elastic_create(members, name);
  if (!elastic || !job) return elastic;
  elastic->moves = calloc(job->world, sizeof *elastic->moves);
  if (!elastic->moves) {
    zps_members_elastic_destroy(members, elastic);
    return NULL;
  }
  elastic->tenant = job->tenant;
  elastic->number = job->generation.number;
  take_job(elastic, job);
  return elastic;
}

bool zps_members_elastic_moves(const struct zps_member_elastic *elastic) {
  for (uint32_t r = 0; r < elastic->last_world; r++)
    if (elastic->moves[r]) return true;
  return false;
}

void zps_members_elastic_note(struct zps_members *members, struct zps_member_elastic *elastic) {
  if (!zps_members_elastic_moves(elastic)) return;
  elastic->is_noted = true;
  zps_members_note(members, .type = ZPS_NOTE_SEATS, .elastic = elastic);
}

/* ------------------------------------------------------------ jobs */

void zps_members_elastic_left(struct zps_members *members, const struct zps_member_job *job, uint32_t rank) {
  struct zps_member_elastic *const elastic = zps_members_elastic_get(members, job->name);
  if (!elastic || elastic->job != job) return;
  if (elastic->moves[rank] == ZPS_NEVER) return; /* It has asked over another connection. */
  elastic->moves[rank] = members->now_ns + MOVE_NS;
  zps_members_elastic_note(members, elastic);
}

void zps_members_elastic_opened(struct zps_member_job *job) {
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic) return;
  memset(elastic->moves, 0, job->world * sizeof *elastic->moves);
  for (struct zps_member_rank *rank = elastic->askers; rank; rank = rank->next_asker) rank->last_seat = 0;
  for (uint32_t r = 0; r < job->world; r++) job->ranks[r]->last_seat = 0;
  elastic->forming = NULL;
  take_job(elastic, job);
}

void zps_members_elastic_job_gone(const struct zps_member_job *job) {
  struct zps_member_elastic *const elastic = job->elastic;
  if (!elastic) return;
  if (elastic->job == job) elastic->job = NULL;
  if (elastic->forming == job) elastic->forming = NULL;
}

/* ------------------------------------------------------------ ranks that ask */

/* Ranks of the last generation by their numbers, then others. */
static uint32_t order_of(const struct zps_member_rank *rank) {
  return rank->last_seat - 1;
}

void zps_members_asker_add(struct zps_member_elastic *elastic, struct zps_member_rank *rank) {
  struct zps_member_rank **link = &elastic->askers;
  while (*link && order_of(*link) <= order_of(rank)) link = &(*link)->next_asker;
  rank->next_asker = *link;
  *link = rank;
  rank->elastic = elastic;
  rank->client->asker = rank;
  if (rank->last_seat) elastic->moves[rank->last_seat - 1] = ZPS_NEVER;
}

void zps_members_seat_leave(const struct zps_members *members, struct zps_member_rank *rank, bool is_lost) {
  if (rank->last_seat) rank->elastic->moves[rank->last_seat - 1] = is_lost ? 0 : members->now_ns + MOVE_NS;
  rank->last_seat = 0;
}

void zps_members_asker_refuse(struct zps_members *members, struct zps_member_rank *rank, zps_err_t code,
                              const char *text) {
  struct zps_member_rank **link = &rank->elastic->askers;
  while (*link != rank) link = &(*link)->next_asker;
  *link = rank->next_asker;
  zps_members_seat_leave(members, rank, true);
  rank->client->asker = NULL;
  zps_members_join_answer(members, NULL, rank, code, text);
  free(rank);
}

void zps_members_asker_gone(struct zps_members *members, struct zps_member_rank *rank, bool is_lost) {
  zps_log_about(.job = rank->elastic->name);
  zps_log_info("job '%s': host %s, pid %u no longer waits to join: its connection has ended", rank->elastic->name,
               rank->host, rank->pid);
  zps_members_seat_leave(members, rank, is_lost);
  zps_members_asker_refuse(members, rank, ZPS_ERR_CLOSED, "the connection has ended");
}
