/* The state that the files of the membership module have in common. */
#ifndef ZPS_SERVER_MEMBERSHIP_MEMBERS_IMPL_H
#define ZPS_SERVER_MEMBERSHIP_MEMBERS_IMPL_H

#include "common/base/clock.h"
#include "server/membership/members.h"
#include "server/membership/notes.h"

struct zps_member_waiter {
  struct zps_member_client *client;
  void *token;
  struct zps_member_waiter *next;
};

struct zps_member_closer {
  struct zps_member_client *client;
  void *token;
  uint64_t timeout_ms, deadline_ns;
  struct zps_member_closer *next;
};

struct zps_member_elastic;

struct zps_members {
  struct zps_members_config config;
  char *weights;                      /* NULL: none is said */
  struct zps_member_server **servers; /* by ascending index */
  unsigned n_servers, cap_servers;
  struct zps_member_job *jobs; /* oldest first */
  unsigned n_jobs;
  struct zps_member_elastic *elastics; /* jobs whose ranks change */
  uint32_t next_server;
  uint32_t epoch;
  unsigned n_away;                                       /* servers and ranks without a connection that may come back */
  struct zps_member_expelled expelled[ZPS_EXPELLED_MAX]; /* a ring of the last ones */
  unsigned n_expelled;                                   /* expelled processes so far */
  uint64_t now_ns;                                       /* of the last tick, which follows every event */
  bool draining;
};

/* Those that are away hear what they missed when they come back. */
static inline void zps_members_act(struct zps_members *members, const struct zps_action *action) {
  if (action->client || action->type == ZPS_ACT_JOB_ENDED) members->config.act(members->config.ctx, action);
}
static inline void zps_members_note(const struct zps_members *members, const struct zps_member_note *note) {
  if (members->config.note) members->config.note(members->config.ctx, note);
}
static inline void zps_members_note_counters(const struct zps_members *members) {
  zps_members_note(members,
                   &(struct zps_member_note){
                       .type = ZPS_NOTE_COUNTERS, .next_server = members->next_server, .epoch = members->epoch});
}
struct zps_member_job *zps_members_job_find(const struct zps_members *members, uint64_t job_id);
/* Refuses two fabrics that cannot talk with each other. */
zps_err_t zps_members_fabric_check(const struct zps_net_info *a, const char *who_a, const struct zps_net_info *b,
                                   const char *who_b, struct zps_error *error) ZPS_MUSTCHECK;

/* drains.c */
/* Where servers of the job drain, it begins to go on without them, unless it stays or cannot yet. Whether it does. */
bool zps_members_drain_try(struct zps_members *members, struct zps_member_job *job);
/* Whether a running job's rounds cannot be pushed once more, to other servers; and why. */
bool zps_members_cannot_move(const struct zps_members *members, const struct zps_member_job *job,
                             struct zps_error *why);
/* Whether the connection of one of its servers or ranks has ended. */
bool zps_member_job_any_away(const struct zps_member_job *job);

/* placement.c */
/* A server waits so long after it came, and after the job last changed. Servers that come meanwhile are asked with it:
 * the job stops once for all of them. */
#define ZPS_PLACEMENT_SETTLE_NS (5 * ZPS_NS_PER_S)
/* Servers that could take the free places of a running job are asked to, when it is time; when all have answered, they
 * do. When that is. */
uint64_t zps_members_placement_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns);
/* Asks them, where it is time to, or job->place_now. */
void zps_members_placement_begin(struct zps_members *members, struct zps_member_job *job);
/* The server is there for a place of the job, and has none. */
bool zps_members_is_placeable(const struct zps_member_job *job, const struct zps_member_server *server);
/* How many servers could take a place of the job now, and are not asked to. */
uint32_t zps_members_count_placeable(const struct zps_members *members, const struct zps_member_job *job);

/* joining.c */
/* Whether servers are asked to take free places of the job. */
bool zps_members_placement_is_open(const struct zps_member_job *job);
/* Those that are to take places need not: the job has changed. */
void zps_members_placement_cancel(struct zps_members *members, struct zps_member_job *job, const char *why);
/* The server is gone, or away. The others are to take their places all the same. */
void zps_members_placement_gone(struct zps_members *members, struct zps_member_job *job,
                                const struct zps_member_server *server);
void zps_members_placement_drains(struct zps_members *members, struct zps_member_job *job);
/* It has answered job.open or tensor.open. False: it is none that is to take a place. */
bool zps_members_placement_answered(struct zps_members *members, struct zps_member_job *job,
                                    const struct zps_member_server *server, zps_err_t code, const char *text);

