#include "tests/sim/cluster.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/coordinator_impl.h"
#include "server/membership/members_impl.h"
#include "server/daemon/agent.h"
#include "server/shard/shard.h"
#include "tests/sim/disk.h"
#include "tests/sim/elastic.h"
#include "tests/sim/limits.h"
#include "tests/sim/uv.h"

enum {
  HEARTBEAT_MS = 200,
  DEAD_MS = 2000,
  RECEIVES = 64,
  READ_BUDGET = 8 << 20,
  SYNCS_A_JOURNAL = 8, /* the journal is replaced after so many */
};
/* What lives on after a job: jobs for late frames, requests for reads that the fabric still has. */
#define RESTART_NS (400 * ZPS_NS_PER_MS) /* of a coordinator that has ended by itself, at most */
#define LEFT_NS (30 * ZPS_NS_PER_S)

struct sim_server {
  char name[16];
  struct sim_process *process;
  uv_loop_t loop;
  struct zps_shard *shard;
  struct zps_agent *agent;
  bool is_up;
};

struct sim_cluster sim_cluster;

static struct {
  struct sim_server servers[SIM_SERVERS_MAX];
  uint32_t n_servers;
  struct sim_process *coordinator;
  uv_loop_t loop;
  struct zps_coordinator *at;
  bool is_down, is_away, is_over; /* of the coordinator: it has ended by itself; and will be started again; for good */
} cluster;

void sim_wrong(const char *fmt, ...) {
  va_list args;
  if (sim_cluster.wrong[0]) return;
  va_start(args, fmt);
  vsnprintf(sim_cluster.wrong, sizeof sim_cluster.wrong, fmt, args);
  va_end(args);
}

/* ------------------------------------------------------------ the coordinator */

/* Why it ends; it does nothing any more. */
static void ends(const char *what, zps_err_t code, const char *text) {
  if (code != ZPS_ERR_NOMEM || sim_process_here()->short_n == 0) sim_wrong("%s: %s", what, text);
  cluster.is_down = true;
  sim_wake_all(&cluster.is_down);
  sim_wait(NULL, ZPS_NEVER);
}

static void on_broken(void *ctx, const struct zps_error *error) {
  (void)ctx;
  ends("the coordinator's state is broken", error->code, error->text);
}

static void coordinator_main(void *ctx) {
  static char state_dir[] = "state", cluster_name[] = "sim", listen[] = SIM_COORDINATOR;
  const struct sim_plan *plan = ctx;
  const struct zps_coordinator_config config = {.listen = listen,
                                                .heartbeat_ms = HEARTBEAT_MS,
                                                .dead_ms = DEAD_MS,
                                                .call_timeout_ms = 5000,
                                                .leave_grace_ms = 5000,
                                                .resume_grace_ms = plan->resume_grace_ms,
                                                .min_servers = sim_plan_min_servers(plan),
                                                .max_tensors = (uint32_t)sim_limit_most(plan, SIM_LIMIT_TENSORS),
                                                .server_loss_replays = true,
                                                .server_places = plan->asks_places ? 0 : plan->places,
                                                .checked = plan->flips,
                                                .state_dir = plan->has_state ? state_dir : NULL,
                                                .cluster = cluster_name,
                                                .restart_grace_ms = 5000,
                                                .on_broken = on_broken};
  struct zps_error error = {.text = ""};
  uv_loop_init(&cluster.loop);
  const zps_err_t err = zps_coordinator_create(&cluster.loop, &config, &cluster.at, &error);
  if (err != ZPS_OK) ends("the coordinator does not start", err, error.text);
  uv_run(&cluster.loop, UV_RUN_DEFAULT);
  uv_loop_close(&cluster.loop);
}

static void coordinator_start(const struct sim_plan *plan) {
  cluster.coordinator = sim_process_start("coordinator", coordinator_main, (void *)plan);
}

const struct zps_members *sim_cluster_members(void) {
  return cluster.at->members;
}

void sim_cluster_synced(void) {
  if (sim_cluster.plan->kind == SIM_STATE && cluster.at && sim_chance(SYNCS_A_JOURNAL)) cluster.at->compact_at = 1;
}

static void coordinator_close(void *ctx) {
  (void)ctx;
  zps_coordinator_close(cluster.at);
}

