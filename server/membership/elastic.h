/*
 * Elastic jobs: the facts about their ranks. A process asks for a seat, and a generation is a job with the ranks that
 * have asked. Each rank of the last generation has a seat here, until the next one runs.
 * placement.h decides when a generation begins and ends. generations.c carries that out.
 */
#ifndef ZPS_SERVER_MEMBERSHIP_ELASTIC_H
#define ZPS_SERVER_MEMBERSHIP_ELASTIC_H

#include "server/membership/members_impl.h"

/* The highest generation number that an asker is believed. As many may follow. */
#define ZPS_GENERATION_SAID_MAX (1u << 31)

struct zps_member_elastic {
  char name[ZPS_NAME_MAX + 1];
  uint32_t number; /* of the last generation that was begun */
  uint32_t min_world, max_world;
  uint64_t wait_ms;
  struct zps_origin tenant;             /* of the client that asked first */
  struct zps_member_job *job, *forming; /* the generation that runs, or is over and has ranks in it; the next one */
  uint64_t last_job;                    /* the id of the last job that ran */
  uint32_t last_world;                  /* the world of last_job; 0: none has run */
  uint64_t *moves;                /* Of its ranks: until when each may be on its way to the next generation. ZPS_NEVER:
                                     it has asked. 0: it is in the job, or gone. */
  struct zps_member_rank *askers; /* Ranks of the last generation by their numbers; then others by arrival. */
  bool is_changed;                /* The ranks of `job` are to begin the next generation. */
  bool is_noted;                  /* The state has seats of it. */
  struct zps_member_elastic *next;
};

struct zps_member_elastic *zps_members_elastic_find(const struct zps_members *members, const char *name);
/* NULL: memory is short. */
struct zps_member_elastic *zps_members_elastic_create(struct zps_members *members, const char *name);
/* Finds it, or makes it from the job of this name that runs: after a new start nobody may have asked. NULL: memory is
 * short. */
struct zps_member_elastic *zps_members_elastic_get(struct zps_members *members, const char *name);
/* Nothing of it but a job's generation number is known any more. */
void zps_members_elastic_destroy(struct zps_members *members, struct zps_member_elastic *elastic);
/* Ranks of its last generation are on the way to the next one, or have asked. */
bool zps_members_elastic_moves(const struct zps_member_elastic *elastic);
/* Its number has grown, or another rank is on the way. Where none is, there is nothing to note. */
void zps_members_elastic_note(struct zps_members *members, struct zps_member_elastic *elastic);
/* Adds a rank that asks. */
void zps_members_asker_add(struct zps_member_elastic *elastic, struct zps_member_rank *rank);
/* Takes the rank out, answers it and frees it. */
void zps_members_asker_refuse(struct zps_members *members, struct zps_member_rank *rank, zps_err_t code,
                              const char *text);

#endif
