/* Kinds of worlds that have more than tensors over servers, which all ranks allreduce. */
#include <string.h>

#include "tests/sim/plan.h"
#include "tests/sim/sched.h"

static const char *const names[SIM_KINDS + 1] = {
    [SIM_SERVED] = "served",
    [SIM_APART] = "apart",
    [SIM_AGAIN] = "again",
    [SIM_KINDS] = "unknown",
};

const char *sim_kind_name(enum sim_kind kind) {
  return names[kind];
}

enum sim_kind sim_kind_find(const char *name) {
  unsigned kind = 0;
  while (kind < SIM_KINDS && strcmp(names[kind], name) != 0) kind++;
  return (enum sim_kind)kind;
}

/* Sums that wait for pulls are lost with a server. */
static void push_and_pull(struct sim_plan *plan) {
  static const char *const schemes[] = {"balanced", "sparse-ps", "dense-ps"}; /* which own rows at servers */
  plan->tensors[0].scheme = schemes[sim_random(sizeof schemes / sizeof schemes[0])];
  plan->tensors[0].partitioner = 0;
  plan->is_apart = true;
  plan->tensors[0].staleness = sim_chance(2) ? 1 + (uint32_t)sim_random(3) : 0;
}

void sim_plan_specialise(struct sim_plan *plan) {
  plan->gives_up = plan->kind == SIM_AGAIN;
  if (plan->kind == SIM_APART || (plan->gives_up && sim_chance(3))) push_and_pull(plan);
  plan->in_step = plan->gives_up || (plan->is_apart && sim_plan_takes_server(plan));
  if (!plan->in_step) return;
  plan->window = 1;
  plan->leaves_early = false;
}
