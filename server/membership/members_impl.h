/* The state that the files of the membership module have in common. */
#ifndef ZPS_SERVER_MEMBERSHIP_MEMBERS_IMPL_H
#define ZPS_SERVER_MEMBERSHIP_MEMBERS_IMPL_H

#include "common/base/clock.h"
#include "server/membership/history.h"
#include "server/membership/members.h"
#include "server/membership/notes.h"

/* A rank's request to open a tensor, or to close it, that waits for servers or for other ranks. */
struct zps_member_request {
  struct zps_member_client *client;
  void *token;
  uint64_t timeout_ms, deadline_ns; /* To close it. */
  struct zps_member_request *next;
};

struct zps_member_elastic;

/* A server waits so long after it came, and after the job last changed. Servers that come meanwhile are asked with it:
 * the job stops once for all of them. */
#define ZPS_PLACEMENT_SETTLE_NS (5 * ZPS_NS_PER_S)

struct zps_members {
  struct zps_members_config config;
  char *weights;                      /* NULL: none is said */
  struct zps_member_server **servers; /* by ascending index */
  unsigned n_servers;
  uint64_t cap_servers;
  struct zps_member_job *jobs; /* oldest first */
  unsigned n_jobs;
  struct zps_member_elastic *elastics; /* jobs whose ranks change */
  uint32_t next_server;
  uint32_t epoch;
  unsigned n_away;                                       /* servers and ranks without a connection that may come back */
  struct zps_member_expelled expelled[ZPS_EXPELLED_MAX]; /* a ring of the last ones */
  unsigned n_expelled;                                   /* expelled processes so far */
  struct zps_history history;                            /* the last jobs that have ended */
  uint64_t now_ns;                                       /* of the last tick, which follows every event */
  bool draining;
};

static inline void zps_members_sooner(uint64_t *deadline_ns, uint64_t other_ns) {
  if (other_ns < *deadline_ns) *deadline_ns = other_ns;
}
/* False: it will be, and the deadline is no later. */
static inline bool zps_members_is_due(uint64_t at_ns, uint64_t now_ns, uint64_t *deadline_ns) {
  if (at_ns > now_ns) zps_members_sooner(deadline_ns, at_ns);
  return at_ns <= now_ns;
}
/* Those that are away hear what they missed when they come back. */
static inline void zps_members_act_on(struct zps_members *members, const struct zps_action *action) {
  if (action->client) members->config.act(members->config.ctx, action);
}
/* Members of struct zps_action: zps_members_act(members, .type = ZPS_ACT_JOB_OPEN, .client = client, .job = job) */
#define zps_members_act(members, ...) zps_members_act_on(members, &(struct zps_action){__VA_ARGS__})
/* Members of struct zps_member_note. */
#define zps_members_note(members, ...) zps_members_put_note(members, &(struct zps_member_note){__VA_ARGS__})
static inline void zps_members_put_note(const struct zps_members *members, const struct zps_member_note *note) {
  if (members->config.note) members->config.note(members->config.ctx, note);
}
static inline void zps_members_note_counters(const struct zps_members *members) {
  zps_members_note(members, .type = ZPS_NOTE_COUNTERS, .next_server = members->next_server, .epoch = members->epoch);
}
struct zps_member_job *zps_members_job_find(const struct zps_members *members, uint64_t job_id);
/* The rank is one of those that push the tensor. */
bool zps_members_tensor_has(const struct zps_tensor_spec *spec, uint32_t rank);
/* Refuses two fabrics that cannot talk with each other. */
zps_err_t zps_members_fabric_check(const struct zps_net_info *a, const char *who_a, const struct zps_net_info *b,
                                   const char *who_b, struct zps_error *error) ZPS_MUSTCHECK;

/* places.c */
/* Whether a running job's rounds cannot be pushed once more, to other servers; and why. */
bool zps_members_cannot_move(const struct zps_members *members, const struct zps_member_job *job,
                             struct zps_error *why);
/* Whether the connection of one of its servers or ranks has ended. */
bool zps_member_job_any_away(const struct zps_member_job *job);

/* facts.c */
/* Answers a rank that joins or asks. */
void zps_members_join_answer(struct zps_members *members, const struct zps_member_job *job,
                             struct zps_member_rank *rank, zps_err_t code, const char *text);
