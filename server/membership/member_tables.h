/* What the members of a cluster are: tables of servers, jobs, ranks, groups and tensors, which members.h has the calls
 * for. Others read them, and change nothing. */
#ifndef ZPS_SERVER_MEMBERSHIP_MEMBER_TABLES_H
#define ZPS_SERVER_MEMBERSHIP_MEMBER_TABLES_H

#include "common/base/load.h"
#include "common/base/mishaps.h"
#include "common/base/origin.h"
#include "common/base/tally.h"
#include "common/codec/partition.h"
#include "common/plan/report.h"
#include "proto/control_change.h"
#include "proto/control_job.h"
#include "proto/control_next.h"
#include "proto/control_server.h"
#include "proto/control_stats.h"
#include "proto/control_tensor.h"
#include "server/membership/view.h"

struct zps_member_job;

/* A connected client as this module knows it; embedded in the owner's connection object, zeroed at first, and valid
 * until zps_members_client_lost(). A client is a server, or one rank of one job. */
struct zps_member_client {
  struct zps_member_server *server;
  struct zps_member_rank *asker; /* It asks to be this rank of an elastic job. */
  struct zps_member_job *job;
  uint32_t rank;
  struct zps_origin origin; /* its certificate, or address; not known: nothing is counted for it */
  struct zps_origin tenant; /* for whom jobs that it begins are counted; not known: for nobody */
  bool has_share;           /* a certificate or a token says who its tenant is, so jobs are shared out */
};

struct zps_member_server {
  uint32_t index; /* issued once, never again */
  uint32_t pid;
  char name[ZPS_NAME_MAX + 1], host[ZPS_NAME_MAX + 1];
  struct zps_net_info fabric;
  bool draining;                    /* it takes no new jobs, and leaves those that run */
  bool stops;                       /* since its process is about to end */
  unsigned n_jobs;                  /* placed here and not yet closed */
  uint64_t came_ns;                 /* when it came, or was taken back; 0: long ago */
  uint64_t secret;                  /* by which its process is known again; 0: it is not */
  struct zps_member_client *client; /* NULL: away, and lost at until_ns */
  uint64_t until_ns;
};

enum zps_rank_state { ZPS_RANK_JOINING, ZPS_RANK_IN, ZPS_RANK_LEFT, ZPS_RANK_LOST };

struct zps_member_rank {
  enum zps_rank_state state;
  uint32_t rank, pid;
  char host[ZPS_NAME_MAX + 1], rack[ZPS_NAME_MAX + 1]; /* rack: empty where none was given */
  struct zps_net_info fabric;
  struct zps_origin origin; /* its client's */
  const char *memory; /* where its gradients are and how they reach the fabric: one of zps_members_memory()'s names */
  char held[ZPS_HELD_MAX + 1];      /* why servers that drain are to keep its job; empty: they need not */
  uint64_t deadline_ns, timeout_ms; /* JOINING */
  void *token;                      /* JOINING: the join request */
  uint64_t secret;                  /* by which its process is known again; 0: it is not */
  struct zps_member_client *client; /* JOINING, IN; NULL: away, and lost at until_ns */
  uint64_t until_ns;
  struct zps_tally tally;     /* of its rounds, but for those of internal tensors */
  uint64_t reported_ns;       /* Time of its last report of them; 0: none. */
  uint64_t kept_bytes;        /* Of its pushes, by its last report. */
  struct zps_mishaps mishaps; /* Of its endpoint, by its last report. */
  struct zps_load load;       /* Load of its main thread in its last report. */
  uint64_t rounds_ns;         /* Time of its last report of rounds in flight; 0: none. */
  uint32_t n_rounds;
  struct zps_rank_round rounds[ZPS_RANK_ROUNDS_MAX]; /* Rounds between ranks, by its last report. */
  uint64_t misses[ZPS_SERVERS_MAX / 64]; /* IN: bits of places with servers that it cannot reach (reachability.c). */
  unsigned n_failed;                     /* First errors that it has reported. */
  zps_err_t failed;                      /* Its first error, by its last report. */
  uint32_t mapped_epoch;                 /* the last one of which it has said job.mapped */
  enum zps_view_notice notified;         /* IN. */
  /* Of an elastic job, while it asks and while its generation is opened. */
  struct zps_member_elastic *elastic;
  struct zps_member_rank *next_asker;
  uint32_t last_seat;       /* One more than its rank in the last generation; 0: it is new. */
  uint32_t last_generation; /* As its process says; 0: none. */
  uint64_t step;            /* Steps that it has done. */
  bool has_change;          /* IN: it knows that the next generation is to begin. */
};

/* Ranks that meet, by a name (groups.c). */
struct zps_member_group {
  char name[ZPS_NAME_MAX + 1];
  bool is_met;         /* all have come */
  uint32_t first_rank; /* the rank that named the group's ranks */
  uint32_t n_ranks, n_here;
  uint32_t *ranks; /* ascending */
  struct zps_group_member {
    bool here;
    void *token; /* waits for the others */
    uint64_t deadline_ns, timeout_ms;
  } * members; /* of each of `ranks` */
  struct zps_member_group *next;
};

enum zps_tensor_state { ZPS_TENSOR_OPENING, ZPS_TENSOR_OPEN, ZPS_TENSOR_FAILED };

