#include "tests/sim/plan.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/sched.h"

static const char *const names[SIM_FAULT_KINDS] = {
    [SIM_KILL_SERVER] = "kill-server",
    [SIM_STOP_SERVER] = "stop-server",
    [SIM_SLOW_SERVER] = "slow-server",
    [SIM_DRAIN_SERVER] = "drain-server",
    [SIM_ADD_SERVER] = "add-server",
    [SIM_CUT_SERVER] = "cut-server",
    [SIM_CUT_RANK] = "cut-rank",
    [SIM_SLOW_RANK] = "slow-rank",
    [SIM_STOP_RANK] = "stop-rank",
    [SIM_KILL_RANK] = "kill-rank",
    [SIM_RESTART_COORDINATOR] = "restart-coordinator",
    [SIM_STOP_COORDINATOR] = "stop-coordinator",
    [SIM_SHORT_SERVER] = "short-server",
    [SIM_SHORT_RANK] = "short-rank",
    [SIM_SHORT_COORDINATOR] = "short-coordinator",
    [SIM_ADD_RANK] = "add-rank",
};

const char *sim_fault_name(enum sim_fault_kind kind) {
  return names[kind];
}

void sim_plan_tensor_make(struct sim_tensor_plan *tensor, uint32_t i) {
  static const zenps_codec_t codecs[] = {ZENPS_CODEC_AUTO, ZENPS_CODEC_PAPER, ZENPS_CODEC_COO};
  static const char *const schemes[] = {"sparse-ps", "dense-ps", "omnireduce"};
  const bool is_large = i > 0 && sim_chance(3);
  snprintf(tensor->name, sizeof tensor->name, "t%u", i);
  tensor->width = 1 + (uint32_t)sim_random(3);
  tensor->rows = is_large ? 4000 + sim_random(8000) : 1 + sim_random(700);
  tensor->density = is_large ? 100 + (unsigned)sim_random(157) : (unsigned)sim_random(257);
  tensor->in_rows = sim_chance(2);
  tensor->out_rows = sim_chance(4);
  tensor->scheme = sim_chance(3) ? schemes[sim_random(3)] : "balanced";
  tensor->op = sim_chance(4) ? ZENPS_OP_MEAN : ZENPS_OP_SUM;
  tensor->codec = codecs[sim_random(3)];
  tensor->hashes = strcmp(tensor->scheme, "balanced") == 0 && sim_chance(4);
}

bool sim_fault_takes_server(enum sim_fault_kind kind) {
  return kind == SIM_KILL_SERVER || kind == SIM_DRAIN_SERVER || kind == SIM_STOP_SERVER;
}

bool sim_plan_takes_server(const struct sim_plan *plan) {
  bool any = false;
  for (uint32_t i = 0; i < plan->n_faults; i++) any |= sim_fault_takes_server(plan->faults[i].kind);
  return any;
}

/* Those that may be gone before the job begins. */
static uint32_t n_early(const struct sim_plan *plan) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < plan->n_faults; i++)
    n += sim_fault_takes_server(plan->faults[i].kind) && plan->faults[i].after_steps == 0;
  return n;
}

static uint32_t n_taken(const struct sim_plan *plan) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < plan->n_faults; i++) n += sim_fault_takes_server(plan->faults[i].kind);
  return n;
}

uint32_t sim_plan_min_servers(const struct sim_plan *plan) {
  const bool at_any_time = plan->max_world > 0 || plan->n_jobs > 1; /* a generation begins, or another job */
  return plan->n_servers - (at_any_time ? n_taken(plan) : n_early(plan));
}

/* The job may begin on servers of which all that are ever taken away are. */
static bool leaves_a_server(const struct sim_plan *plan) {
  return sim_plan_min_servers(plan) > n_taken(plan);
}

static bool has(const struct sim_plan *plan, enum sim_fault_kind kind) {
  for (uint32_t i = 0; i < plan->n_faults; i++)
    if (plan->faults[i].kind == kind) return true;
  return false;
}

bool sim_fault_is_of_server(enum sim_fault_kind kind) {
  return kind <= SIM_CUT_SERVER && kind != SIM_ADD_SERVER;
}

bool sim_fault_is_of_rank(enum sim_fault_kind kind) {
  return kind >= SIM_CUT_RANK && kind <= SIM_KILL_RANK;
}