/* A running job is to fail; `lost_rank` is to blame, or ZPS_NO_RANK. The first cause counts. */
void zps_members_job_break(struct zps_member_job *job, zps_err_t code, uint32_t lost_rank, const char *text);
/* A server that may be JOINING is gone, or away. The others are to take their places all the same. */
void zps_members_joiner_gone(const struct zps_members *members, struct zps_member_job *job,
                             const struct zps_member_server *server);
/* It has answered job.open or tensor.open. False: it is none that is to take a place. */
bool zps_members_joiner_answered(struct zps_member_job *job, const struct zps_member_server *server, zps_err_t code,
                                 const char *text);
/* Adds the server's name to the list of those that the job has lost. */
void zps_members_job_add_lost(struct zps_member_job *job, const char *name);
/* Why the job needs other servers: `what` has become of this one. */
void zps_members_job_explain(struct zps_member_job *job, const struct zps_member_server *server, const char *what,
                             const char *reason);
/* The server is gone, or has lost the job. */
void zps_members_place_lost(struct zps_members *members, struct zps_member_job *job,
                            const struct zps_member_server *server, const char *reason);
/* Ranks cannot reach the server of this place. NULL: the reason is that of another place. */
void zps_members_place_cut_off(struct zps_member_job *job, uint32_t position, const char *reason);
/* The place is free, and its server hears so. */
void zps_members_place_release(struct zps_members *members, struct zps_member_job *job, uint32_t position,
                               const char *reason);
/* The action for each server that has a place, and for each rank that is in. */
void zps_members_act_servers(struct zps_members *members, const struct zps_member_job *job, struct zps_action action);
void zps_members_act_ranks(struct zps_members *members, const struct zps_member_job *job, struct zps_action action);
/* The server at this position hears of the ranks that are in the job no longer. */
void zps_members_notify_gone(struct zps_members *members, const struct zps_member_job *job, uint32_t position,
                             struct zps_member_client *server);

/* places.c */
/* The policy's decision on a running job, done. False: the job cannot go on, for the reason in job->map.why. *again_ns:
 * when to look again. */
bool zps_members_places_settle(struct zps_members *members, struct zps_member_job *job,
                               uint64_t *again_ns) ZPS_MUSTCHECK;
/* The server takes jobs, and has no place in this one. */
bool zps_members_is_placeable(const struct zps_member_job *job, const struct zps_member_server *server);
/* How many servers could take a place of the job now, and are not asked to. */
uint32_t zps_members_count_placeable(const struct zps_members *members, const struct zps_member_job *job);
/* The job ends. */
void zps_members_joiners_dismiss(struct zps_members *members, struct zps_member_job *job, const char *why);

/* reachability.c */
/* Decides on the reports of ranks, when it is time. The next deadline. *rank_p: the rank that is cut off, and `why`;
 * NULL: none is. */
uint64_t zps_members_reachability_settle(const struct zps_members *members, struct zps_member_job *job,
                                         struct zps_member_rank **rank_p, struct zps_error *why);
/* Another server takes this place. */
void zps_members_reports_forget(const struct zps_member_job *job, uint32_t position);
/* The server has a place in the job again. */
void zps_members_cutoff_in(const struct zps_members *members, const struct zps_member_job *job,
                           const struct zps_member_server *server);
/* The server's process is gone. */
void zps_members_cutoff_gone(struct zps_member_job *job, const struct zps_member_server *server);
/* An administrator wants the server back: its jobs ask it as soon as they may. */
void zps_members_cutoffs_pardon(const struct zps_members *members, const struct zps_member_server *server);
void zps_members_cutoffs_free(struct zps_member_cutoff *cutoffs);

/* expulsions.c: noted; the oldest one of ZPS_EXPELLED_MAX is forgotten. */
void zps_members_expelled_add(struct zps_members *members, const struct zps_member_job *job,
                              const struct zps_member_rank *rank, const char *reason);
void zps_members_expelled_note_all(const struct zps_members *members);
/* ZPS_ERR_REFUSED: an administrator has expelled this rank. `secret` 0: it is not known. */
zps_err_t zps_members_may_be_back(const struct zps_members *members, uint64_t job_id, uint32_t rank, uint64_t secret,
                                  struct zps_error *error) ZPS_MUSTCHECK;

