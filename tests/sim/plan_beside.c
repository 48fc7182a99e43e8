/* Worlds of two or three jobs over the same servers, which end at different times. A rank that is killed is one of the
 * last job: it fails, and does no harm to the others. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/plan.h"
#include "tests/sim/sched.h"

enum { RANKS = 10 /* of all jobs together */ };

const struct sim_plan *sim_plan_of(const struct sim_plan *plan, uint32_t job) {
  return job == 0 ? plan : plan->others[job];
}

/* Its cluster is the first one's. */
static struct sim_plan *job_make(const struct sim_plan *plan, uint32_t job, uint32_t ranks_left) {
  struct sim_plan *const other = malloc(sizeof *other);
  *other = *plan;
  other->job = job;
  other->n_jobs = 1;
  other->seed = plan->seed + 7777777 * job; /* other gradients */
  other->n_faults = 0;
  other->world = 1 + (uint32_t)sim_random(ranks_left < SIM_RANKS_FEW ? ranks_left : SIM_RANKS_FEW);
  other->n_tensors = 1 + (uint32_t)sim_random(3);
  other->n_steps = sim_chance(3) ? 1 : 1 + (uint32_t)sim_random(16);
  other->window = 1 + (uint32_t)sim_random(SIM_WINDOW_MAX);
  other->leaves_early = sim_chance(8);
  other->n_hosts = 1 + (uint32_t)sim_random(other->world);
  for (uint32_t i = 0; i < other->n_tensors; i++) {
    sim_plan_tensor_make(&other->tensors[i], i);
    if (sim_chance(4)) sim_plan_take_scheme(&other->tensors[i]);
  }
  return other;
}

/* A job may begin at any time, on servers of which one at least is never taken away. */
static void keep_well(struct sim_plan *plan) {
  uint32_t n = 0, n_taken = 0;
  for (uint32_t i = 0; i < plan->n_faults; i++) {
    const struct sim_fault fault = plan->faults[i];
    const bool takes = sim_fault_takes_server(fault.kind);
    if (fault.kind == SIM_KILL_RANK || (takes && 2 * (n_taken + 1) >= plan->n_servers)) continue;
    n_taken += takes;
    plan->faults[n++] = fault;
  }
  plan->n_faults = n;
  if (plan->flips) strcpy(plan->provider, "loop");
  if (plan->flips) plan->rules[0] = '\0';
  plan->flips = false;
  plan->n_runs = 1;
}

void sim_plan_make_beside(struct sim_plan *plan) {
  keep_well(plan);
  plan->n_jobs = 2 + (uint32_t)sim_random(SIM_JOBS_MAX - 1);
  uint32_t n_ranks = plan->world;
  for (uint32_t job = 1; job < plan->n_jobs; job++) {
    plan->others[job] = job_make(plan, job, RANKS - n_ranks - (plan->n_jobs - 1 - job));
    n_ranks += plan->others[job]->world;
  }
  const uint32_t last = plan->others[plan->n_jobs - 1]->world;
  if (!sim_chance(2)) return;
  plan->faults[plan->n_faults++] =
      (struct sim_fault){.kind = SIM_KILL_RANK,
                         .who = n_ranks - last + (uint32_t)sim_random(last),
                         .after_steps = (uint32_t)sim_random((uint64_t)plan->world * plan->n_steps),
                         .then_ns = sim_random(sim_chance(2) ? 200000 : 5 * ZPS_NS_PER_MS)};
}