/* ------------------------------------------------------------ servers */

static void on_change(void *ctx, bool registered, const char *text) {
  (void)ctx, (void)registered, (void)text;
}

static void server_main(void *ctx) {
  struct sim_server *server = ctx;
  const struct sim_plan *plan = sim_cluster.plan;
  const struct zps_shard_config config = {
      .net = {.provider = plan->provider, .fault = plan->rules[0] ? plan->rules : NULL, .n_recv = RECEIVES},
      .memory_limit_bytes = plan->memory_bytes,
      .reduce_threads = plan->threads,
      .read_budget_bytes = READ_BUDGET,
      .quota = {.memory_bytes = sim_limit_most(plan, SIM_LIMIT_MEMORY),
                .rounds = sim_limit_most(plan, SIM_LIMIT_ROUNDS)}};
  struct zps_error error = {.text = ""};
  if (zps_shard_create(&config, &server->shard, &error) != ZPS_OK) {
    sim_wrong("%s does not start: %s", server->name, error.text);
    return;
  }
  uv_loop_init(&server->loop);
  const struct zps_agent_config agent = {.coordinator = SIM_COORDINATOR,
                                         .name = server->name,
                                         .host = server->name,
                                         .shard = server->shard,
                                         .orphan_grace_ms = 10000,
                                         .on_change = on_change};
  if (zps_agent_create(&server->loop, &agent, &server->agent, &error) != ZPS_OK)
    sim_wrong("%s has no agent: %s", server->name, error.text);
  server->is_up = true;
  uv_run(&server->loop, UV_RUN_DEFAULT);
  uv_loop_close(&server->loop);
  zps_shard_destroy(server->shard);
}

static void server_start(void) {
  struct sim_server *server = &cluster.servers[cluster.n_servers];
  snprintf(server->name, sizeof server->name, "server-%u", cluster.n_servers++);
  server->process = sim_process_start(server->name, server_main, server);
  sim_cluster.server_came_ns = sim_now_ns();
}

static void server_drain(void *ctx) {
  zps_agent_drain(((struct sim_server *)ctx)->agent);
}

static void server_close(void *ctx) {
  zps_agent_close(((struct sim_server *)ctx)->agent);
}

struct look {
  struct sim_server *server;
  struct zps_shard_totals totals;
  zps_err_t code;
  bool done;
};

static void server_look(void *ctx) {
  struct look *look = ctx;
  look->code = zps_shard_stats(look->server->shard, &look->totals, NULL, NULL, NULL);
  look->done = true;
  sim_wake_all(look);
}

/* ------------------------------------------------------------ faults */

static void kill_process(struct sim_process *process) {
  sim_process_kill(process);
  sim_uv_killed(process);
  sim_unix_killed(process);
  sim_wake_all(&sim_cluster.steps_seen);
  sim_ports_close(process);
}

static void start_after(uint64_t ns) {
  cluster.is_down = false;
  cluster.is_away = true;
  sim_sleep(ns);
  coordinator_start(sim_cluster.plan);
  cluster.is_away = false;
}

static void restart_coordinator(const struct sim_fault *fault) {
  if (cluster.is_away) return;
  kill_process(cluster.coordinator);
  sim_disk_tear();
  start_after(fault->for_ns);
}

/* Starts a coordinator again that has ended by itself; what has no memory may be short of it still. */
static void *supervise(void *arg) {
  for (;;) {
    while (!cluster.is_down && !cluster.is_over) sim_wait(&cluster.is_down, ZPS_NEVER);
    if (cluster.is_over) return arg;
    const struct sim_process *const was = cluster.coordinator;
    const struct sim_fault fault = {.kind = SIM_RESTART_COORDINATOR, .for_ns = sim_random(RESTART_NS)};
    if (sim_cluster.plan->max_world > 0) sim_elastic_befalls(&fault);
    kill_process(cluster.coordinator);
    start_after(fault.for_ns);
    if (sim_chance(2)) continue;
    cluster.coordinator->short_n = was->short_n;
    cluster.coordinator->short_to_ns = was->short_to_ns;
  }
}

