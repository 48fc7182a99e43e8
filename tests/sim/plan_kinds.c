/* Kinds of worlds that have more than tensors over servers, which all ranks allreduce. */
#include <string.h>

#include "common/plan/schemes.h"
#include "tests/sim/limits.h"
#include "tests/sim/plan.h"
#include "tests/sim/sched.h"

enum { WORLDS_A_DEATH = 8 /* of a rank */, WORLDS_A_LIMIT = 4 /* of jobs */ };

static const char *const names[SIM_KINDS + 1] = {
    [SIM_SERVED] = "served", [SIM_APART] = "apart",     [SIM_AGAIN] = "again",   [SIM_MEMORY] = "memory",
    [SIM_PEERS] = "peers",   [SIM_ELASTIC] = "elastic", [SIM_BESIDE] = "beside", [SIM_STATE] = "state",
    [SIM_HOSTS] = "hosts",   [SIM_PLACES] = "places",   [SIM_MANY] = "many",     [SIM_LINKS] = "links",
    [SIM_QUORUM] = "quorum", [SIM_LATE] = "late",       [SIM_KINDS] = "unknown",
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
  static const char *const schemes[] = {"balanced", "sparse-ps", "dense-ps"}; /* rows of these are owned by servers */
  plan->tensors[0].scheme = schemes[sim_random(sizeof schemes / sizeof schemes[0])];
  plan->tensors[0].hashes = false;
  plan->is_apart = true;
  plan->tensors[0].staleness = sim_chance(2) ? 1 + (uint32_t)sim_random(3) : 0;
}

static bool any_auto(const struct sim_plan *plan) {
  bool any = false;
  for (uint32_t t = 0; t < plan->n_tensors; t++) any |= strncmp(plan->tensors[t].scheme, "auto", 4) == 0;
  return any;
}

/* From a moment on at which the job runs. With tensors under auto a number of the fault decides whether a rank is short
 * in the server's place: it throws no dice, so the other half of these worlds are those of earlier seeds. */
static void run_short(struct sim_plan *plan) {
  struct sim_fault *const fault = &plan->faults[plan->n_faults < SIM_FAULTS_MAX ? plan->n_faults++ : 0];
  const bool is_auto = any_auto(plan), of_server = is_auto || sim_chance(2);
  *fault = (struct sim_fault){.kind = of_server ? SIM_SHORT_SERVER : SIM_SHORT_RANK,
                              .who = (uint32_t)sim_random(of_server ? plan->n_servers : plan->world),
                              .after_steps = 1 + (uint32_t)sim_random((uint64_t)plan->world * plan->n_steps * 3 / 4),
                              .then_ns = sim_random(2 * ZPS_NS_PER_MS),
                              .for_ns = sim_random(sim_chance(2) ? 2 * ZPS_NS_PER_MS : 300 * ZPS_NS_PER_MS),
                              .one_in = 1 + sim_random(sim_chance(2) ? 4 : 60)};
  if (is_auto && fault->then_ns % 2 == 0) {
    fault->kind = SIM_SHORT_RANK;
    fault->who %= plan->world;
  }
}

/* By the last fault's dice. */
static void run_coordinator_short(struct sim_plan *plan) {
  struct sim_fault *const fault = &plan->faults[plan->n_faults++];
  *fault = fault[-1];
  fault->kind = SIM_SHORT_COORDINATOR;
  fault->who = 0;
}

/* One between ranks. */
static enum zps_plan_scheme any_between(void) {
  enum zps_plan_scheme scheme;
  do scheme = (enum zps_plan_scheme)sim_random(ZPS_PLAN_SCHEMES);
  while ((zps_plan_scheme_flags(scheme) & (ZPS_SCHEME_SERVED | ZPS_SCHEME_NESTS)) == ZPS_SCHEME_SERVED);
  return scheme;
}

void sim_plan_take_scheme(struct sim_tensor_plan *tensor) {
  static const char *const nested[] = {
      "hierarchical",      "hierarchical:sparse-ps",       "hierarchical:dense-ps",
      "hierarchical:ring", "hierarchical:split-allgather", "hierarchical:recursive-doubling",
  };
  const enum zps_plan_scheme scheme = any_between();
  const bool nests = scheme == ZPS_PLAN_HIERARCHICAL;
  tensor->scheme = nests ? nested[sim_random(sizeof nested / sizeof nested[0])] : zps_plan_scheme_name(scheme);
  tensor->hashes = false;
  tensor->between = !nests;
  tensor->ascends = zps_plan_scheme_flags(scheme) & ZPS_SCHEME_STATEFUL;
  if (zps_plan_scheme_lossy(scheme)) {
    tensor->order = SIM_ORDER_SOME;
    tensor->k = 1 + sim_random(tensor->rows);
  } else if (!zps_plan_scheme_exact_order(scheme)) {
    tensor->order = SIM_ORDER_OWN;
  }
}

/* As the only fault: a job does not survive it. */
static void lose_a_rank(struct sim_plan *plan) {
  plan->n_faults = 1;
  plan->faults[0] = (struct sim_fault){.kind = SIM_KILL_RANK,
                                       .who = (uint32_t)sim_random(plan->world),
                                       .after_steps = (uint32_t)sim_random((uint64_t)plan->world * plan->n_steps),
                                       .then_ns = sim_random(sim_chance(2) ? 200000 : 5 * ZPS_NS_PER_MS),
                                       .for_ns = sim_random(800 * ZPS_NS_PER_MS)};
}

