/*
 * Processes and threads of a simulation: fibers of one thread, of which one runs at a time, in an order that a seed
 * decides, under a clock that goes on only here. A fiber runs until it waits, or until a seeded moment at which another
 * one is let run first.
 */
#ifndef ZPS_TESTS_SIM_SCHED_H
#define ZPS_TESTS_SIM_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/rng.h"

struct sim_fiber;

struct sim_process {
  char name[32];
  uint32_t pid;
  bool dead;              /* killed: none of its fibers runs again */
  uint64_t stopped_to_ns; /* none runs before */
  uint64_t slow_ns;       /* each of its fibers waits up to so long before it goes on; 0: it does not */
  uint64_t short_n;       /* one allocation in so many fails until short_to_ns */
  uint64_t short_to_ns;   /* 0: none fails */
  uint32_t host;          /* its number */
  unsigned n_fibers;      /* fibers that have not ended */
  struct sim_process *next;
};

/* Once, at first. */
void sim_sched_init(uint64_t seed);
struct zps_rng *sim_rng(void);
uint64_t sim_random(uint64_t below);
/* True with a chance of 1 in `n`. */
bool sim_chance(uint64_t n);
uint64_t sim_now_ns(void);
uint64_t sim_switches(void);

/* A process with one fiber that runs main(ctx). */
struct sim_process *sim_process_start(const char *name, void (*main)(void *ctx), void *ctx);
void sim_process_kill(struct sim_process *process);
struct sim_process *sim_process_list(void);
/* The one that runs; NULL: none does. */
struct sim_process *sim_process_here(void);

/* memory.c: whether an allocation of this process fails now, by dice. */
bool sim_memory_fails(void);

/* Another fiber of this process. */
struct sim_fiber *sim_fiber_start(void *(*run)(void *arg), void *arg);
struct sim_fiber *sim_fiber_here(void);
void sim_fiber_name(struct sim_fiber *fiber, const char *name);
void *sim_fiber_join(struct sim_fiber *fiber);
bool sim_fiber_has_ended(const struct sim_fiber *fiber);

/* Until somebody wakes those that wait on this address, or until then. False: nobody did. */
bool sim_wait(const void *on, uint64_t until_ns);
void sim_wake_one(const void *on);
void sim_wake_all(const void *on);
void sim_sleep(uint64_t ns);
/* Others may run first. */
void sim_yield(void);
/* Set by the log's sink, inside the log's lock, whose unlocking then throws no dice: what is logged changes nothing. */
extern bool sim_logs;
/* Time passes while this fiber runs. */
void sim_spend(uint64_t ns);

enum sim_end {
  SIM_ALL_ENDED, /* every fiber that lives has ended */
  SIM_STUCK,     /* all wait, and nothing will wake them */
  SIM_TOO_LONG   /* the time is up */
};
/* Runs until there is nothing to run, or until then. */
enum sim_end sim_run(uint64_t until_ns);
/* Tells what every fiber waits for. */
void sim_print_fibers(void);

#endif
