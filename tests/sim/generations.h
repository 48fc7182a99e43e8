/* The generations of an elastic job, as their ranks are told of them: what must be true of them, of why and when they
 * end, and of when the next one begins. */
#ifndef ZPS_TESTS_SIM_GENERATIONS_H
#define ZPS_TESTS_SIM_GENERATIONS_H

#include <zenps/elastic.h>

#include "tests/sim/cluster.h"

/* What a process was before. */
struct sim_place {
  const struct sim_generation *generation; /* NULL: it is new */
  int rank;
  uint64_t step, model;
};

struct sim_generation {
  uint64_t job_id;
  zenps_generation_t told; /* valid but for the rank */
  struct sim_plan plan;    /* with its world */
  uint64_t first;          /* the number of its first attempt at a step: no other generation has the same gradients */
  uint64_t model;          /* what the source has added up; valid with `has_model` */
  bool has_model;
  uint32_t n_servers; /* servers at first */
  uint32_t n_in;
  const struct sim_rank *ranks[SIM_RANKS_MAX]; /* ranks that have come into it */
  struct sim_place places[SIM_RANKS_MAX];      /* where they were */
  const char *over;                            /* why it may go no further; NULL: it must */
  uint64_t over_ns;
};

/* The rank has been let in: this is its job. */
struct sim_generation *sim_generation_enter(struct sim_rank *rank, const struct zenps_job *job,
                                            const zenps_generation_t *told, const struct sim_place *was);
/* From now on steps of it may fail. */
void sim_generation_over(struct sim_generation *generation, const char *why);
/* The rank has failed with this in it, or was told that it goes no further. */
void sim_generation_failed(struct sim_generation *generation, const struct sim_rank *rank, const char *what,
                           zenps_status_t status, const char *text);
void sim_generation_changed(struct sim_generation *generation, const struct sim_rank *rank);
/* The process was not let in. */
void sim_generation_refused(const struct sim_rank *rank, const struct sim_place *was, zenps_status_t status,
                            const char *text);
/* It has done all steps: those that come to a generation now may be too few. */
void sim_generation_finished(void);

#endif