static void rank_start(struct sim_rank *rank) {
  char name[32];
  if (sim_cluster.plan->n_jobs > 1)
    snprintf(name, sizeof name, "job-%u-rank-%u", rank->nth_job, rank->rank);
  else
    snprintf(name, sizeof name, "rank-%u", rank->rank);
  rank->process = sim_process_start(name, sim_cluster.plan->max_world > 0 ? sim_elastic_main : sim_rank_main, rank);
  rank->process->host = rank->rank % rank->plan->n_hosts;
}

/* It comes back for the next run, when it is not taken for one that may live. */
static void kill_rank(struct sim_rank *rank, const struct sim_fault *fault) {
  if (rank->run > rank->nth_job) return;
  if (sim_cluster.plan->n_runs > 1 && !rank->is_in)
    return; /* it could come back into the first run, and lack in the next */
  sim_cluster.rank_killed = true;
  sim_cluster.killed_run = rank->nth_job;
  sim_cluster.killed_ns = sim_now_ns();
  kill_process(rank->process);
  rank->run = rank->nth_job + 1;
  rank->n_left = 1;
  sim_wake_all(&sim_cluster.steps_seen); /* others may have looked while its ports were closed */
  if (sim_cluster.plan->n_runs == 1) return;
  sim_sleep(ZPS_NS_PER_S + fault->for_ns);
  rank_start(rank);
}

static void add_rank(uint32_t job, uint32_t number) {
  if (sim_cluster.n_ranks == SIM_PROCESSES_MAX) return;
  struct sim_rank *const rank = &sim_cluster.ranks[sim_cluster.n_ranks++];
  rank->rank = number;
  rank->nth_job = job;
  rank->plan = sim_plan_of(sim_cluster.plan, job);
  rank->run = job;
  rank_start(rank);
}

/* Of an elastic job, which goes on. */
static void lose_rank(struct sim_rank *rank) {
  sim_elastic_lost(rank, "a rank was killed"); /* before others may see its ports closed */
  kill_process(rank->process);
  rank->has_ended = true;
  sim_wake_all(&sim_cluster.steps_seen);
}

static void run_short(struct sim_process *process, const struct sim_fault *fault) {
  sim_cluster.was_short = true;
  process->short_n = fault->one_in;
  process->short_to_ns = sim_now_ns() + fault->for_ns;
}

static bool ranks_are_through(void) {
  for (uint32_t r = 0; r < sim_cluster.n_ranks; r++)
    if (!sim_cluster.ranks[r].has_ended &&
        sim_cluster.ranks[r].run < sim_cluster.ranks[r].nth_job + sim_cluster.plan->n_runs)
      return false;
  return true;
}

static void befall(const struct sim_fault *fault) {
  sim_cluster.server_taken |= sim_fault_takes_server(fault->kind);
  struct sim_server *server = &cluster.servers[fault->who];
  struct sim_rank *rank = &sim_cluster.ranks[fault->who];
  const bool is_elastic = sim_cluster.plan->max_world > 0;
  if (is_elastic && (sim_fault_is_of_rank(fault->kind) ? !rank->process || rank->has_ended : ranks_are_through()))
    return;
  if (is_elastic) sim_elastic_befalls(fault);
  if (sim_fault_is_of_server(fault->kind) && !server->process) return; /* one that was to come, and has not yet */
  switch (fault->kind) {
    case SIM_KILL_SERVER:
      kill_process(server->process);
      break;
    case SIM_STOP_SERVER:
      server->process->stopped_to_ns = sim_now_ns() + fault->for_ns;
      break;
    case SIM_SLOW_SERVER:
      server->process->slow_ns = fault->for_ns / 400;
      break;
    case SIM_DRAIN_SERVER:
      if (server->is_up) sim_uv_post(&server->loop, server_drain, server);
      break;
    case SIM_ADD_SERVER:
      if (cluster.n_servers < SIM_SERVERS_MAX) server_start();
      break;
    case SIM_CUT_SERVER:
      sim_uv_cut(server->process);
      break;
    case SIM_CUT_RANK:
      if (rank->is_in || is_elastic) sim_uv_cut(rank->process); /* before that it would be lost by it */
      break;
    case SIM_SLOW_RANK:
      rank->process->slow_ns = fault->for_ns / 400;
      break;
    case SIM_STOP_RANK:
      rank->process->stopped_to_ns = sim_now_ns() + fault->for_ns;
      break;
    case SIM_KILL_RANK:
      if (rank->has_ended) break;
      if (is_elastic)
        lose_rank(rank);
      else
        kill_rank(rank, fault);
      break;
    case SIM_SHORT_SERVER:
      run_short(server->process, fault);
      break;
    case SIM_SHORT_COORDINATOR:
      sim_cluster.coordinator_short = true;
      run_short(cluster.coordinator, fault);
      break;
    case SIM_SHORT_RANK:
      run_short(rank->process, fault);
      break;
    case SIM_ADD_RANK:
      add_rank(0, sim_cluster.n_ranks);
      break;
    case SIM_STOP_COORDINATOR:
      cluster.coordinator->stopped_to_ns = sim_now_ns() + fault->for_ns;
      break;
    default:
      restart_coordinator(fault);
  }
}

