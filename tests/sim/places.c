/* Worlds whose jobs have room for more servers than they begin with: up to three come, and may be taken away again. */
#include "server/membership/members.h"
#include "tests/sim/cluster.h"

enum { COMERS_MAX = 3, STEPS = 16 /* at least; with those long ones there is time to take servers in */ };
#define SETTLED_NS (15 * ZPS_NS_PER_S)

static void add(struct sim_plan *plan, struct sim_fault fault) {
  if (plan->n_faults < SIM_FAULTS_ROOM) plan->faults[plan->n_faults++] = fault;
}

static bool any_of_server(const struct sim_plan *plan) {
  bool any = false;
  for (uint32_t i = 0; i < plan->n_faults; i++) any |= sim_fault_is_of_server(plan->faults[i].kind);
  return any;
}

/* The one that comes as number `who`, some time after it may have. */
static struct sim_fault of_comer(uint32_t who, uint32_t all_steps) {
  static const enum sim_fault_kind kinds[] = {SIM_KILL_SERVER,  SIM_KILL_SERVER, SIM_STOP_SERVER,
                                              SIM_DRAIN_SERVER, SIM_CUT_SERVER,  SIM_SLOW_SERVER};
  return (struct sim_fault){.kind = kinds[sim_random(sizeof kinds / sizeof kinds[0])],
                            .who = who,
                            .after_steps = all_steps / 4 + (uint32_t)sim_random(all_steps / 2),
                            .then_ns = sim_random(sim_chance(2) ? 200000 : ZPS_NS_PER_S),
                            .for_ns = sim_random(sim_chance(2) ? 800 * ZPS_NS_PER_MS : 6 * ZPS_NS_PER_S)};
}

void sim_plan_make_places(struct sim_plan *plan) {
  plan->n_runs = 1; /* a rank that was killed would wait too long for the others, whose steps are long */
  plan->step_ns = 1500 * ZPS_NS_PER_MS;
  if (plan->n_steps < STEPS) plan->n_steps += STEPS;
  const uint32_t all_steps = plan->world * plan->n_steps, n = 1 + (uint32_t)sim_random(COMERS_MAX);
  if (sim_chance(2)) plan->n_faults = 0; /* nothing else: so it is seen whether the job takes them in */
  const bool is_calm = plan->n_faults == 0 && sim_chance(2);
  if (!any_of_server(plan)) plan->n_servers = 1 + (uint32_t)sim_random(plan->n_servers);
  for (uint32_t i = 0; i < n; i++) {
    add(plan, (struct sim_fault){.kind = SIM_ADD_SERVER,
                                 .after_steps = 1 + (uint32_t)sim_random(all_steps / 2), /* the job has begun */
                                 .then_ns = sim_random(sim_chance(2) ? 2 * ZPS_NS_PER_MS : 8 * ZPS_NS_PER_S)});
    if (is_calm || !sim_plan_survives(plan) || sim_chance(2) || plan->n_servers + i >= SIM_SERVERS_MAX) continue;
    add(plan, of_comer(plan->n_servers + i, all_steps));
  }
  plan->places = plan->n_servers + 1 + (uint32_t)sim_random(4);
  plan->asks_places = sim_chance(2);
}

/* Where nothing else has befallen the cluster, and the last one came long ago. */
void sim_places_check(const struct sim_plan *plan) {
  if (plan->kind != SIM_PLACES || sim_now_ns() < sim_cluster.server_came_ns + SETTLED_NS) return;
  for (uint32_t i = 0; i < plan->n_faults; i++)
    if (plan->faults[i].kind != SIM_ADD_SERVER) return;
  const struct zps_members *const members = sim_cluster_members();
  const struct zps_member_job *const job = zps_members_job_first(members);
  if (!job || job->state != ZPS_JOB_RUNNING || job->n_left > 0) return;
  const uint32_t n = zps_members_servers(members),
                 most = job->view.n_first > plan->places ? job->view.n_first : plan->places;
  if (zps_member_job_servers_in(job) != (n < most ? n : most))
    sim_wrong("the job has %u servers of %u at the end, and %u places", zps_member_job_servers_in(job), n,
              job->view.n_places);
}
