/* Worlds whose fabric hands messages up out of order, or whose connections are cut, again and again. */
#include <stdio.h>
#include <string.h>

#include "server/membership/members.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sched.h"

enum { ORDER_ALONE, CUTS_ALONE, BOTH, WAYS };
#define PROMPT_NS (5 * ZPS_NS_PER_S) /* of a job whose steps are short, and whose messages all come */

static void add_rules(struct sim_plan *plan, const char *rules) {
  const size_t len = strlen(plan->rules);
  snprintf(plan->rules + len, sizeof plan->rules - len, "%s%s", len > 0 ? "," : "", rules);
}

void sim_plan_make_links(struct sim_plan *plan) {
  char rules[48];
  const uint64_t way = sim_random(WAYS);
  if (plan->rules[0] == '\0') {
    snprintf(rules, sizeof rules, "seed=%u", 1 + (unsigned)sim_random(1 << 20));
    add_rules(plan, rules);
  }
  snprintf(plan->provider, sizeof plan->provider, "fault+loop");
  if (sim_chance(2)) plan->n_faults = 0; /* so that nobody may be given up */
  if (sim_chance(3)) sim_plan_go_between_ranks(plan);
  if (way != CUTS_ALONE) {
    snprintf(rules, sizeof rules, "reorder=0.%02u", 1 + (unsigned)sim_random(50));
    add_rules(plan, rules);
  }
  if (way == ORDER_ALONE) return;
  if (sim_chance(2))
    snprintf(rules, sizeof rules, "cut=0.0%02u", 1 + (unsigned)sim_random(33));
  else
    snprintf(rules, sizeof rules, "cut=%ums", 20 + (unsigned)sim_random(81));
  add_rules(plan, rules);
  if (sim_chance(2)) add_rules(plan, "claim=0.003");
}

/* Where nothing else befalls the cluster no server is lost, and messages out of order cost no time. */
void sim_links_check(const struct sim_plan *plan) {
  if (plan->kind != SIM_LINKS || plan->n_faults > 0) return;
  const struct zps_member_job *const job = zps_members_job_first(sim_cluster_members());
  if (job && job->state == ZPS_JOB_RUNNING && job->n_left == 0 && zps_member_job_servers_in(job) != job->view.n_first)
    sim_wrong("the job has %u servers of %u at the end, though none had a fault", zps_member_job_servers_in(job),
              job->view.n_first);
  const bool is_prompt = !strstr(plan->rules, "cut=") && !sim_plan_has_long_steps(plan) && !plan->gives_up;
  if (is_prompt && sim_now_ns() > PROMPT_NS) sim_wrong("the job took %.1f s", (double)sim_now_ns() / 1e9);
}
