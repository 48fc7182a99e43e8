/*
 * The members of a cluster: servers, jobs, ranks and tensors, as a pure module. Events come in as calls, actions go out
 * through one function; there is no network, no clock and no JSON here. coordinator.c connects it to the control plane.
 *
 * A job's life: JOINING (ranks arrive) > OPENING (complete; every server was sent job.open; back to JOINING where one
 * is lost) > RUNNING > CLOSING (it failed; waits until its ranks are gone, its servers for a while only) > freed. A job
 * that a rank has left, or that failed, no longer takes joins. The next join of its name starts a new job: a run can be
 * repeated without waiting for stragglers. Each job that some rank has joined is in the
 * history when it has ended (history.h), with the first cause of its failure.
 *
 * A running job that loses a server goes on with the remaining ones, if the configuration allows it. The servers are
 * told first (ZPS_ACT_MAP_SERVER), then the ranks (ZPS_ACT_MAP_RANK). Ranks report the steps that they have begun and
 * not finished, and these go to all (ZPS_ACT_REPLAY_SERVER, ZPS_ACT_REPLAY_RANK). Another loss meanwhile begins this
 * anew. The job is RUNNING all the while. A draining server leaves its running jobs in the same way, and so does one
 * that a rank of the job cannot reach. It is told with the others, and leaves the job (ZPS_ACT_JOB_CLOSE) when all
 * ranks know: until then they may be reading its sums.
 *
 * The ranks of an elastic job are gathered first (elastic.c): askers, which have no job yet; the job begins with as
 * many as there are, JOINING, all at once. When a rank is lost the others ask again, and are the next job of its name.
 *
 * Every request handed in with a token is answered exactly once, by one of the _DONE or _FAILED actions, even when its
 * client is lost. If the call itself returned an error, the caller answers it.
 */
#ifndef ZPS_SERVER_MEMBERSHIP_MEMBERS_H
#define ZPS_SERVER_MEMBERSHIP_MEMBERS_H

#include "server/membership/member_tables.h"

#define ZPS_JOBS_MAX 2048u
#define ZPS_TENSORS_MAX 8192u        /* of one job */
#define ZPS_JOB_PARTS_MAX (1u << 24) /* Partitions of all tensors of a job. The coordinator has 4 bytes for each. */

struct zps_members;
struct zps_member_note;

enum zps_action_type {
  ZPS_ACT_JOB_OPEN,      /* server, job, position */
  ZPS_ACT_JOB_CLOSE,     /* server, job, text */
  ZPS_ACT_RANK_GONE,     /* server, job, rank, code, text */
  ZPS_ACT_TENSOR_OPEN,   /* server, job, tensor */
  ZPS_ACT_TENSOR_FORGET, /* server, job, tensor */
  ZPS_ACT_TENSORS_KEEP,  /* server, job: it forgets all tensors but the job's */
  ZPS_ACT_MAP_SERVER,    /* server, job, position */
  ZPS_ACT_REPLAY_SERVER, /* server, job, position */
  ZPS_ACT_JOIN_DONE,     /* client, token, job */
  ZPS_ACT_JOIN_FAILED,   /* client, token, code, text */
  ZPS_ACT_TENSOR_DONE,   /* client, token, job, tensor */
  ZPS_ACT_TENSOR_FAILED, /* client, token, code, text: to open or to close it */
  ZPS_ACT_TENSOR_CLOSED, /* client, token */
  ZPS_ACT_GROUP_DONE,    /* client, token, group */
  ZPS_ACT_GROUP_FAILED,  /* client, token, group, code, text */
  ZPS_ACT_JOB_FAILED,    /* client, job, code, text, rank (or ZPS_NO_RANK) */
  ZPS_ACT_RANK_LEFT,     /* client, job, rank */
  ZPS_ACT_JOB_CHANGED,   /* client, job */
  ZPS_ACT_MAP_RANK,      /* client, job, rank */
  ZPS_ACT_REPLAY_RANK,   /* client, job, rank; the steps are job->map's */
  ZPS_ACT_TENSOR_PLAN,   /* client, job, tensor, runs, n_runs, whole */
};
#define ZPS_NO_RANK UINT32_MAX

/* Pointers are borrowed during the call. */
struct zps_action {
  enum zps_action_type type;
  struct zps_member_client *client; /* the recipient */
  void *token;
  const struct zps_member_job *job;
  const struct zps_member_tensor *tensor;
  const struct zps_member_group *group;
  uint32_t position; /* of the server in the job */
  uint32_t rank;
  zps_err_t code;
  const char *text;
  const struct zps_plan_run *runs;
  unsigned n_runs;
  bool whole; /* all runs that are remembered; else one, the next */
};