/* cutoffs.c */
/* The server has to leave the job: `n_ranks` cannot reach it, `rank` is the first of them. */
void zps_members_cutoff_out(struct zps_members *members, struct zps_member_job *job,
                            const struct zps_member_server *server, uint32_t rank, uint32_t n_ranks);
/* The server has a place in the job again. */
void zps_members_cutoff_in(const struct zps_members *members, const struct zps_member_job *job,
                           const struct zps_member_server *server);
/* The server's process is gone. */
void zps_members_cutoff_gone(struct zps_member_job *job, const struct zps_member_server *server);
/* An administrator wants the server back: its jobs ask it as soon as they may. */
void zps_members_cutoffs_pardon(const struct zps_members *members, const struct zps_member_server *server);
void zps_members_cutoffs_free(struct zps_member_cutoff *cutoffs);

/* suspects.c */
/* The rank, whose connection may stand, is lost, and hears it. May free the job. */
void zps_members_rank_expel(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                            const char *reason);
/* Decides what ranks have said, when its time has come. May free the job. */
uint64_t zps_members_suspects_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns);

/* expelled.c: noted; the oldest one of ZPS_EXPELLED_MAX is forgotten. */
void zps_members_expelled_add(struct zps_members *members, const struct zps_member_job *job,
                              const struct zps_member_rank *rank, const char *reason);
void zps_members_expelled_note_all(const struct zps_members *members);
/* ZPS_ERR_REFUSED: an administrator has expelled this rank. `secret` 0: it is not known. */
zps_err_t zps_members_may_be_back(const struct zps_members *members, uint64_t job_id, uint32_t rank, uint64_t secret,
                                  struct zps_error *error) ZPS_MUSTCHECK;

/* rebalance.c: ZPS_ERR_UNKNOWN. */
zps_err_t zps_members_no_such_job(const struct zps_members *members, const char *name, struct zps_error *error);

/* servers.c */
struct zps_member_server *zps_members_server_named(const struct zps_members *members, const char *name);
void zps_members_server_lost(struct zps_members *members, struct zps_member_server *server, const char *reason);

/* away.c */
/* A server's connection is `client` from here on. What it missed follows. */
void zps_members_server_resume(struct zps_members *members, struct zps_member_server *server,
                               struct zps_member_client *client, const struct zps_server_spec *spec);
void zps_members_rank_resume(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                             struct zps_member_client *client);
uint64_t zps_members_away_tick(struct zps_members *members, uint64_t now_ns);
/* The server at this position hears of the ranks that are in the job no longer. */
void zps_members_tell_gone(struct zps_members *members, const struct zps_member_job *job, uint32_t position,
                           struct zps_member_client *server);

/* jobs.c */
zps_err_t zps_members_job_create(struct zps_members *members, const struct zps_join_spec *spec, uint64_t now_ns,
                                 struct zps_member_job **job_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Tells the servers and frees the job. No rank is in it any more. */
void zps_members_job_close(struct zps_members *members, struct zps_member_job *job, const char *reason);
/* Places a complete job on the servers, if there are enough. May free it. */
void zps_members_job_try_open(struct zps_members *members, struct zps_member_job *job);
void zps_members_jobs_try_open(struct zps_members *members);
/* An OPENING job, where one of its servers cannot answer any more. May free it. */
void zps_members_job_place_anew(struct zps_members *members, struct zps_member_job *job, const char *why);
/* Notes the name of a server that the job has lost. */
void zps_members_job_add_lost(struct zps_member_job *job, const char *name);
void zps_members_job_server_lost(struct zps_members *members, struct zps_member_job *job,
                                 const struct zps_member_server *server, const char *reason);
/* CLOSING: servers forget the job when ranks have had their time to leave it. */
uint64_t zps_members_closing_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns);
/* May free the job. */
void zps_members_rank_lost(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                           const char *reason);
/* A running job fails; `lost_rank` is to blame, or ZPS_NO_RANK. */
void zps_members_job_break(struct zps_members *members, struct zps_member_job *job, zps_err_t code, uint32_t lost_rank,
                           const char *text);
/* Releases the servers on places in this state. */
void zps_members_close_at(struct zps_members *members, struct zps_member_job *job, enum zps_place_state state,
                          const char *reason);
/* Without telling anybody. */
void zps_members_job_free(struct zps_member_job *job);

