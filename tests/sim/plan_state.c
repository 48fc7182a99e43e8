/* Worlds of a coordinator that keeps its state, and runs short of memory as it notes what it does, as it replaces its
 * journal, and as it starts: then it ends, and is started again. Jobs are elastic in half of them. */
#include "tests/sim/plan.h"
#include "tests/sim/sched.h"

enum { SHORT_MAX = 3 };

static void add(struct sim_plan *plan, struct sim_fault fault) {
  plan->faults[plan->n_faults < SIM_FAULTS_ROOM ? plan->n_faults++ : 0] = fault;
}

/* Also before the job has begun. */
static struct sim_fault at_any_time(const struct sim_plan *plan, enum sim_fault_kind kind) {
  return (struct sim_fault){.kind = kind,
                            .after_steps = (uint32_t)sim_random((uint64_t)plan->world * plan->n_steps * 3 / 4 + 1),
                            .then_ns = sim_random(sim_chance(2) ? 200000 : 200 * ZPS_NS_PER_MS),
                            .for_ns = sim_random(800 * ZPS_NS_PER_MS)};
}

void sim_plan_make_state(struct sim_plan *plan) {
  bool has_restart = false;
  if (sim_chance(2)) sim_plan_make_elastic(plan);
  plan->has_state = true;
  plan->n_runs = 1; /* a rank that was refused would be in the first run with its second one */
  for (uint32_t i = 0; i < plan->n_faults; i++) has_restart |= plan->faults[i].kind == SIM_RESTART_COORDINATOR;
  if (!has_restart && sim_plan_survives(plan)) add(plan, at_any_time(plan, SIM_RESTART_COORDINATOR));
  for (uint64_t n = 1 + sim_random(SHORT_MAX); n > 0; n--) {
    struct sim_fault fault = at_any_time(plan, SIM_SHORT_COORDINATOR);
    fault.for_ns = sim_random(sim_chance(2) ? 5 * ZPS_NS_PER_MS : 600 * ZPS_NS_PER_MS);
    fault.one_in = 1 + sim_random(sim_chance(2) ? 20 : 400);
    add(plan, fault);
  }
}