static bool is_taken(const struct sim_plan *plan, const struct sim_fault *fault) {
  for (uint32_t i = 0; i < plan->n_faults; i++)
    if (sim_fault_is_of_server(plan->faults[i].kind) && sim_fault_is_of_server(fault->kind) &&
        plan->faults[i].who == fault->who)
      return true;
  return false;
}

static bool may_be(const struct sim_plan *plan, const struct sim_fault *fault) {
  struct sim_plan with = *plan;
  if (is_taken(plan, fault)) return false;
  if (fault->kind == SIM_KILL_RANK && plan->n_faults > 0) return false;
  if (has(plan, SIM_KILL_RANK)) return false;
  if (fault->kind == SIM_RESTART_COORDINATOR && (!plan->has_state || has(plan, fault->kind))) return false;
  with.faults[with.n_faults++] = *fault;
  return leaves_a_server(&with);
}

static void fault_make(struct sim_plan *plan) {
  struct sim_fault fault = {.kind = (enum sim_fault_kind)sim_random(SIM_DRAWN_KINDS)};
  if (sim_chance(3)) fault.kind = SIM_KILL_SERVER;
  fault.who = (uint32_t)sim_random(sim_fault_is_of_rank(fault.kind) ? plan->world : plan->n_servers);
  fault.after_steps = (uint32_t)sim_random((uint64_t)plan->world * plan->n_steps * 3 / 4 + 1);
  fault.then_ns = sim_random(sim_chance(2) ? 200000 : 5 * ZPS_NS_PER_MS);
  fault.for_ns = sim_random(800 * ZPS_NS_PER_MS);
  if (fault.kind == SIM_STOP_SERVER && sim_chance(2)) fault.for_ns = 3 * ZPS_NS_PER_S + sim_random(4 * ZPS_NS_PER_S);
  if (may_be(plan, &fault)) plan->faults[plan->n_faults++] = fault;
}

/* By no dice, as long steps: tensors whose schemes are chosen, for more steps, and a coordinator that is away for most
 * of them. */
static void choose_schemes(struct sim_plan *plan) {
  plan->n_steps *= 6;
  for (uint32_t i = 0; i < plan->n_tensors; i++) {
    struct sim_tensor_plan *const tensor = &plan->tensors[i];
    tensor->hashes = false; /* partitioners are for balanced alone */
    tensor->scheme = i % 2 ? "auto:balanced,sparse-ps,dense-ps" : "auto:balanced,sparse-ps,dense-ps,omnireduce";
  }
  for (uint32_t i = 0; i < plan->n_faults; i++) plan->faults[i].after_steps *= 6;
  if (has(plan, SIM_KILL_RANK) || has(plan, SIM_RESTART_COORDINATOR)) return;
  const uint32_t all = plan->world * plan->n_steps;
  plan->faults[plan->n_faults++] = (struct sim_fault){.kind = SIM_RESTART_COORDINATOR,
                                                      .after_steps = (uint32_t)(plan->seed / 8 % (all / 2)),
                                                      .for_ns = plan->seed / 8 % 3 * 400 * ZPS_NS_PER_MS};
}

/* By no dice. */
static void change_bytes(struct sim_plan *plan) {
  plan->flips = true;
  snprintf(plan->provider, sizeof plan->provider, "fault+loop");
  snprintf(plan->rules, sizeof plan->rules, "seed=%llu,flip=0.03", 1 + (unsigned long long)(plan->seed / 16));
}

