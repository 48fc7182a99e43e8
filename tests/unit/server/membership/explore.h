/*
 * A membership module with three servers and four workers: what each believes, and what they do. The invariants are
 * checked at each action that the module asks for, and of the whole after each event.
 */
#ifndef ZPS_TESTS_SERVER_MEMBERSHIP_EXPLORE_H
#define ZPS_TESTS_SERVER_MEMBERSHIP_EXPLORE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "server/membership/notes.h"
#include "tests/support/settled.h"

enum { N_SERVERS = 3, N_WORKERS = 4, TOKENS_MAX = 512, HELD_MAX = 16, OPEN_MAX = 64, STORIES_MAX = 512 };

/* Workers 0 and 1 are a job of two; 2 wants the rank of 0; 3 says the world is three. */
extern const struct explore_worker { uint32_t rank, world; } explore_workers[N_WORKERS];
extern const char *const explore_names[N_SERVERS]; /* of servers */

struct held { /* a server's view of a job */
  uint64_t job_id;
  bool answered;
  uint32_t asked, mapped, replayed; /* epochs of job.view: told, answered; of job.replay */
};

struct fake {
  struct zps_member_client client;
  bool up;
  struct held held[HELD_MAX]; /* servers: jobs opened here */
  unsigned n_held;
  uint64_t job_id; /* workers: of the last JOIN_DONE */
  uint32_t tensor; /* workers: of the last TENSOR_DONE */
  bool in, failed;
  bool away;                        /* its connection is gone, and it means to come back */
  uint32_t asked, mapped, replayed; /* see those of servers */
};

struct request { /* tensor.open a server has to answer */
  unsigned server;
  uint64_t job_id;
  uint32_t tensor;
};

struct late { /* job.open a server has to answer, of a job that it has forgotten since */
  unsigned server;
  uint64_t job_id;
};

struct map { /* job.view a server has to answer */
  unsigned server;
  uint64_t job_id;
  uint32_t epoch;
};

struct story { /* a job as the coordinator saw it */
  uint64_t job_id;
  bool ended;
  bool is_opening;  /* when it was last seen: where it is placed anew, it goes on under another id */
  zps_err_t failed; /* the first cause that its ranks were told */
};

struct world {
  struct zps_members *members;
  struct fake fakes[N_SERVERS + N_WORKERS];
  unsigned n_tokens, n_open, n_late, n_maps, n_stories;
  unsigned n_placements; /* servers that took free places */
  bool replays;
  uint32_t places; /* of jobs, at least */
  struct zps_rng rng;
  uint64_t now_ns;
  /* explore_init() does not clear these: each has as many entries as counted above. */
  int tokens[TOKENS_MAX]; /* times answered */
  struct request open[OPEN_MAX];
  struct late late[OPEN_MAX];
  struct map maps[OPEN_MAX];
  struct story stories[STORIES_MAX];
};

/* What may happen. Below EVENT_ANSWER: the server, or (from N_SERVERS on) the worker of that number comes, or goes. */
enum explore_event {
  EVENT_WORKER_0 = N_SERVERS,
  EVENT_WORKER_1,
  EVENT_ANSWER = N_SERVERS + N_WORKERS, /* servers answer all they were asked */
  EVENT_REFUSE,
  EVENT_REGISTER_0, /* by worker 0 */
  EVENT_REGISTER_1,
  EVENT_REGISTER_OTHER,
  EVENT_LEAVE_0,
  EVENT_LEAVE_1,
  EVENT_TICK,
  EVENT_LINK_0,
  EVENT_LINK_1,
  EVENT_GROUP_0,
  EVENT_GROUP_1,
  EVENT_GROUP_ALONE,
  EVENT_GROUP_CLOSE,
  EVENT_CLOSE_0,
  EVENT_CLOSE_1,
  EVENT_MAPPED_0, /* from here on of interest where servers are lost */
  EVENT_MAPPED_1,
  EVENT_DRAIN,
  EVENT_SUSPECT_ONE_0,
  EVENT_SUSPECT_TWO_1,
  EVENT_SUSPECT_ONE_1,
  EVENT_REBALANCE,
  EVENT_KICK,
  N_EVENTS
};

/* By seeds from 5 on jobs have room for more servers than they begin with, maybe. */
void explore_init(struct world *world, uint64_t seed, bool replays);
/* Takes all down, and fails where something is left over. */
void explore_fini(struct world *world);
/* The event, and explore_check(). */
void explore_event(struct world *world, enum explore_event what);
/* Long enough for servers to take free places; so not one of the short sequences' events. */
void explore_pass_time(struct world *world);

/* Of a new request, unanswered. */
int *explore_token(struct world *world);
/* Comes, comes back, or goes. */
void explore_toggle(struct world *world, unsigned who);
/* Its connection ends, and it means to come back. */
void explore_go_away(struct world *world, unsigned who);
/* NULL: no such one. */
const struct zps_member_server *explore_server(const struct world *world, const char *name);
/* NULL: the server does not have the job. */
struct held *explore_held(struct fake *server, uint64_t job_id);

void explore_act(void *ctx, const struct zps_action *action); /* the module's */
void explore_note(void *ctx, const struct zps_member_note *note);
void explore_check(struct world *world);

#endif
