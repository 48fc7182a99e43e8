/*
 * Tensors whose scheme is "auto": the coordinator chooses for all ranks, from what they report, and fixes the scheme of
 * each run of steps ahead of them (common/plan/schedule.h says how, and why no two ranks can differ).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/choose.h"
#include "server/coordinator/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* Steps of a run. Ranks report in its middle, so a choice is made of the rounds of half of it and takes effect at its
 * end. */
#define WINDOW 16u
/* Until a rank has measured its link: 25 Gbit/s. */
#define BANDWIDTH_GUESS 3.125e9
#define LATENCY_GUESS_S 20e-6
#define HOST_BANDWIDTH_GUESS 5e9
#define HOST_LATENCY_GUESS_S 5e-6

struct zps_member_plan {
  struct zps_plan_chooser chooser;
  struct zps_plan_schedule schedule;
  struct zps_plan_observer observer;
  struct zps_plan_input input;
  /* Reported since the last choice. */
  double rounds, rows, union_rows;
  double seconds; /* of the rank that waited least for the others; 0: nobody has timed the present scheme */
};

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Ranks of the fullest host, and whether servers are on hosts without ranks. */
static zps_err_t survey(const struct zps_member_job *job, struct zps_plan_cluster *cluster) {
  const char **const hosts = malloc(job->world * sizeof *hosts);
  if (!hosts) return ZPS_ERR_NOMEM;
  for (uint32_t r = 0; r < job->world; r++) hosts[r] = job->ranks[r]->host;
  qsort(hosts, job->world, sizeof *hosts, compare_names);
  cluster->ranks_per_host = 1;
  for (uint32_t r = 1, alike = 1; r < job->world; r++) {
    alike = strcmp(hosts[r], hosts[r - 1]) == 0 ? alike + 1 : 1;
    if (alike > cluster->ranks_per_host) cluster->ranks_per_host = alike;
  }
  cluster->servers_apart = true;
  for (uint32_t i = 0; i < job->n_servers; i++) {
    const char *const host = job->servers[i]->host;
    if (bsearch(&host, hosts, job->world, sizeof *hosts, compare_names)) cluster->servers_apart = false;
  }
  free(hosts);
  return ZPS_OK;
}

static zps_err_t describe(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                          struct zps_plan_input *input) {
  *input = (struct zps_plan_input){
      .cluster = {.n = job->world,
                  .servers = job->n_servers,
                  .net = {BANDWIDTH_GUESS, LATENCY_GUESS_S},
                  .host = {HOST_BANDWIDTH_GUESS, HOST_LATENCY_GUESS_S}},
      .tensor = {.rows = spec->rows,
                 .width = spec->width,
                 .value_bytes = (double)zps_dtype_size(spec->dtype),
                 .served_bytes =
                     (double)zps_values_bytes(spec->value_codec, spec->dtype, ZPS_VALUES_BUCKET) / ZPS_VALUES_BUCKET},
      .codec = spec->codec == ZPS_CODEC_PAPER      ? ZPS_PLAN_CODEC_PAPER
               : spec->codec == ZPS_CODEC_COO_ONLY ? ZPS_PLAN_CODEC_COO
                                                   : ZPS_PLAN_CODEC_AUTO};
  zps_plan_calibration_default(&input->calibration);
  return survey(job, &input->cluster);
}

/* Schemes that nobody can tell by their results. */
static unsigned alike(void) {
  unsigned schemes = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    schemes |= zps_plan_scheme_alike((enum zps_plan_scheme)i) ? 1u << i : 0;
  return schemes;
}

/* "auto" -> those, "auto:a,b" -> these; false for other schemes. */
static bool parse(const struct zps_tensor_spec *spec, unsigned *allowed_p, zps_err_t *code_p, struct zps_error *error) {
  const size_t len = strcspn(spec->scheme, " ");
  const char *const colon = memchr(spec->scheme, ':', len);
  const size_t name = colon ? (size_t)(colon - spec->scheme) : len;
  if (name != 4 || memcmp(spec->scheme, "auto", 4) != 0) return false;
  *allowed_p = alike();
  *code_p = colon ? zps_plan_schemes_parse(colon + 1, len - name - 1, allowed_p, error) : ZPS_OK;
  return true;
}

zps_err_t zps_members_plan_create(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                                  struct zps_member_plan **plan_p, struct zps_error *error) {
  struct zps_plan_policy policy;
  zps_err_t err = ZPS_OK;
  *plan_p = NULL;
  zps_plan_policy_default(&policy);
  /* In windows, not rounds. */
  policy.profile_rounds = 1;
  policy.patience = 2;
  if (!parse(spec, &policy.allowed, &err, error)) return ZPS_OK;
  if (err) return err;
  struct zps_member_plan *plan = calloc(1, sizeof *plan);
  err = plan ? describe(job, spec, &plan->input) : ZPS_ERR_NOMEM;
  if (err) {
    free(plan);
    return zps_fail(error, err, "no memory to plan tensor '%s'", spec->name);
  }
  enum zps_plan_scheme first = ZPS_PLAN_BALANCED;
  while (!(policy.allowed >> first & 1)) first++;
  zps_plan_chooser_init(&plan->chooser, &policy, first);
  *plan_p = plan;
  return ZPS_OK;
}