void sim_plan_make(struct sim_plan *plan, uint64_t seed, enum sim_kind kind) {
  memset(plan, 0, sizeof *plan);
  plan->seed = seed;
  plan->kind = kind;
  plan->n_servers = 2 + (uint32_t)sim_random(3);
  plan->world = 2 + (uint32_t)sim_random(SIM_RANKS_FEW - 1);
  plan->n_tensors = 1 + (uint32_t)sim_random(3);
  plan->n_steps = 4 + (uint32_t)sim_random(9);
  plan->window = 1 + (uint32_t)sim_random(SIM_WINDOW_MAX);
  plan->threads = 1 + (unsigned)sim_random(2);
  plan->memory_bytes = (sim_chance(2) ? 4ull : 64ull) << 20;
  plan->resume_grace_ms = sim_chance(2) ? 0 : 500;
  plan->step_ns =
      seed % 4 == 3 ? 1500 * ZPS_NS_PER_MS : 2 * ZPS_NS_PER_MS; /* by no dice: the other seeds are as ever */
  plan->leaves_early = sim_chance(8);
  plan->has_state = sim_chance(2) || seed % 8 == 5;
  plan->n_hosts = 1;
  plan->n_jobs = 1;
  for (uint32_t i = 0; i < plan->n_tensors; i++) sim_plan_tensor_make(&plan->tensors[i], i);
  snprintf(plan->provider, sizeof plan->provider, "loop");
  if (sim_chance(2)) {
    snprintf(plan->provider, sizeof plan->provider, "fault+loop");
    snprintf(plan->rules, sizeof plan->rules, "seed=%u,delay=0.%02u:%uus,again=0.0%u",
             1 + (unsigned)sim_random(1 << 20), 1 + (unsigned)sim_random(30), 10 + (unsigned)sim_random(2000),
             (unsigned)sim_random(10));
  }
  for (uint64_t n = sim_random(SIM_FAULTS_MAX); n > 0; n--) fault_make(plan);
  plan->n_runs = sim_chance(3) && !sim_plan_takes_server(plan) ? 2 : 1;
  if (seed % 8 == 5) choose_schemes(plan);
  if (seed % 16 == 9) change_bytes(plan);
  sim_plan_specialise(plan);
}

bool sim_plan_has_long_steps(const struct sim_plan *plan) {
  return plan->step_ns > ZPS_NS_PER_S;
}

bool sim_plan_survives(const struct sim_plan *plan) {
  return !has(plan, SIM_KILL_RANK);
}

void sim_plan_print(const struct sim_plan *plan) {
  printf(
      "seed %llu, kind %s: %u servers, %u ranks on %u hosts, %u runs of %u steps, window %u, %u threads, provider %s "
      "%s, state %s, "
      "memory %llu, grace %llu ms%s%s%s%s\n",
      (unsigned long long)plan->seed, sim_kind_name(plan->kind), plan->n_servers, plan->world, plan->n_hosts,
      plan->n_runs, plan->n_steps, plan->window, plan->threads, plan->provider, plan->rules,
      plan->has_state ? "kept" : "not kept", (unsigned long long)plan->memory_bytes,
      (unsigned long long)plan->resume_grace_ms, plan->leaves_early ? ", leaves early" : "",
      sim_plan_has_long_steps(plan) ? ", long steps" : "", plan->in_step ? ", in step" : "",
      plan->repeats ? ", repeats" : "");
  if (plan->shares)
    printf("  ranks of a host share memory, of which one request in %llu is refused\n",
           (unsigned long long)plan->lacks_shared);
  static const char *const limits[] = {"bytes of a server", "rounds on a server", "tensors"};
  if (plan->places > 0)
    printf("  room for %u servers, as %s\n", plan->places, plan->asks_places ? "ranks ask" : "the coordinator says");
  if (plan->most > 0) printf("  a job may have %llu %s\n", (unsigned long long)plan->most, limits[plan->limit]);
  if (plan->max_world > 0)
    printf("  elastic: %u to %u ranks, which wait for others for %llu ms\n", plan->min_world, plan->max_world,
           (unsigned long long)plan->join_wait_ms);
  for (uint32_t i = 0; i < plan->n_tensors; i++) {
    const struct sim_tensor_plan *tensor = &plan->tensors[i];
    printf(
        "  tensor %s: %llu x %u, %u/256 of the rows, %s to %s, %s, op %d, codec %d, hashes %d, staleness %u, "
        "quorum %u, grace %u ms, "
        "order %d, k %llu\n",
        tensor->name, (unsigned long long)tensor->rows, tensor->width, tensor->density,
        tensor->in_rows ? "lists" : "dense", tensor->out_rows ? "lists" : "dense", tensor->scheme, (int)tensor->op,
        (int)tensor->codec, tensor->hashes, tensor->staleness, tensor->quorum, tensor->grace_ms, (int)tensor->order,
        (unsigned long long)tensor->k);
  }
  for (uint32_t job = 1; job < plan->n_jobs; job++) {
    printf(" beside it: ");
    sim_plan_print(plan->others[job]);
  }
  for (uint32_t i = 0; i < plan->n_faults; i++) {
    const struct sim_fault *fault = &plan->faults[i];
    printf("  fault %s %u after %u steps and %.3f ms, for %.3f ms, one in %llu\n", names[fault->kind], fault->who,
           fault->after_steps, (double)fault->then_ns / 1e6, (double)fault->for_ns / 1e6,
           (unsigned long long)fault->one_in);
  }
}