/* maps.c */
/* The server at this position was lost: others take over. False: they cannot, the job fails. */
bool zps_members_map_lost(struct zps_members *members, struct zps_member_job *job, uint32_t position,
                          const struct zps_member_server *server, const char *reason, const struct zps_error *why);
/* All servers of the job that drain leave it: others take over. False: there is no memory for it. */
bool zps_members_map_drained(struct zps_members *members, struct zps_member_job *job);
/* Servers have taken free places, with the next epoch. False: others may not take over. */
bool zps_members_map_joined(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why);
/* Of the job's servers these leave it, by position, though they live: ranks cannot reach them. False: the job fails. */
bool zps_members_map_cut(struct zps_members *members, struct zps_member_job *job, const bool *leaves,
                         const struct zps_error *why);
/* A server that was about to be let go of the job does not answer any more, or has it no longer. False: it was not. */
bool zps_members_map_leaver_gone(struct zps_members *members, struct zps_member_job *job,
                                 const struct zps_member_server *server);
/* A coordinator starts again that knows that servers of the job were lost, and not that all have heard: from the
 * beginning. Likewise. */
bool zps_members_map_restored(struct zps_members *members, struct zps_member_job *job, const struct zps_error *why);
/* A rank left. If it was the last one awaited, the view change completes. */
void zps_members_map_left(struct zps_members *members, struct zps_member_job *job);
/* A server or rank is back: what it missed follows. */
void zps_members_map_server_back(struct zps_members *members, const struct zps_member_job *job, uint32_t position);
void zps_members_map_rank_back(struct zps_members *members, const struct zps_member_job *job, uint32_t rank);
/* The job fails, or ends. */
void zps_members_map_end(struct zps_member_job *job);
uint64_t zps_members_map_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns);

/* joins.c */
void zps_members_join_answer(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                             zps_err_t code, const char *text);
/* Takes rank `r`, which is still waiting, out of its job, which is freed when it was the last. */
void zps_members_join_drop(struct zps_members *members, struct zps_member_job *job, uint32_t r, zps_err_t code,
                           const char *text);
/* Drops all ranks of a job that has not run yet, which frees the job. */
void zps_members_job_drop_joins(struct zps_members *members, struct zps_member_job *job, zps_err_t code,
                                const char *text);
uint64_t zps_members_job_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns);

/* members.c: zeroed, but for its number, which is above the others'; and out of the list. */
zps_err_t zps_members_server_add(struct zps_members *members, uint32_t index,
                                 struct zps_member_server **server_p) ZPS_MUSTCHECK;
void zps_members_server_remove(struct zps_members *members, const struct zps_member_server *server);

/* elastic.c */
/* A rank is out of a job that has run; `moves`: it will ask for the next generation. */
void zps_members_elastic_left(struct zps_members *members, struct zps_member_job *job, uint32_t rank, bool moves);
/* The job runs. */
void zps_members_elastic_opened(struct zps_member_job *job);
/* A rank left a job that has not run: it is lost, or another rank is. */
void zps_members_elastic_dropped(struct zps_members *members, const struct zps_member_job *job,
                                 const struct zps_member_rank *rank, bool is_lost);
/* The job is gone. */
void zps_members_elastic_job_gone(const struct zps_member_job *job);
/* An asker's connection has ended; it may ask again over another one, unless it is lost. */
void zps_members_asker_gone(struct zps_members *members, struct zps_member_asker *asker, bool is_lost);
/* Ranks of a job that are back hear that others wait. */
bool zps_members_elastic_is_changed(const struct zps_member_job *job);
/* The ranks of a running generation are told to begin the next one, unless they were. False: they cannot be. */
bool zps_members_elastic_change(struct zps_members *members, struct zps_member_job *job);
/* Begins generations. */
uint64_t zps_members_elastic_tick(struct zps_members *members, uint64_t now_ns);
/* The coordinator is shutting down. */
void zps_members_elastic_refuse(struct zps_members *members, zps_err_t code, const char *text);
void zps_members_elastic_fini(struct zps_members *members);

