/* What the files about elastic jobs have in common. */
#ifndef ZPS_SERVER_MEMBERSHIP_ELASTIC_H
#define ZPS_SERVER_MEMBERSHIP_ELASTIC_H

#include "server/membership/members_impl.h"

/* The highest generation that an asker is believed to have been in. As many may follow. */
#define ZPS_GENERATION_SAID_MAX (1u << 31)

/* Of a rank of the last generation: it is in the job still, or on its way, or has asked, or is gone. */
enum zps_seat_state { ZPS_SEAT_GONE, ZPS_SEAT_IN, ZPS_SEAT_MOVING, ZPS_SEAT_ASKED };

struct zps_member_seat {
  enum zps_seat_state state;
  uint64_t until_ns; /* MOVING */
};

/* It is on its way to the next generation, which does not run yet. */
static inline bool zps_member_seat_moves(const struct zps_member_seat *place) {
  return place->state == ZPS_SEAT_MOVING || place->state == ZPS_SEAT_ASKED;
}

/* A process that waits for a place. */
struct zps_member_asker {
  struct zps_member_elastic *elastic;
  struct zps_member_rank *rank; /* the rank to be; its number is a wish */
  uint32_t last_seat;           /* see struct zps_member_rank */
  uint32_t last_generation;     /* The process named it; 0: none. */
  uint64_t step, asked_ns;
  struct zps_member_asker *next;
};

struct zps_member_elastic {
  char name[ZPS_NAME_MAX + 1];
  uint32_t number; /* of the last generation that was begun */
  uint32_t min_world, max_world;
  uint64_t wait_ms;
  struct zps_origin tenant;             /* of the client that asked first */
  struct zps_member_job *job, *forming; /* the generation that runs, or is over and has ranks in it; the next one */
  uint64_t last_job;                    /* the id of the last job that ran */
  uint32_t last_world;                  /* the world of last_job; 0: none has run */
  struct zps_member_seat *seats, *next_seats; /* last_world of them; those of `forming` */
  struct zps_member_asker *askers;            /* by arrival */
  bool is_changed;                            /* the ranks of `job` were told that others wait */
  bool is_noted;                              /* the state has seats of it */
  struct zps_member_elastic *next;
};

struct zps_member_elastic *zps_members_elastic_find(const struct zps_members *members, const char *name);
/* NULL: memory is short. */
struct zps_member_elastic *zps_members_elastic_create(struct zps_members *members, const char *name);
/* The job, which runs or has run, is its last generation. False: memory is short. */
bool zps_members_elastic_take(struct zps_member_elastic *elastic, struct zps_member_job *job);
/* True: the job is the last generation of its elastic job. Since a new start nobody may have asked for a place, so that
 * the elastic job is made here. */
bool zps_members_elastic_adopt(struct zps_members *members, struct zps_member_job *job);
/* Ranks of its last generation are on the way to the next one. */
bool zps_members_elastic_moves(const struct zps_member_elastic *elastic);
/* Its number has grown, or another rank is on the way. Where none is, there is nothing to note. */
void zps_members_elastic_note(struct zps_members *members, struct zps_member_elastic *elastic);
/* Takes the asker out, and answers it. */
void zps_members_asker_refuse(struct zps_members *members, struct zps_member_asker *asker, zps_err_t code,
                              const char *text);
/* No job is a generation of it any more. */
void zps_members_elastic_destroy(struct zps_member_elastic *elastic);
/* Takes it out, and frees it; its rank is its caller's. */
void zps_members_asker_seated(struct zps_member_asker *asker);

#endif