void zps_members_plan_destroy(struct zps_member_plan *plan) {
  free(plan);
}

enum zps_plan_scheme zps_member_plan_scheme(const struct zps_member_plan *plan) {
  return plan->chooser.scheme;
}

/* Peers' numbers: what cannot be is left out. */
static void note(struct zps_member_plan *plan, const struct zps_plan_told *told) {
  const struct zps_plan_report *report = &told->report;
  struct zps_plan_cluster *cluster = &plan->input.cluster;
  const double most = (double)report->rounds * (double)plan->input.tensor.rows;
  struct zps_plan_link *link = cluster->n > cluster->ranks_per_host ? &cluster->net : &cluster->host;
  if (told->bandwidth > 0) link->bandwidth = told->bandwidth;
  if (told->latency_s > 0) link->latency_s = told->latency_s;
  if (report->rounds == 0 || report->rows > most || report->union_rows > most) return;
  plan->rounds += (double)report->rounds;
  plan->rows += report->rows;
  if (zps_plan_scheme_shows_union(report->scheme)) {
    plan->union_rows += report->union_rows;
  } else { /* as ranks overlapped when that could be seen */
    struct zps_plan_profile profile = plan->input.profile;
    profile.density = most > 0 ? report->rows / most : 0;
    plan->union_rows += report->rows * zps_plan_gamma(&profile, cluster->n);
  }
  if (report->scheme != plan->chooser.scheme) return;
  const double seconds = report->seconds / (double)report->rounds;
  if (seconds > 0 && (plan->seconds == 0 || seconds < plan->seconds)) plan->seconds = seconds;
}

static void choose(struct zps_member_plan *plan, const struct zps_member_job *job,
                   const struct zps_member_tensor *tensor) {
  if (plan->rounds == 0) return;
  const double each = plan->rows / plan->rounds;
  zps_plan_observe(&plan->observer, job->world, plan->input.tensor.rows, each * job->world,
                   plan->union_rows / plan->rounds);
  zps_plan_observed(&plan->observer, &plan->input.profile);
  const enum zps_plan_scheme before = plan->chooser.scheme;
  if (zps_plan_choose(&plan->chooser, &plan->input, plan->seconds))
    zps_log_info(
        "job '%s': tensor '%s': %s after %s from step %llu on: %.3g ms a round instead of %.3g, at density %.3g",
        job->name, tensor->spec.name, zps_plan_scheme_name(plan->chooser.scheme), zps_plan_scheme_name(before),
        (unsigned long long)zps_plan_schedule_until(&plan->schedule), plan->chooser.promised_s * 1e3,
        plan->chooser.present_s * 1e3, plan->input.profile.density);
  plan->rounds = plan->rows = plan->union_rows = plan->seconds = 0;
}

static void tell(struct zps_members *members, const struct zps_member_job *job, const struct zps_member_tensor *tensor,
                 struct zps_member_client *client, const struct zps_plan_run *runs, unsigned n_runs, bool whole) {
  zps_members_act(members, &(struct zps_action){.type = ZPS_ACT_TENSOR_PLAN,
                                                .client = client,
                                                .job = job,
                                                .tensor = tensor,
                                                .runs = runs,
                                                .n_runs = n_runs,
                                                .whole = whole});
}

zps_err_t zps_members_plan(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                           uint32_t number, const struct zps_plan_told *told, struct zps_error *error) {
  const struct zps_member_job *job = client->job;
  const zps_err_t err = zps_members_running(job, job_id, error);
  if (err) return err;
  if (number >= job->n_tensors || !job->tensors[number]->plan)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s' has no tensor %u whose scheme is auto", job->name, number);
  const struct zps_member_tensor *tensor = job->tensors[number];
  struct zps_member_plan *plan = tensor->plan;
  note(plan, told);
  if (told->report.step < zps_plan_schedule_until(&plan->schedule)) {
    tell(members, job, tensor, client, plan->schedule.runs, plan->schedule.n, true);
    return ZPS_OK;
  }
  choose(plan, job, tensor);
  struct zps_plan_run run;
  zps_plan_schedule_extend(&plan->schedule, told->report.step, WINDOW, plan->chooser.scheme, &run);
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *rank = job->ranks[r];
    if (rank->state == ZPS_RANK_IN) tell(members, job, tensor, rank->client, &run, 1, false);
  }
  return ZPS_OK;
}
