/* Worlds of five to eight ranks: over servers, or between ranks of one to four hosts, which share memory or do not. */
#include "tests/sim/plan.h"
#include "tests/sim/sched.h"

enum { LEAST = SIM_RANKS_FEW + 1, HOSTS_MAX = 4 };

/* Faults that were made for fewer ranks befall any of them, at any step. */
static void spread(struct sim_plan *plan, uint32_t few) {
  for (uint32_t i = 0; i < plan->n_faults; i++) {
    struct sim_fault *const fault = &plan->faults[i];
    fault->after_steps = fault->after_steps * plan->world / few;
    if (sim_fault_is_of_rank(fault->kind)) fault->who = (uint32_t)sim_random(plan->world);
  }
}

void sim_plan_make_many(struct sim_plan *plan) {
  const uint32_t few = plan->world;
  plan->world = LEAST + (uint32_t)sim_random(SIM_RANKS_MAX - LEAST + 1);
  plan->n_runs = 1; /* SIM_PROCESSES_MAX */
  spread(plan, few);
  if (sim_chance(3)) return;
  sim_plan_go_between_ranks(plan);
  plan->n_hosts = 1 + (uint32_t)sim_random(HOSTS_MAX);
  plan->shares = sim_chance(2);
  plan->lacks_shared = plan->shares && sim_chance(4) ? 1 + sim_random(20) : 0;
}
