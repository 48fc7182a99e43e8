/*
 * All ranks of a rank-to-rank scheme in one process: their programs are carried out by the real compute code, in a
 * random order of instructions and messages that a seed decides, and every message is checked as a peer's would be.
 * Anything wrong fails the test.
 */
#ifndef ZPS_TESTS_SIM_H
#define ZPS_TESTS_SIM_H

#include "worker/compute/compute.h"
#include "worker/schemes/peer_scheme.h"

/* The bytes that one rank sent to another in a round. */
struct sim_count {
  uint32_t n_messages;
  uint64_t row_bytes;    /* of streams of rows: values and index */
  uint64_t vector_bytes; /* of vectors */
};

struct sim {
  const struct zps_peer_scheme *scheme;
  struct zps_peer_plan plan;  /* `me` is set for each rank */
  struct zps_compute compute; /* dtype, width, op, policy, origin: `own` and the rank are set for each rank */
  uint64_t seed;              /* of the order of events; another one each round */
  struct sim_rank *ranks;     /* plan.n */
  uint64_t round;             /* the next one's step */
  /* Of the last round. */
  uint64_t n_events;        /* messages and instructions */
  struct sim_count *counts; /* [from * n + to], positions */
};

/* `sim` holds scheme, plan, compute and seed; opens the scheme's state on all ranks. */
void sim_open(struct sim *sim);
void sim_close(struct sim *sim);
/* One round of the gradients (n of them). */
void sim_run(struct sim *sim, const struct zps_own_input *inputs);
/* Runs a round that ends when `n_done` ranks are done, or after `n_events` messages and instructions. For the other
 * ranks it has failed; one of them, at random, may not have begun. Gives the number of those. */
uint32_t sim_run_failing(struct sim *sim, const struct zps_own_input *inputs, uint32_t n_done, uint64_t n_events);
/* Position i's result: the dense array, and how many of its rows came in streams. The same for all positions, bit for
 * bit, or the round failed the test. */
const void *sim_result(const struct sim *sim, uint32_t i);
uint64_t sim_result_rows(const struct sim *sim, uint32_t i);
/* The rows of position i's gradient that the result is made of, ascending; of schemes that keep only some. */
const int64_t *sim_contributed(const struct sim *sim, uint32_t i, uint32_t *n_p);
/* The bytes that position i sent to and got from all others. */
struct sim_count sim_out(const struct sim *sim, uint32_t i);
struct sim_count sim_in(const struct sim *sim, uint32_t i);

#endif