void sim_plan_go_between_ranks(struct sim_plan *plan) {
  if (sim_chance(WORLDS_A_DEATH)) lose_a_rank(plan);
  plan->gives_up = sim_chance(4);
  plan->repeats = plan->gives_up && sim_chance(2);
  plan->n_hosts = 1 + (uint32_t)sim_random(plan->world);
  for (uint32_t i = 0; i < plan->n_tensors; i++) {
    struct sim_tensor_plan *const tensor = &plan->tensors[i];
    if (strncmp(tensor->scheme, "auto", 4) == 0) {
      const bool any = sim_chance(2);
      tensor->scheme = any ? "auto:any" : "auto";
      tensor->order = any ? SIM_ORDER_OWN : SIM_ORDER_RANKS;
    } else if (i == 0 || !sim_chance(4)) { /* the others are over servers */
      sim_plan_take_scheme(tensor);
    }
  }
}

/* By dice an elastic job, so that processes come to share memory again and again. */
static void share_hosts(struct sim_plan *plan) {
  if (sim_chance(3)) {
    sim_plan_make_elastic(plan);
    if (!plan->tensors[0].between && plan->tensors[0].order == SIM_ORDER_RANKS) sim_plan_take_scheme(&plan->tensors[0]);
  } else {
    sim_plan_go_between_ranks(plan);
  }
  plan->n_hosts = 1 + (uint32_t)sim_random(2);
  plan->shares = true;
  plan->lacks_shared = sim_chance(4) ? 1 + sim_random(20) : 0;
}

/* In one of four such worlds ranks give steps up, and in one memory is short. By no dice: the others are as ever. */
static bool be_troubled(struct sim_plan *plan) {
  enum { OF = 4, GIVES_UP = 1, IS_SHORT = 2 };
  const bool is_short = plan->seed / OF % OF == IS_SHORT;
  plan->gives_up = plan->seed / OF % OF == GIVES_UP;
  if (is_short) run_short(plan);
  return is_short;
}

/* A rank is never more steps behind than servers keep sums of. */
static void give_quorums(struct sim_plan *plan) {
  enum { STEPS_MOST = 16, GRACE_FEW_MS = 3, GRACE_MOST_MS = 600 };
  for (uint32_t i = 0; plan->n_steps > STEPS_MOST && i < plan->n_faults; i++) plan->faults[i].after_steps /= 6;
  if (plan->n_steps > STEPS_MOST) plan->n_steps /= 6;
  plan->memory_bytes = 64ull << 20;
  for (uint32_t i = 0; i < plan->n_tensors; i++) {
    struct sim_tensor_plan *const tensor = &plan->tensors[i];
    tensor->scheme = "balanced";
    if (i > 0 && sim_chance(3)) continue;
    tensor->quorum = 1 + (uint32_t)sim_random(plan->world);
    tensor->grace_ms = sim_chance(3) ? 0 : (uint32_t)sim_random(sim_chance(2) ? GRACE_FEW_MS : GRACE_MOST_MS);
  }
}

/* By dice one is slow, or stopped, while rounds close. */
static void hold_up_a_rank(struct sim_plan *plan) {
  plan->faults[plan->n_faults++] =
      (struct sim_fault){.kind = sim_chance(2) ? SIM_STOP_RANK : SIM_SLOW_RANK,
                         .who = (uint32_t)sim_random(plan->world),
                         .after_steps = (uint32_t)sim_random((uint64_t)plan->world * plan->n_steps / 2 + 1),
                         .then_ns = sim_random(ZPS_NS_PER_MS),
                         .for_ns = sim_random(800 * ZPS_NS_PER_MS)};
}

void sim_plan_specialise(struct sim_plan *plan) {
  bool is_short = plan->kind == SIM_MEMORY;
  plan->gives_up = plan->kind == SIM_AGAIN;
  if (plan->kind == SIM_APART || (plan->gives_up && sim_chance(3))) push_and_pull(plan);
  if (plan->kind == SIM_MEMORY) {
    for (uint64_t n = 1 + sim_random(2); n > 0; n--) run_short(plan);
    if (!plan->has_state && sim_chance(2)) run_coordinator_short(plan); /* one that cannot note what it does ends */
  }
  if (plan->kind == SIM_PEERS) sim_plan_go_between_ranks(plan);
  if (plan->kind == SIM_ELASTIC) sim_plan_make_elastic(plan);
  if (plan->kind == SIM_BESIDE) sim_plan_make_beside(plan);
  if (plan->kind == SIM_HOSTS) share_hosts(plan);
  if (plan->kind == SIM_STATE) sim_plan_make_state(plan);
  if (plan->kind == SIM_PLACES) sim_plan_make_places(plan);
  if (plan->kind == SIM_MANY) sim_plan_make_many(plan);
  if (plan->kind == SIM_LINKS) sim_plan_make_links(plan);
  if (plan->kind == SIM_QUORUM) {
    plan->leaves_early = false;
    give_quorums(plan);
    if (plan->n_faults < SIM_FAULTS_MAX && sim_plan_survives(plan)) hold_up_a_rank(plan);
    is_short = be_troubled(plan);
  }
  if (plan->kind == SIM_LATE) {
    give_quorums(plan);
    sim_plan_make_elastic(plan);
    if (plan->n_faults < SIM_FAULTS_ROOM && sim_chance(2)) hold_up_a_rank(plan);
  }
  plan->in_step = plan->gives_up || is_short || (plan->is_apart && sim_plan_takes_server(plan));
  if (plan->in_step) {
    plan->window = 1;
    plan->leaves_early = false;
  }
  if ((plan->kind == SIM_MEMORY || plan->kind == SIM_BESIDE) && plan->seed / 4 % WORLDS_A_LIMIT == 1)
    sim_plan_limit(plan); /* by no dice: the other seeds are as ever */
}