struct zps_member_request;
struct zps_member_tensor {
  struct zps_tensor_spec spec; /* owners are this struct's */
  enum zps_tensor_state state;
  uint32_t first_rank;                /* the rank that registered it */
  unsigned n_pending;                 /* Servers that have not answered tensor.open, as of the last settle. */
  bool *opened;                       /* of each server of the job: it has answered */
  struct zps_error error;             /* FAILED */
  uint64_t opened_ns;                 /* OPEN */
  struct zps_tally tally;             /* Of all ranks' rounds, by their reports. */
  uint64_t rounds_done;               /* the most that a rank has done */
  uint64_t reported_ns;               /* Time of the last report of them; 0: none. */
  struct zps_member_request *openers; /* Ranks that wait for servers. */
  struct zps_member_request *closers; /* Ranks that wait for others to close it, too. */
  struct zps_member_plan *plan;       /* where its scheme is to be chosen; else NULL */
};

enum zps_map_state {
  ZPS_MAP_NONE,
  ZPS_MAP_SERVERS, /* servers are to answer, those that leave too, then */
  ZPS_MAP_RANKS,   /* ranks */
  ZPS_MAP_OVER     /* While it is noted that all have heard. */
};

/* The partitions of servers that are lost, or leave, go to those that are left. */
struct zps_member_map {
  enum zps_map_state state;
  unsigned n_pending;            /* SERVERS: servers that have not acknowledged this epoch, as of the last settle. */
  uint64_t began_ns;             /* When the first of the epochs since the job last ran in one began. */
  uint64_t deadline_ns;          /* of this epoch; 0: not set yet */
  struct zps_job_steps steps;    /* steps that ranks of this epoch have begun and not finished; kept for ranks that come
                                    back */
  struct zps_error why;          /* Why the servers last changed, or are about to. OPENING too. */
  char server[ZPS_NAME_MAX + 1]; /* The server that `why` names; empty: none, or several. */
};

/* A server that ranks of a job could not reach over the data plane (reachability.c). */
struct zps_member_cutoff {
  uint32_t server;                   /* Its index. */
  bool is_out;                       /* False: it has taken a place again. */
  uint32_t rank, n_ranks;            /* The first rank that could not reach it, and how many could not. */
  uint64_t out_ns, in_ns;            /* When it left, and when it last took a place again. */
  uint64_t wait_ns, again_ns;        /* Pause before it is asked again, and the end of the pause. */
  char why[ZPS_SUSPECT_WHY_MAX + 1]; /* As a rank said. */
  struct zps_member_cutoff *next;
};

/* The first error of a job's ranks. It stands until its rank has gone on without one. */
struct zps_member_cause {
  uint32_t rank;
  struct zps_error error; /* ZPS_OK: there is none. */
};

enum zps_job_state { ZPS_JOB_JOINING, ZPS_JOB_OPENING, ZPS_JOB_RUNNING, ZPS_JOB_CLOSING };

#define ZPS_LOST_SERVERS_SIZE 160u

struct zps_member_job {
  enum zps_job_state state;
  char name[ZPS_NAME_MAX + 1];
  uint64_t job_id, seed;
  struct zps_secret secret; /* of its links */
  bool checksums;           /* of what is read over them; as it was opened */
  struct zps_origin origin; /* of the client that began it */
  struct zps_origin tenant; /* the tenant of that client */
  uint32_t world;
  struct zps_member_rank **ranks;    /* world of them; NULL: not there yet */
  uint32_t n_joined, n_left, n_lost; /* n_joined: JOINING or IN */
  struct zps_view view;              /* its servers, from OPENING on */
  uint32_t places;                   /* the wish of its ranks; 0: that of `config` */
  uint64_t placement_ns;             /* before that no server is asked to take a place */
  uint32_t version;                  /* Counts changes of ranks and tensors. A server that joins knows one version. */
  bool place_now;                    /* an administrator wants a server asked at once, whatever placement_ns says */
  char lost_servers[ZPS_LOST_SERVERS_SIZE]; /* by name, as they were lost: "a, c" */
  unsigned n_pending;                       /* OPENING: servers that have not answered job.open */
  struct zps_member_map map;                /* RUNNING */
  bool any_missed;                          /* Ranks miss servers, and a decision is due then. */
  uint64_t missed_due_ns;                   /* 0: not set yet. */
  char missed_why[ZPS_SUSPECT_WHY_MAX + 1]; /* Text of the last such report. */
  struct zps_member_cutoff *cutoffs;        /* Servers that had to leave it. */
  uint32_t weight;                          /* among the jobs of a server, from its beginning on */
  struct zps_generation generation;         /* number 0: the job is not elastic */
  struct zps_member_elastic *elastic; /* elastic job of this generation; NULL: none, or it is not known any more */
  struct zps_member_group *groups;    /* groups that ranks have opened, and not all closed */
  uint32_t n_groups;
  struct zps_member_tensor **tensors; /* by ascending number */
  uint32_t n_tensors;
  uint64_t cap_tensors;
  uint32_t next_tensor;          /* numbers are not given again */
  uint64_t started_ns;           /* of the state JOINING, later of RUNNING; of a restored job: when it was restored */
  uint64_t aged_ns;              /* How old it was then. */
  uint64_t started_ms;           /* The start of its state since 1970, UTC; 0: it is not known. */
  uint64_t grace_ns;             /* CLOSING: until when its servers keep it; 0: it has failed just now */
  bool is_forgotten;             /* CLOSING: by its servers */
  struct zps_member_cause cause; /* RUNNING, CLOSING */
  uint32_t lost_rank;            /* The rank to blame for `error`, or ZPS_NO_RANK. */
  struct zps_error error; /* RUNNING: why it is about to fail. CLOSING: why it failed. JOINING: why ranks were dropped
                             since the last one came. */
  struct zps_member_job *next;
};

#endif
