/* The processes of a simulation: coordinator, servers and ranks, and what befalls them. */
#ifndef ZPS_TESTS_SIM_CLUSTER_H
#define ZPS_TESTS_SIM_CLUSTER_H

#include "tests/sim/plan.h"
#include "tests/sim/sched.h"

#define SIM_COORDINATOR "127.0.0.1:7077"

struct sim_server;
struct sim_generation;
struct zps_members;

struct sim_rank {
  uint32_t rank;               /* of its job; of an elastic one, its number as a process */
  uint32_t nth_job;            /* its number among several jobs */
  const struct sim_plan *plan; /* of the job */
  struct sim_process *process;
  struct zenps_job *job;             /* for a debugger */
  uint32_t run, n_left;              /* run: the present one; n_left: runs that it has closed, or is about to */
  bool is_in, has_ended;             /* is_in: the job has let it in */
  struct sim_generation *generation; /* of an elastic job, that it is in; NULL: it is on its way */
  bool was_lost;                     /* on its way */
};

/* Ranks that agree on what became of a step. */
struct sim_meeting {
  uint32_t number, n_there;
  bool failed, had_failed; /* some rank's part of the step; of the last meeting */
  uint32_t n_failed[SIM_TENSORS_MAX], n_had_failed[SIM_TENSORS_MAX]; /* how many ranks'; likewise */
  bool any_cancel, any_late; /* some rank has given the step up, or begins it after its deadline */
  bool any_absent;           /* some rank could not begin it */
  uint32_t n_late;           /* so far */
  uint64_t given_up;         /* the last attempt of which either is true, and 1; 0: none */
};

struct sim_cluster {
  const struct sim_plan *plan;
  uint32_t steps_seen; /* ends that ranks have seen, of good steps; those who wait for more wait on this address */
  uint32_t steps_of[SIM_RUNS_MAX],
      n_errors[SIM_RUNS_MAX]; /* by run, or job: the same; and errors that ranks were told */
  bool rank_killed;           /* in the run `killed_run` */
  uint32_t killed_run;
  uint64_t killed_ns;      /* when; 0: none was */
  bool read_failed;        /* it brought other bytes than were announced, twice */
  bool was_short;          /* of memory, some process */
  bool coordinator_short;  /* was_short: so was it: jobs may fail with ERR_NOMEM */
  bool server_taken;       /* a server was killed, stopped or told to drain */
  uint64_t server_came_ns; /* when the last one was started */
  struct sim_meeting meetings[SIM_RUNS_MAX];
  struct sim_rank ranks[SIM_PROCESSES_MAX];
  uint32_t n_ranks; /* ranks that were started */
  char wrong[600];  /* the first thing that is; empty: nothing */
};

extern struct sim_cluster sim_cluster;

/* Notes what is wrong; the first one counts. */
void sim_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Starts everything, and the fiber that lets the faults happen and looks for what is left at the end. */
void sim_cluster_start(const struct sim_plan *plan);
/* What the coordinator knows; it must be there. */
const struct zps_members *sim_cluster_members(void);
/* places.c: at the end of a job, whether it has taken in the servers that came. */
void sim_places_check(const struct sim_plan *plan);
/* links.c: by rank 0, ahead of its close. */
void sim_links_check(const struct sim_plan *plan);
/* The coordinator's journal is on disk: it may be replaced by a shorter one soon. */
void sim_cluster_synced(void);
/* unix.c: the process is dead, and so are its sockets. */
void sim_unix_killed(const struct sim_process *process);
/* ports.c: closes the endpoints that the process has opened. */
void sim_ports_close(const struct sim_process *process);
/* trainer.c: the program of a rank. */
void sim_rank_main(void *rank);

#endif