/* arrive.c */
/* The rank that a spec is of, waiting from now on. */
zps_err_t zps_members_rank_make(const struct zps_join_spec *spec, struct zps_member_client *client, void *token,
                                uint64_t now_ns, struct zps_member_rank **rank_p,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* Whether what the spec says can be, whatever the others say. */
zps_err_t zps_members_join_check(const struct zps_members *members, const struct zps_member_client *client,
                                 const struct zps_join_spec *spec, struct zps_error *error) ZPS_MUSTCHECK;
/* The same process over another connection, since it did not hear the answer over the first. */
void zps_members_join_again(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                            struct zps_member_client *client, void *token);

/* groups.c */
/* A group of ranks that have met before; and one of them leaves it, which may destroy it. */
zps_err_t zps_members_group_meet(struct zps_members *members, struct zps_member_job *job, const char *name,
                                 const uint32_t *ranks, uint32_t n_ranks, uint32_t first_rank,
                                 struct zps_member_group **group_p) ZPS_MUSTCHECK;
void zps_members_group_leave(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group,
                             uint32_t place);
/* Answers all ranks that wait for others of a group with this failure. */
void zps_members_groups_fail(struct zps_members *members, struct zps_member_job *job, zps_err_t code, const char *text);
/* Answers this rank where it waits: it is not there any more. */
void zps_members_groups_away(struct zps_members *members, struct zps_member_job *job, uint32_t rank, zps_err_t code,
                             const char *text);
/* Takes a rank that is gone out of its groups. Where it waits, it is answered. */
void zps_members_groups_drop(struct zps_members *members, struct zps_member_job *job, uint32_t rank, zps_err_t code,
                             const char *text);
/* Answers ranks that wait for this one with ZPS_ERR_MISSING. */
void zps_members_groups_left(struct zps_members *members, struct zps_member_job *job, uint32_t rank, const char *text);
uint64_t zps_members_groups_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns);
void zps_members_groups_free(struct zps_member_job *job);
struct zps_member_group *zps_members_group_find(const struct zps_member_job *job, const char *name);
/* Whether it is one of the group's ranks; *place_p: which. */
bool zps_members_group_has(const struct zps_member_group *group, uint32_t rank, uint32_t *place_p);

/* plans.c */
/* "auto" and "auto:balanced,ring", maybe with further words after a blank: a plan among the schemes that are alike in
 * their results, so that a choice by measurement shows in none, or those named. For other schemes *plan_p is NULL. */
zps_err_t zps_members_plan_create(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                                  struct zps_member_plan **plan_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_members_plan_destroy(struct zps_member_plan *plan); /* NULL is allowed */

/* tensors.c */
/* The tensor as it was, with its number and owners, which are copied; the number is above the others'. */
zps_err_t zps_members_tensor_append(struct zps_members *members, struct zps_member_job *job,
                                    const struct zps_tensor_spec *spec, uint32_t first_rank,
                                    struct zps_member_tensor **tensor_p) ZPS_MUSTCHECK;
/* Other owners of the same partitions. */
zps_err_t zps_members_tensor_owners(struct zps_member_tensor *tensor, const struct zps_tensor_spec *spec) ZPS_MUSTCHECK;
/* Without telling anybody. */
void zps_members_tensor_remove(struct zps_member_job *job, struct zps_member_tensor *tensor);
/* Answers who waits for it to be open, `client` alone unless that is NULL. */
void zps_members_tensor_answer(struct zps_members *members, struct zps_member_job *job,
                               struct zps_member_tensor *tensor, const struct zps_member_client *client, zps_err_t code,
                               const char *text);
void zps_member_tensor_free(struct zps_member_tensor *tensor);
/* Tensors that are being opened wait for this server no longer. */
void zps_members_tensors_server_lost(struct zps_members *members, struct zps_member_job *job, uint32_t position);
/* Ranks have heard which servers leave the job: those that wait for tensors which are open are told that they are. */
void zps_members_tensors_tell(struct zps_members *members, struct zps_member_job *job);
void zps_members_tensors_free(struct zps_member_job *job);
/* The server, number `position` of the job, comes back: it is asked again to open what it has not, and told what there
 * is. */
void zps_members_tensors_resume(struct zps_members *members, const struct zps_member_job *job, uint32_t position);

/* closes.c */
/* Answers the waiting requests of `client`, or of all when NULL, with this failure, be they to open or to close. */
void zps_members_tensors_fail(struct zps_members *members, struct zps_member_job *job,
                              const struct zps_member_client *client, zps_err_t code, const char *text);
/* A rank has left: closes what all others wait for. */
void zps_members_closes_try(struct zps_members *members, struct zps_member_job *job);
uint64_t zps_members_closes_tick(struct zps_members *members, struct zps_member_job *job, uint64_t now_ns);

#endif