/* causes.c */
/* The job is about to be freed: noted, and kept in the history. */
void zps_members_job_ended(struct zps_members *members, const struct zps_member_job *job);
void zps_members_history_keep(struct zps_members *members, const struct zps_history_record *record);
void zps_members_history_note_all(const struct zps_members *members);

/* rebalance.c: ZPS_ERR_UNKNOWN. */
zps_err_t zps_members_no_such_job(const struct zps_members *members, const char *name, struct zps_error *error);

/* servers.c */
void zps_members_server_lost(struct zps_members *members, struct zps_member_server *server, const char *reason);
void zps_members_server_away(struct zps_members *members, struct zps_member_server *server, uint64_t until_ns,
                             const char *reason);

/* ranks.c */
void zps_members_rank_lost(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                           const char *reason);
/* The rank, whose connection may stand, is lost, and hears it. */
void zps_members_rank_expel(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                            const char *reason);
void zps_members_rank_away(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                           uint64_t until_ns, const char *reason);
void zps_members_rank_resume(struct zps_members *members, struct zps_member_job *job, struct zps_member_rank *rank,
                             struct zps_member_client *client);

/* connections.c */
/* Those that did not come back in time are lost. The next deadline. */
uint64_t zps_members_connections_expire(struct zps_members *members);

/* jobs.c */
/* Places a complete job on the servers, if there are enough. It runs when all of them have answered. */
void zps_members_job_begin(struct zps_members *members, struct zps_member_job *job);
/* A job that was broken is CLOSING. One that no rank is in is freed, and servers hear so; then true. */
bool zps_members_job_end(struct zps_members *members, struct zps_member_job *job) ZPS_MUSTCHECK;
/* CLOSING: servers forget the job when ranks have had their time to leave it. The next deadline. */
uint64_t zps_members_job_closing(struct zps_members *members, struct zps_member_job *job);
/* Without telling anybody. */
void zps_members_job_free(struct zps_member_job *job);

/* view_change.c */
/* The places have changed: an epoch of its own, whatever became of the last one. */
void zps_members_view_change_begin(struct zps_members *members, struct zps_member_job *job);
/* Tells those that have not heard, and goes on when all have answered. */
void zps_members_view_change_settle(struct zps_members *members, struct zps_member_job *job);
/* A change that takes too long breaks the job. */
void zps_members_view_change_expire(struct zps_members *members, struct zps_member_job *job);
uint64_t zps_members_view_change_deadline(const struct zps_members *members, struct zps_member_job *job);
/* The job fails, or ends. */
void zps_members_view_change_end(struct zps_member_job *job);

/* settle.c */
/* Of zps_members_settle() the jobs alone, whatever the time. */
uint64_t zps_members_jobs_settle(struct zps_members *members);

/* joins.c */
/* Takes rank `r`, which is still waiting, out of its job. */
void zps_members_join_drop(struct zps_members *members, struct zps_member_job *job, uint32_t r, zps_err_t code,
                           const char *text);
/* Drops all ranks of a job that has not run yet. */
void zps_members_job_drop_joins(struct zps_members *members, struct zps_member_job *job, zps_err_t code,
                                const char *text);
/* Drops ranks whose time is up. The next deadline. */
uint64_t zps_members_joins_expire(struct zps_members *members, struct zps_member_job *job);

/* members.c */
uint64_t zps_members_utc_ms(const struct zps_members *members);
/* Zeroed, but for its number, which is above the others'; and out of the list. */
zps_err_t zps_members_server_add(struct zps_members *members, uint32_t index,
                                 struct zps_member_server **server_p) ZPS_MUSTCHECK;
