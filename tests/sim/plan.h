/* What a seed stands for: a cluster, a job, and the faults that befall them. */
#ifndef ZPS_TESTS_SIM_PLAN_H
#define ZPS_TESTS_SIM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "zenps/zenps.h"

enum {
  SIM_SERVERS_MAX = 6,
  SIM_RANKS_MAX = 8,
  SIM_RANKS_FEW = 4, /* in worlds of all kinds but many */
  SIM_TENSORS_MAX = 4,
  SIM_FAULTS_MAX = 4,
  SIM_FAULTS_ROOM = 12,
  SIM_PROCESSES_MAX = 12, /* processes that are ranks, one after the other */
  SIM_WINDOW_MAX = 3,
  SIM_JOBS_MAX = 3,
  SIM_RUNS_MAX = 3 /* runs of a process, in one job or several */
};

/* What is special about a world. A seed is another run in each. */
enum sim_kind {
  SIM_SERVED,  /* tensors over servers, which all ranks allreduce */
  SIM_APART,   /* the first one is pushed and pulled by some ranks, in steps that others allreduce or scatter */
  SIM_AGAIN,   /* ranks cancel steps, or come to them after their deadline */
  SIM_MEMORY,  /* servers and ranks run short of memory, for a while */
  SIM_PEERS,   /* most tensors have schemes between ranks */
  SIM_ELASTIC, /* ranks go and come, and the job goes on */
  SIM_BESIDE,  /* two or three jobs at the same time, of which one may fail */
  SIM_HOSTS,   /* ranks of a host share memory */
  SIM_STATE,   /* a coordinator that keeps its state runs short of memory */
  SIM_PLACES,  /* jobs have room for more servers than they begin with, and more come */
  SIM_MANY,    /* more ranks, of one to four hosts */
  SIM_LINKS,   /* messages out of order, connections that are cut */
  SIM_QUORUM,  /* rounds that close without the slowest ranks */
  SIM_LATE,    /* rounds with a quorum in elastic jobs */
  SIM_KINDS
};

/* What a job may have no more of than so many. */
enum sim_limit {
  SIM_LIMIT_MEMORY, /* of a server */
  SIM_LIMIT_ROUNDS, /* in flight on a server */
  SIM_LIMIT_TENSORS,
  SIM_LIMITS
};

/* What a sum is. */
enum sim_order {
  SIM_ORDER_RANKS, /* of the gradients in the order of ranks */
  SIM_ORDER_OWN,   /* in the scheme's: of numbers that add up exactly */
  SIM_ORDER_SOME,  /* of some ranks' rows: schemes that leave rows out */
};

struct sim_tensor_plan {
  char name[16];
  uint64_t rows;
  uint32_t width;
  unsigned density;       /* of 256 rows, how many a rank has */
  bool in_rows, out_rows; /* gradients are lists; so are results */
  const char *scheme;
  zenps_op_t op;
  zenps_codec_t codec;
  bool hashes; /* rows are dealt by the partitioner murmur */
  uint32_t staleness;
  uint32_t quorum, grace_ms;
  enum sim_order order;
  bool between; /* ranks: servers have no part in it */
  bool ascends; /* each attempt at a step has a number of its own */
  uint64_t k;   /* rows that are kept, of SIM_ORDER_SOME */
};

enum sim_fault_kind {
  SIM_KILL_SERVER,
  SIM_STOP_SERVER, /* so that it is not heard of for a while; maybe longer than it takes to be given up */
  SIM_SLOW_SERVER,
  SIM_DRAIN_SERVER,
  SIM_ADD_SERVER,
  SIM_CUT_SERVER, /* its connection to the coordinator ends, though it lives */
  SIM_CUT_RANK,
  SIM_SLOW_RANK,
  SIM_STOP_RANK, /* for less than it takes to be given up */
  SIM_KILL_RANK, /* the one that a job does not survive */
  SIM_RESTART_COORDINATOR,
  SIM_STOP_COORDINATOR,
  SIM_DRAWN_KINDS,
  SIM_SHORT_SERVER = SIM_DRAWN_KINDS, /* of memory */
  SIM_SHORT_RANK,
  SIM_SHORT_COORDINATOR,
  SIM_ADD_RANK, /* another process, which asks to be let in */
  SIM_FAULT_KINDS
};

struct sim_fault {
  enum sim_fault_kind kind;
  uint32_t who;         /* server or rank */
  uint32_t after_steps; /* steps of all ranks together that have ended before */
  uint64_t then_ns;     /* the fault comes so long after those steps */
  uint64_t for_ns;      /* stops, slowness, the coordinator's absence, shortness */
  uint64_t one_in;      /* allocations that fail, of short ones */
};

