/* Worlds of elastic jobs: ranks are killed, stopped and cut off, others come, and servers and the coordinator have
 * their faults, at any time. */
#include <string.h>

#include "tests/sim/plan.h"
#include "tests/sim/sched.h"

enum { FAULTS = 6 };

static uint32_t n_of(const struct sim_plan *plan, enum sim_fault_kind kind) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < plan->n_faults; i++) n += plan->faults[i].kind == kind;
  return n;
}

static bool is_of_server(enum sim_fault_kind kind) {
  return kind <= SIM_CUT_SERVER && kind != SIM_ADD_SERVER;
}

/* Servers have one fault each, and one of them is never taken away. */
static bool may_be(const struct sim_plan *plan, const struct sim_fault *fault) {
  uint32_t n_taken = 0;
  if (fault->kind == SIM_RESTART_COORDINATOR && (!plan->has_state || n_of(plan, fault->kind) > 0)) return false;
  if (fault->kind == SIM_STOP_COORDINATOR && n_of(plan, fault->kind) > 0) return false;
  for (uint32_t i = 0; i < plan->n_faults; i++) {
    n_taken += sim_fault_takes_server(plan->faults[i].kind);
    if (is_of_server(plan->faults[i].kind) && is_of_server(fault->kind) && plan->faults[i].who == fault->who)
      return false;
  }
  return !sim_fault_takes_server(fault->kind) || n_taken + 1 < plan->n_servers;
}

static enum sim_fault_kind any_kind(void) {
  if (sim_chance(3)) return SIM_KILL_RANK;
  return sim_chance(4) ? SIM_ADD_RANK : (enum sim_fault_kind)sim_random(SIM_DRAWN_KINDS);
}

static void add(struct sim_plan *plan, const struct sim_fault *fault) {
  if (plan->n_faults < SIM_FAULTS_ROOM && may_be(plan, fault)) plan->faults[plan->n_faults++] = *fault;
}

static void fault_make(struct sim_plan *plan) {
  const uint64_t wait_ns = plan->join_wait_ms * ZPS_NS_PER_MS;
  const struct sim_fault *const last = plan->n_faults > 0 ? &plan->faults[plan->n_faults - 1] : NULL;
  struct sim_fault fault = {.kind = any_kind(), .for_ns = sim_random(800 * ZPS_NS_PER_MS)};
  const bool is_of_rank = fault.kind >= SIM_CUT_RANK && fault.kind <= SIM_KILL_RANK;
  fault.who = (uint32_t)sim_random(is_of_rank ? plan->max_world : plan->n_servers);
  fault.after_steps = (uint32_t)sim_random((uint64_t)plan->world * plan->n_steps * 3 / 4 + 1);
  fault.then_ns = sim_random(sim_chance(2) ? 200000 : 5 * ZPS_NS_PER_MS);
  if (last && sim_chance(2)) { /* while they still move on for the last one's sake */
    fault.after_steps = last->after_steps;
    fault.then_ns = last->then_ns + sim_random(sim_chance(2) ? 10 * ZPS_NS_PER_MS : 2 * wait_ns);
  }
  const bool stops = fault.kind == SIM_STOP_SERVER || fault.kind == SIM_STOP_RANK;
  if (stops && sim_chance(2)) fault.for_ns = 3 * ZPS_NS_PER_S + sim_random(4 * ZPS_NS_PER_S);
  add(plan, &fault);
  if (fault.kind != SIM_KILL_RANK || !sim_chance(2)) return;
  fault.kind = SIM_ADD_RANK; /* in its place */
  fault.then_ns += sim_random(2 * wait_ns);
  add(plan, &fault);
}

static void choose_schemes(struct sim_plan *plan) {
  for (uint32_t i = 0; i < plan->n_tensors; i++) {
    struct sim_tensor_plan *const tensor = &plan->tensors[i];
    if (tensor->quorum == 0 && strncmp(tensor->scheme, "auto", 4) != 0 && sim_chance(3)) sim_plan_take_scheme(tensor);
  }
}

void sim_plan_make_elastic(struct sim_plan *plan) {
  if (plan->flips) strcpy(plan->provider, "loop");
  if (plan->flips) plan->rules[0] = '\0';
  plan->flips = false;
  plan->n_runs = 1;
  plan->has_state = plan->has_state || sim_chance(2);
  plan->max_world = plan->world + (uint32_t)sim_random(SIM_RANKS_FEW - plan->world + 1);
  plan->min_world = 1 + (sim_chance(2) ? (uint32_t)sim_random(plan->world) : 0);
  plan->join_wait_ms = sim_chance(2) ? 100 + sim_random(500) : 1000 + sim_random(3000);
  plan->n_hosts = 1 + (uint32_t)sim_random(plan->world);
  choose_schemes(plan);
  plan->n_faults = 0;
  for (uint64_t n = 1 + sim_random(FAULTS); n > 0; n--) fault_make(plan);
}