void zps_members_server_remove(struct zps_members *members, const struct zps_member_server *server);
/* All servers have opened it: the next settle lets it run. */
bool zps_members_job_is_opened(const struct zps_member_job *job);
zps_err_t zps_members_job_create(struct zps_members *members, const struct zps_join_spec *spec, uint64_t now_ns,
                                 struct zps_member_job **job_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Out of the list. */
void zps_members_job_remove(struct zps_members *members, const struct zps_member_job *job);
/* Another number and secret. */
void zps_members_job_identify(struct zps_members *members, struct zps_member_job *job);

/* elastic.c */
/* A rank leaves a job that has run, and will ask for the next generation. */
void zps_members_elastic_left(struct zps_members *members, const struct zps_member_job *job, uint32_t rank);
/* The job runs. */
void zps_members_elastic_opened(struct zps_member_job *job);
/* The job is gone. */
void zps_members_elastic_job_gone(const struct zps_member_job *job);
/* A rank that has asked asks no longer. It is lost, or has a while to ask again. */
void zps_members_seat_leave(const struct zps_members *members, struct zps_member_rank *rank, bool is_lost);
/* An asker's connection has ended; it may ask again over another one, unless it is lost. */
void zps_members_asker_gone(struct zps_members *members, struct zps_member_rank *rank, bool is_lost);

/* generations.c */
/* Begins generations, and moves *deadline_ns up to the next deadline. True: one has begun. */
bool zps_members_elastic_settle(struct zps_members *members, uint64_t *deadline_ns) ZPS_MUSTCHECK;

/* groups.c */
/* A group of ranks that have met before; and one of them leaves it, which may destroy it. */
zps_err_t zps_members_group_meet(struct zps_member_job *job, const char *name, const uint32_t *ranks, uint32_t n_ranks,
                                 uint32_t first_rank, struct zps_member_group **group_p) ZPS_MUSTCHECK;
void zps_members_group_leave(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group,
                             uint32_t place);
/* Answers all ranks that wait for others of a group with this failure. */
void zps_members_groups_fail(struct zps_members *members, struct zps_member_job *job, zps_err_t code, const char *text);
/* Takes a rank out of its groups, or out of those where it waits. Where it waits, it is answered. */
void zps_members_groups_drop(struct zps_members *members, struct zps_member_job *job, uint32_t rank, bool if_waiting,
                             zps_err_t code, const char *text);
/* Answers the ranks of groups that meet, or that cannot meet any more. The next deadline. */
uint64_t zps_members_groups_settle(struct zps_members *members, struct zps_member_job *job);
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
zps_err_t zps_members_tensor_append(struct zps_member_job *job, const struct zps_tensor_spec *spec, uint32_t first_rank,
                                    struct zps_member_tensor **tensor_p) ZPS_MUSTCHECK;
/* Other owners of the same partitions. */
zps_err_t zps_members_tensor_owners(struct zps_member_tensor *tensor, const struct zps_tensor_spec *spec) ZPS_MUSTCHECK;
/* Without telling anybody. */
void zps_members_tensor_remove(struct zps_member_job *job, struct zps_member_tensor *tensor);
/* Answers its openers (ZPS_ACT_TENSOR_DONE) or closers (ZPS_ACT_TENSOR_CLOSED), `client` alone unless that is NULL. */
void zps_members_tensor_answer(struct zps_members *members, const struct zps_member_job *job,
                               struct zps_member_tensor *tensor, enum zps_action_type done,
                               const struct zps_member_client *client, zps_err_t code, const char *text);
void zps_member_tensor_free(struct zps_member_tensor *tensor);
/* Tensors are open that all servers have opened. */
void zps_members_tensors_open(struct zps_members *members, struct zps_member_job *job);
/* Tells ranks that wait for open tensors, once ranks have heard which servers leave the job. */
void zps_members_tensors_notify(struct zps_members *members, struct zps_member_job *job);
void zps_members_tensors_free(struct zps_member_job *job);
/* The server, number `position` of the job, comes back: it is asked again to open what it has not, and told what there
 * is. */
void zps_members_tensors_resume(struct zps_members *members, const struct zps_member_job *job, uint32_t position);

/* closes.c */
/* Answers the waiting requests of `client`, or of all when NULL, with this failure, be they to open or to close. */
void zps_members_tensors_fail(struct zps_members *members, struct zps_member_job *job,
                              const struct zps_member_client *client, zps_err_t code, const char *text);
/* Closes the tensors that all ranks want closed. The next deadline. */
uint64_t zps_members_closes_settle(struct zps_members *members, struct zps_member_job *job);

#endif
