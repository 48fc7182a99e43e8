/*
 * Notes keep the facts of membership for a new start of the coordinator. Each note adds a fact, or ends one. A note is
 * given when that is decided, ahead of the actions that tell of it; whoever takes it makes it durable before these
 * leave. Not noted: joins that wait (their ranks ask again; of an elastic job it is known who had a seat), statistics
 * of running jobs, and where members are connected.
 *
 * The same notes, given back in their order to the functions below, make the same membership, whose servers and ranks
 * are all away.
 */
#ifndef ZPS_SERVER_MEMBERSHIP_NOTES_H
#define ZPS_SERVER_MEMBERSHIP_NOTES_H

#include "server/membership/history.h"
#include "server/membership/members.h"

enum zps_note_type {
  ZPS_NOTE_COUNTERS,     /* next_server, epoch */
  ZPS_NOTE_SERVER,       /* server: is in, or has changed */
  ZPS_NOTE_SERVER_GONE,  /* server */
  ZPS_NOTE_JOB,          /* job: runs, or has changed; all of it but tensors and groups */
  ZPS_NOTE_JOB_FAILED,   /* job */
  ZPS_NOTE_JOB_GONE,     /* Read alone: older releases told no more of a job's end. */
  ZPS_NOTE_JOB_CAUSE,    /* job: the first error of its ranks, or that there is none any more */
  ZPS_NOTE_JOB_ENDED,    /* ended: the job is gone; the last ZPS_HISTORY_MAX count */
  ZPS_NOTE_RANK,         /* job, rank: left or lost, and so in no group any more */
  ZPS_NOTE_TENSOR,       /* job, tensor: is there, or has changed; not what was measured of it */
  ZPS_NOTE_TENSOR_STATE, /* job, tensor: open or failed */
  ZPS_NOTE_TENSOR_GONE,  /* job, tensor */
  ZPS_NOTE_GROUP,        /* job, group: has met, or one that had closed it is in it again */
  ZPS_NOTE_SEAT,         /* job, group, rank: has closed it; the last one ends it */
  ZPS_NOTE_SEATS,        /* elastic: its number, and who of its last generation is on the way to the next one */
  ZPS_NOTE_EXPELLED      /* expelled: a process that an administrator has expelled; the last ZPS_EXPELLED_MAX count */
};

/* A rank that an administrator has expelled: its process is known by the place that it had. */
struct zps_member_expelled {
  uint64_t job_id, secret;
  uint32_t rank;
  char why[ZPS_KICK_REASON_MAX + 60];
};
#define ZPS_EXPELLED_MAX 64u

struct zps_member_note {
  enum zps_note_type type;
  uint32_t next_server, epoch, rank;
  const struct zps_member_server *server;
  const struct zps_member_job *job;
  const struct zps_member_tensor *tensor;
  const struct zps_member_group *group;
  const struct zps_member_elastic *elastic;
  const struct zps_member_expelled *expelled;
  const struct zps_history_record *ended;
};

/* Gives the notes from which all can be made again to the function that takes them. */
void zps_members_note_all(const struct zps_members *members);

/* ------------------------------------------------------------ given back */

/* ZPS_ERR_PROTOCOL: it does not fit what is there. Text is copied. */
void zps_members_restore_counters(struct zps_members *members, uint32_t next_server, uint32_t epoch);
zps_err_t zps_members_restore_server(struct zps_members *members, const struct zps_member_server *image) ZPS_MUSTCHECK;
zps_err_t zps_members_restore_server_gone(struct zps_members *members, uint32_t index) ZPS_MUSTCHECK;

struct zps_job_image {
  const char *name;
  uint64_t job_id, seed;
  const struct zps_secret *secret; /* NULL: it has none yet */
  bool checksums;
  uint32_t weight, world, next_tensor;
  struct zps_generation generation;
  struct zps_view_image view;     /* With the numbers of its servers. */
  struct zps_member_rank **ranks; /* world of them */
  struct zps_error error;         /* ZPS_OK: it runs */
  struct zps_member_cause cause;
  uint64_t started_ms;
  struct zps_origin origin, tenant; /* Of the client that began it. */
  char lost_servers[ZPS_LOST_SERVERS_SIZE];
  bool maps;                   /* not all have heard yet which servers are lost */
  struct zps_job_steps replay; /* all have: the steps that ranks have played again, or have yet to; taken over */
};
zps_err_t zps_members_restore_job(struct zps_members *members, struct zps_job_image *image,
                                  uint64_t now_ns) ZPS_MUSTCHECK;
/* `lost_servers` is empty in older journals, and for a job that lost none. */
zps_err_t zps_members_restore_failed(struct zps_members *members, uint64_t job_id, const struct zps_error *why,
                                     const char *lost_servers) ZPS_MUSTCHECK;
zps_err_t zps_members_restore_job_gone(struct zps_members *members, uint64_t job_id) ZPS_MUSTCHECK;
zps_err_t zps_members_restore_cause(struct zps_members *members, uint64_t job_id,
                                    const struct zps_member_cause *cause) ZPS_MUSTCHECK;
/* The job may exist, or be unknown. */
void zps_members_restore_ended(struct zps_members *members, const struct zps_history_record *record);
zps_err_t zps_members_restore_rank(struct zps_members *members, uint64_t job_id, uint32_t rank,
                                   enum zps_rank_state state) ZPS_MUSTCHECK;
/* The spec's owners and ranks are copied. */
zps_err_t zps_members_restore_tensor(struct zps_members *members, const struct zps_tensor_spec *spec,
                                     uint32_t first_rank, enum zps_tensor_state state, const struct zps_error *why,
                                     uint64_t now_ns) ZPS_MUSTCHECK;
zps_err_t zps_members_restore_tensor_state(struct zps_members *members, uint64_t job_id, uint32_t tensor,
                                           enum zps_tensor_state state, const struct zps_error *why,
                                           uint64_t now_ns) ZPS_MUSTCHECK;
zps_err_t zps_members_restore_tensor_gone(struct zps_members *members, uint64_t job_id, uint32_t tensor) ZPS_MUSTCHECK;
/* `left`: ranks that have closed it. */
zps_err_t zps_members_restore_group(struct zps_members *members, uint64_t job_id, const char *name, uint32_t first_rank,
                                    const uint32_t *ranks, uint32_t n_ranks, const uint32_t *left,
                                    uint32_t n_left) ZPS_MUSTCHECK;
zps_err_t zps_members_restore_seat(struct zps_members *members, uint64_t job_id, const char *name,
                                   uint32_t rank) ZPS_MUSTCHECK;

struct zps_seats_image {
  const char *name;
  uint64_t last_job;
  uint32_t number, world;
  const uint32_t *moving; /* n_moving ranks; none: nothing is known of the elastic job any more */
  uint32_t n_moving;
};
/* A later generation that runs takes its place. */
zps_err_t zps_members_restore_seats(struct zps_members *members, const struct zps_seats_image *image) ZPS_MUSTCHECK;
void zps_members_restore_expelled(struct zps_members *members, const struct zps_member_expelled *image);
/* All notes were given back: what had begun when they ended is brought to its end, and all members have until
 * `until_ns` to come back. */
void zps_members_restored(struct zps_members *members, uint64_t until_ns);

#endif