struct sim_plan {
  uint64_t seed;
  enum sim_kind kind;
  bool is_apart; /* the first tensor is pushed and pulled */
  bool gives_up; /* ranks cancel steps, or are late */
  bool repeats;  /* a step of a tensor between ranks that fails on all of them is tried again under the same number */
  bool in_step;  /* ranks agree on what became of each step, and try it again */
  uint32_t n_hosts;      /* hosts that the ranks are on, in turn */
  bool shares;           /* ranks of a host share memory */
  uint64_t lacks_shared; /* the system refuses one request for shared memory in so many; 0: none */
  uint32_t n_servers, world, n_tensors, n_steps, window;
  uint32_t places;  /* for servers, at least; 0: as many as the job begins with */
  bool asks_places; /* ranks ask for them; else the coordinator gives them to every job */
  unsigned threads;
  uint64_t memory_bytes, resume_grace_ms;
  uint32_t n_runs;   /* of the job, one after the other, under one name */
  uint64_t step_ns;  /* the most that a rank does between steps; in some seeds so long that servers take free places */
  bool leaves_early; /* ranks do not wait for each other at the end */
  bool has_state;    /* the coordinator keeps it */
  bool flips;        /* reads bring other bytes, now and then, and are checked */
  uint32_t min_world, max_world; /* max_world: 0: the job is not elastic */
  uint64_t join_wait_ms;
  enum sim_limit limit;                  /* of each job */
  uint64_t most;                         /* of what `limit` says; 0: there is none */
  uint32_t n_jobs, job;                  /* beside each other; which of them this is the plan of */
  struct sim_plan *others[SIM_JOBS_MAX]; /* of jobs 1 and on: their tensors, ranks and steps */
  char provider[16], rules[128];
  struct sim_tensor_plan tensors[SIM_TENSORS_MAX];
  uint32_t n_faults;
  struct sim_fault faults[SIM_FAULTS_ROOM];
};

/* Follows from seed and kind; its dice are the first. */
void sim_plan_make(struct sim_plan *plan, uint64_t seed, enum sim_kind kind);
/* plan_kinds.c: makes it one of its kind, by dice of its own. */
void sim_plan_specialise(struct sim_plan *plan);
/* plan_beside.c: the same, of several jobs. */
void sim_plan_make_beside(struct sim_plan *plan);
/* That of a job. */
const struct sim_plan *sim_plan_of(const struct sim_plan *plan, uint32_t job);
/* Tensor `i` of a job, by dice. */
void sim_plan_tensor_make(struct sim_tensor_plan *tensor, uint32_t i);
/* One between ranks, or a hierarchical one. */
void sim_plan_take_scheme(struct sim_tensor_plan *tensor);
/* plan_elastic.c: the same, of an elastic one. */
void sim_plan_make_elastic(struct sim_plan *plan);
/* plan_state.c: the same, of a coordinator's state. */
void sim_plan_make_state(struct sim_plan *plan);
/* plan_kinds.c: most tensors between ranks. */
void sim_plan_go_between_ranks(struct sim_plan *plan);
/* plan_many.c: the same, of more ranks. */
void sim_plan_make_many(struct sim_plan *plan);
/* links.c: the same, of connections that are not as they should be. */
void sim_plan_make_links(struct sim_plan *plan);
/* places.c: the same, of jobs that more servers come to. */
void sim_plan_make_places(struct sim_plan *plan);
const char *sim_kind_name(enum sim_kind kind);
/* SIM_KINDS: there is none of this name. */
enum sim_kind sim_kind_find(const char *name);
void sim_plan_print(const struct sim_plan *plan);
const char *sim_fault_name(enum sim_fault_kind kind);
bool sim_fault_is_of_server(enum sim_fault_kind kind);
bool sim_fault_is_of_rank(enum sim_fault_kind kind);
/* Whether the job may have to go on without the server. */
bool sim_fault_takes_server(enum sim_fault_kind kind);
bool sim_plan_takes_server(const struct sim_plan *plan);
/* Whether the job must come to its end without an error. */
bool sim_plan_survives(const struct sim_plan *plan);
/* Jobs take so long that servers which come take free places in them. */
bool sim_plan_has_long_steps(const struct sim_plan *plan);
/* With how many servers the job may begin. */
uint32_t sim_plan_min_servers(const struct sim_plan *plan);

#endif