static void *fault_run(void *arg) {
  const struct sim_fault *fault = arg;
  while (sim_cluster.steps_seen < fault->after_steps && !ranks_are_through())
    sim_wait(&sim_cluster.steps_seen, ZPS_NEVER);
  sim_sleep(fault->then_ns);
  befall(fault);
  if (!sim_plan_has_long_steps(sim_cluster.plan) || !sim_fault_takes_server(fault->kind)) return NULL;
  sim_sleep(fault->for_ns); /* another one, which the job may take in */
  if (cluster.n_servers < SIM_SERVERS_MAX && !ranks_are_through()) server_start();
  return NULL;
}

/* ------------------------------------------------------------ the end */

static void check_server(struct sim_server *server) {
  struct look look = {.server = server};
  if (!server->is_up || server->process->dead) return;
  sim_uv_post(&server->loop, server_look, &look);
  while (!look.done) sim_wait(&look, ZPS_NEVER);
  if (look.code != ZPS_OK)
    sim_wrong("%s does not answer at the end", server->name);
  else if (look.totals.jobs || look.totals.rounds_in_flight || look.totals.slab.in_use_bytes)
    sim_wrong("%s still has %u jobs, %u rounds and %llu bytes of buffers at the end", server->name, look.totals.jobs,
              look.totals.rounds_in_flight, (unsigned long long)look.totals.slab.in_use_bytes);
  const uint32_t n_accounts = sim_accounts_left(server->process);
  if (n_accounts > 0) sim_wrong("%s has %u jobs' bytes on its accounts at the end", server->name, n_accounts);
  if (look.totals.mishaps.malformed) sim_wrong("%s got malformed frames", server->name);
}

static void director_main(void *ctx) {
  const struct sim_plan *plan = ctx;
  for (uint32_t i = 0; i < plan->n_faults; i++)
    sim_fiber_name(sim_fiber_start(fault_run, (void *)&plan->faults[i]), sim_fault_name(plan->faults[i].kind));
  sim_fiber_name(sim_fiber_start(supervise, NULL), "supervisor");
  while (!ranks_are_through()) sim_wait(&sim_cluster.steps_seen, ZPS_NEVER);
  sim_sleep(LEFT_NS);
  cluster.is_over = true;
  sim_wake_all(&cluster.is_down);
  for (uint32_t s = 0; s < cluster.n_servers; s++) check_server(&cluster.servers[s]);
  if (zps_coordinator_jobs(cluster.at) > 0) sim_wrong("the coordinator still has a job at the end");
  if (cluster.at->members->elastics) sim_wrong("the coordinator still waits for ranks at the end");
  for (uint32_t s = 0; s < cluster.n_servers; s++)
    if (!cluster.servers[s].process->dead) sim_uv_post(&cluster.servers[s].loop, server_close, &cluster.servers[s]);
  sim_uv_post(&cluster.loop, coordinator_close, NULL);
}

void sim_cluster_start(const struct sim_plan *plan) {
  sim_cluster.plan = plan;
  coordinator_start(plan);
  for (uint32_t s = 0; s < plan->n_servers; s++) server_start();
  for (uint32_t job = 0; job < plan->n_jobs; job++)
    for (uint32_t r = 0; r < sim_plan_of(plan, job)->world; r++) add_rank(job, r);
  sim_process_start("director", director_main, (void *)plan);
}