struct zps_history;

struct zps_members_config {
  uint32_t min_servers; /* a job starts on all servers there are, when there are at least so many */
  uint32_t max_jobs, max_tensors;
  uint32_t max_waiting;    /* jobs of one tenant that do not run yet; 0: no limit */
  bool checked;            /* Reads have checksums (common/session/checks.h). */
  bool replays;            /* jobs outlive servers, as long as one is left */
  uint32_t places;         /* for servers, at least, of a job whose ranks do not say; 0: as many as it begins with */
  uint64_t leave_grace_ms; /* after which servers forget a job that has failed, though ranks are in it still */
  void *ctx;
  /* Must not call into this module. An action that it cannot deliver it reports later, as a lost client. */
  void (*act)(void *ctx, const struct zps_action *action);
  /* Job ids, seeds and the secrets of links: never 0, and never to be guessed. */
  uint64_t (*random)(void *ctx);
  /* Milliseconds since 1970, UTC, for the starts and ends of jobs. NULL: 0, which is not known. */
  uint64_t (*utc_ms)(void *ctx);
  /* Makes durable what must be known after a new start (notes.h), ahead of the actions that follow from it; NULL:
   * nothing need be. Must not call into this module. */
  void (*note)(void *ctx, const struct zps_member_note *note);
};

/* Of a server, host, job, tensor or rack: 1 to ZPS_NAME_MAX printable bytes. */
bool zps_members_name_ok(const char *name);

zps_err_t zps_members_create(const struct zps_members_config *config, struct zps_members **members_p) ZPS_MUSTCHECK;
/* Every client must have been reported lost. NULL is allowed. */
void zps_members_destroy(struct zps_members *members);
void zps_members_set_min_servers(struct zps_members *members, uint32_t min_servers);
void zps_members_set_replays(struct zps_members *members, bool replays);
/* Of jobs that begin from now on. */
void zps_members_set_places(struct zps_members *members, uint32_t places);
/* Of jobs that begin from now on (weights.h), a list that was checked; copied. ZPS_ERR_NOMEM: it is as before. */
zps_err_t zps_members_set_weights(struct zps_members *members, const char *weights) ZPS_MUSTCHECK;

/* ZPS_ERR_BUSY: a live server has this name. ZPS_ERR_REFUSED: its fabric cannot talk with the other servers'. A server
 * that registers again from the same process goes on as it was, where `resumes`: jobs that it has no longer are lost to
 * it, and what it missed follows as actions. Else it replaces its former self, which is lost by that; as is one that is
 * away when another process takes its name. */
zps_err_t zps_members_server_register(struct zps_members *members, struct zps_member_client *client,
                                      const struct zps_server_spec *spec, bool resumes,
                                      struct zps_error *error) ZPS_MUSTCHECK;
/* The process of this server is about to end: no new jobs for it, and those that run leave it. The number of jobs that
 * are still on it. */
zps_err_t zps_members_server_drain(struct zps_members *members, struct zps_member_client *client, unsigned *jobs_p,
                                   struct zps_error *error) ZPS_MUSTCHECK;
/* Drains a server whose process stays. A second drain changes nothing. ZPS_ERR_UNKNOWN: no server has this name.
 * ZPS_ERR_REFUSED: no other server takes jobs. */
zps_err_t zps_members_drain_named(struct zps_members *members, const char *name,
                                  const struct zps_member_server **server_p, struct zps_error *error) ZPS_MUSTCHECK;
/* It takes jobs again, also those that have left it, where its place in them is free. ZPS_ERR_REFUSED: its process is
 * about to end. */
zps_err_t zps_members_undrain_named(struct zps_members *members, const char *name,
                                    const struct zps_member_server **server_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Of a job that a draining server has: whether it stays there until it ends, and why; else it leaves the server, now or
 * as soon as it can. */
bool zps_members_stays(const struct zps_members *members, const struct zps_member_job *job, struct zps_error *why);
/* An administrator wants jobs placed anew over the servers that are there: those of this name, or all where it is NULL.
 * Of each is said what follows. ZPS_ERR_UNKNOWN: there is no job of this name. */
enum zps_rebalance {
  ZPS_REBALANCE_MOVES, /* servers are about to take places that are free */
  ZPS_REBALANCE_WAITS, /* servers will take free places when another change is over */
  ZPS_REBALANCE_STAYS
};
struct zps_member_rebalanced {
  enum zps_rebalance outcome;
  uint32_t n_servers;    /* servers of the job after the change */
  unsigned long n_parts; /* MOVES: partitions whose owner changes */
  char why[480];
};
const char *zps_rebalance_name(enum zps_rebalance outcome);
typedef void zps_members_rebalanced_fn(void *ctx, const struct zps_member_job *job,
                                       const struct zps_member_rebalanced *said);
zps_err_t zps_members_rebalance(struct zps_members *members, const char *name, zps_members_rebalanced_fn *each,
                                void *ctx, struct zps_error *error) ZPS_MUSTCHECK;
/* An administrator expels a rank: it is lost to its job, and hears it; its process is refused when it calls as that
 * rank again, also for the next generation. ZPS_ERR_UNKNOWN: there is no job of this name. ZPS_ERR_INVALID: it has no
 * such rank. ZPS_ERR_REFUSED: the rank is not in it. */
struct zps_member_kicked {
  char job[ZPS_NAME_MAX + 1], host[ZPS_NAME_MAX + 1];
  uint64_t job_id;
  uint32_t rank, pid;
  const char *job_state; /* a state's name, or "ended" */
};
zps_err_t zps_members_kick(struct zps_members *members, const char *name, uint32_t rank, const char *reason,
                           struct zps_member_kicked *kicked, struct zps_error *error) ZPS_MUSTCHECK;
/* Servers are about to take places of the job, or its epoch is being made. */
bool zps_member_job_moves(const struct zps_member_job *job);
/* True when the job has partitions on this server. */
bool zps_member_job_holds(const struct zps_member_job *job, const struct zps_member_server *server);
/* True when the job has partitions on this server, or is about to take them off it. */
bool zps_member_job_has(const struct zps_member_job *job, const struct zps_member_server *server);
/* The connection ended, or nothing was heard on it for too long; `reason` goes into the texts that others see. */
void zps_members_client_lost(struct zps_members *members, struct zps_member_client *client, const char *reason);

/* The connection ended, but its process may live: it may come back until `until_ns`, and is lost then. Its requests
 * that wait are answered with ZPS_ERR_CLOSED, to nobody. A rank that has not been let in yet is lost at once. */
void zps_members_client_away(struct zps_members *members, struct zps_member_client *client, uint64_t until_ns,
                             const char *reason);
/* A rank of a job that has been let in comes back over this connection; what it missed follows as actions.
 * ZPS_ERR_REFUSED: it is not that rank. ZPS_ERR_PEER_LOST: it was taken for lost. ZPS_ERR_UNKNOWN: there is no such job
 * any more, or the rank has left it. */
zps_err_t zps_members_resume(struct zps_members *members, struct zps_member_client *client,
                             const struct zps_resume_spec *spec, struct zps_error *error) ZPS_MUSTCHECK;

/* On success the answer follows as an action, maybe before this returns. The same process's join again, over another
 * connection, takes the place of its first. */
zps_err_t zps_members_join(struct zps_members *members, struct zps_member_client *client,
                           const struct zps_join_spec *spec, void *token, uint64_t now_ns,
                           struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_members_leave(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* Leaves, and will ask for the job's next generation, which waits for this rank for a while. */
zps_err_t zps_members_move_on(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* To be a rank of an elastic job's next generation; answered as for join, when that begins. ZPS_ERR_SHAPE: others of
 * the job have said other bounds. ZPS_ERR_MISSING, later: too few have come in time, or there was no room. */
zps_err_t zps_members_next(struct zps_members *members, struct zps_member_client *client,
                           const struct zps_next_spec *spec, void *token, uint64_t now_ns,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* This rank has made its links to the others; answered when all have, as for join. ZPS_ERR_MISSING names the ranks that
 * have not. */
zps_err_t zps_members_linked(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                             uint64_t timeout_ms, void *token, uint64_t now_ns, struct zps_error *error) ZPS_MUSTCHECK;
/* This rank is in the group that the spec names, of these ranks; answered when all are, as for join. ZPS_ERR_SHAPE:
 * they do not name the same ranks; ZPS_ERR_MISSING names the ranks that have not come, to all that wait when the first
 * one's time is up. A group that has met is there until all of its ranks have closed it. */
zps_err_t zps_members_group_open(struct zps_members *members, struct zps_member_client *client,
                                 const struct zps_group_spec *spec, void *token, uint64_t now_ns,
                                 struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_members_group_close(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                  const char *name, struct zps_error *error) ZPS_MUSTCHECK;
/* The running job of this client: its ranks, for a client that links to them. */
zps_err_t zps_members_running(const struct zps_member_job *job, uint64_t job_id, struct zps_error *error) ZPS_MUSTCHECK;
/* A server answered job.open; `code` with `text` when it refused or did not answer in time. ZPS_ERR_CLOSED: its
 * connection has ended; that it is lost follows, and decides. */
void zps_members_job_opened(struct zps_members *members, struct zps_member_client *server, uint64_t job_id,
                            zps_err_t code, const char *text);

/* A job.open or tensor.open of the job is not sent to the server any more: no answer will come. */
void zps_members_call_dropped(struct zps_members *members, const struct zps_member_client *server, uint64_t job_id);

/* A server answered job.view of this epoch; likewise. One that refuses ends the job; one that does not answer is to be
 * reported lost. */
void zps_members_map_answered(struct zps_members *members, struct zps_member_client *server, uint64_t job_id,
                              uint32_t epoch, zps_err_t code, const char *text);
/* A rank lives in this epoch, and has begun and not finished these steps. Of an epoch that is over it is passed over.
 */
zps_err_t zps_members_mapped(struct zps_member_client *client, const struct zps_job_steps *steps,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* A rank cannot reach these servers of its job over the data plane, and all others it can; it takes the place of what
 * the rank said before. A later settle decides. Servers that the job has no longer are passed over. ZPS_ERR_INVALID: it
 * never had one. */
zps_err_t zps_members_suspect(struct zps_member_client *client, const struct zps_job_suspects *suspects,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* Ranks could not reach the server, and it had to leave the job. NULL: it did not, or has a place again. */
const struct zps_member_cutoff *zps_member_job_cutoff(const struct zps_member_job *job,
                                                      const struct zps_member_server *server);
/* How many servers it has, of its places; and how many of those that it had are lost. */
static inline uint32_t zps_member_job_servers_in(const struct zps_member_job *job) {
  return zps_view_count(&job->view, ZPS_PLACE_IN);
}
static inline uint32_t zps_member_job_servers_lost(const struct zps_member_job *job) {
  return zps_view_count_lost(&job->view);
}
/* Whether servers or ranks have yet to answer. */
bool zps_member_map_is_open(const struct zps_member_job *job);
/* A server that is to take this place has yet to answer. */
bool zps_member_job_admits(const struct zps_member_job *job, uint32_t position);
/* The job cannot go on, for a cause that its members have no part in: its joins fail, or all ranks hear why. */
void zps_members_job_fail(struct zps_members *members, uint64_t job_id, zps_err_t code, const char *text);

/* `spec`: n_parts 0 and block_bits ZPS_BLOCK_BITS_DEFAULT ask for the defaults; tensor and owners are ignored. As for
 * join. */
zps_err_t zps_members_tensor_register(struct zps_members *members, struct zps_member_client *client,
                                      const struct zps_tensor_spec *spec, void *token,
                                      struct zps_error *error) ZPS_MUSTCHECK;
/* As for job.open. */
void zps_members_tensor_opened(struct zps_members *members, struct zps_member_client *server, uint64_t job_id,
                               uint32_t tensor, zps_err_t code, const char *text);

/* The rank wants the tensor closed; answered when all ranks that are in the job do, as for join. ZPS_ERR_MISSING names
 * those that do not. Then all servers are told, and the tensor and those of zenps's own that belong to it are gone. */
zps_err_t zps_members_tensor_close(struct zps_member_client *client, uint64_t job_id, uint32_t tensor,
                                   uint64_t timeout_ms, void *token, uint64_t now_ns,
                                   struct zps_error *error) ZPS_MUSTCHECK;
/* By number; NULL: there is none, or no longer. */
struct zps_member_tensor *zps_members_tensor_find(const struct zps_member_job *job, uint32_t number);

/* A rank's gradients are in memory that the fabric gets at in the way named: "host", which all begin with; of a GPU
 * "staged" (copied through host memory), "hmem" or "dmabuf" (read and written by the fabric). */
zps_err_t zps_members_memory(struct zps_member_client *client, uint64_t job_id, const char *name,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* A rank would miss a server that leaves the job, though it lives: servers that drain keep the job. */
zps_err_t zps_members_hold(struct zps_member_client *client, uint64_t job_id, const char *why,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* A rank's report on itself: all but its tensors and its first error. ZPS_ERR_INVALID: a round in flight names a tensor
 * or a rank that the job never had. */
zps_err_t zps_members_rank_report(struct zps_member_client *client, const struct zps_rank_report *report,
                                  uint64_t now_ns, struct zps_error *error) ZPS_MUSTCHECK;
/* A round in flight between ranks, put together from the reports of its ranks. */
struct zps_member_round {
  const struct zps_member_tensor *tensor;
  uint64_t step, age_ms, left_ms; /* age of the oldest part, and time to the earliest deadline */
  bool computes;                  /* No rank waits for another one: `ranks` compute, or wait for their devices. */
  uint32_t n_ranks;               /* The ranks that the round waits for: awaited by others, and waiting for none. */
  uint32_t ranks[ZPS_RANK_AWAITED_MAX]; /* the first of them, ascending */
};
/* Calls visit() with each of the job's rounds, 64 at most. Reports older than `fresh_ns` do not count: their ranks may
 * be stopped. Returns how many were left out. */
#define ZPS_MEMBER_ROUNDS_MAX 64u
uint32_t zps_member_job_rounds(const struct zps_member_job *job, uint64_t now_ns, uint64_t fresh_ns,
                               void (*visit)(void *ctx, const struct zps_member_job *job,
                                             const struct zps_member_round *round),
                               void *ctx);
/* A rank's first error; code ZPS_OK: it has none, or has gone on after it. The first one of a job is its cause. To be
 * told ahead of zps_members_leave(), if the rank leaves with it. */
zps_err_t zps_members_rank_failed(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                  const struct zps_error *why, struct zps_error *error) ZPS_MUSTCHECK;
/* Why the job fails or has failed; code ZPS_OK: nothing is known to be wrong. */
const struct zps_error *zps_member_job_cause(const struct zps_member_job *job);
/* How long it has run, or has waited to, under former coordinators too. */
uint64_t zps_member_job_age_ns(const struct zps_member_job *job, uint64_t now_ns);
/* Jobs that have ended. */
const struct zps_history *zps_members_history(const struct zps_members *members);
/* A rank tells of its rounds of a tensor: how its counters have grown since it last did, and how many rounds it has
 * done in all. Also of a job that has failed. */
zps_err_t zps_members_tally(struct zps_member_client *client, uint64_t job_id, uint32_t tensor, uint64_t done,
                            const struct zps_tally *growth, uint64_t now_ns, struct zps_error *error) ZPS_MUSTCHECK;
/* The counters of all tensors but internal ones, as the job's ranks have reported them; of `rounds`, the most that a
 * rank has done of each. */
struct zps_tally zps_member_job_tally(const struct zps_member_job *job);
/* A rank reports, and asks for the scheme of a step. Where none was proposed for it yet, one is, for it and what
 * follows, to the first of the tensor's ranks; else that one, where it asks, is told all runs. */
zps_err_t zps_members_plan(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                           uint32_t tensor, const struct zps_plan_request *told, struct zps_error *error) ZPS_MUSTCHECK;
/* The scheme that was proposed last. */
enum zps_plan_scheme zps_member_plan_scheme(const struct zps_member_plan *plan);
/* Bits 1u << scheme: the schemes that would take too long to be tried (common/plan/choose.h). */
unsigned zps_member_plan_left_out(const struct zps_member_plan *plan);

/* Does what follows from the events so far, and from the time. To be called after every event, and at the time that it
 * returns. ZPS_NEVER: when an event happens. */
uint64_t zps_members_tick(struct zps_members *members, uint64_t now_ns);
/* A tick at the time of the last one. */
uint64_t zps_members_settle(struct zps_members *members);
/* The coordinator is going down: refuses joins, those waiting too. */
void zps_members_drain(struct zps_members *members);

/* For tables: servers in order of their index (`index` < n_servers), and the list of jobs, oldest first. */
unsigned zps_members_servers(const struct zps_members *members);
const struct zps_member_server *zps_members_server(const struct zps_members *members, unsigned index);
unsigned zps_members_jobs(const struct zps_members *members);
const struct zps_member_job *zps_members_job(const struct zps_members *members, uint64_t job_id); /* NULL: gone */
const struct zps_member_job *zps_members_job_first(const struct zps_members *members);
uint32_t zps_members_epoch(const struct zps_members *members);
const char *zps_job_state_name(enum zps_job_state state);
const char *zps_rank_state_name(enum zps_rank_state state);

#endif
