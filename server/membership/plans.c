/*
 * Tensors whose scheme is "auto": the coordinator chooses for all ranks, from what they report, and proposes a scheme
 * for each run of steps ahead of them, to the first of them, which decides (common/plan/agree.h says how ranks agree,
 * whatever a coordinator says, or one that has started again).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/choose.h"
#include "common/plan/sketch.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* Steps of a run: while schemes are tried, if rounds are short or long, and later. Ranks report three quarters through
 * it, so a choice is made of those rounds and takes effect at its end; the first round of a scheme does not count. */
#define PROBE_WINDOW 6u
#define PROBE_WINDOW_SHORT 12u
#define PROBE_WINDOW_LONG 4u
#define WINDOW 16u
/* The first round of a scheme connects ranks and makes buffers, which may take so long. */
#define FIRST_ROUND_S 50e-3
/* By how much predictions may be off, against each other. */
#define DOUBT 3.0
/* Until a rank has measured its link: 25 Gbit/s. */
#define BANDWIDTH_GUESS 3.125e9
#define LATENCY_GUESS_S 20e-6
#define HOST_BANDWIDTH_GUESS 8e9
#define HOST_LATENCY_GUESS_S 5e-6
/* The first ranks, of which sketches are kept. */
#define SKETCHES 64u

struct zps_member_plan {
  struct zps_plan_chooser chooser;
  struct zps_plan_schedule schedule;
  struct zps_plan_observer observer;
  struct zps_plan_input input;
  unsigned allowed; /* the request's set; the chooser's is smaller where results must show which rows some rank had */
  /* Reported since the last choice. */
  double rounds, rows, union_rows;
  double seconds;   /* of a round on the slowest rank, which the next round of the others waits for; 0: not known */
  double first_s;   /* of its first rounds, where no others were timed; 0: not known */
  double bandwidth; /* of the slowest link; 0: not measured */
  double latency_s; /* of the median, or so: the mean */
  uint32_t n_latencies;
  uint64_t sketched;                          /* bits 1 << rank: whose sketches are of this window */
  struct zps_plan_sketch *sketches[SKETCHES]; /* by rank */
  uint32_t n_reported;                        /* ranks that have reported */
  bool reported[];                            /* by rank: it has reported */
};

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Whose tensor it is: the ranks of its group, or all. */
static uint32_t count_ranks(const struct zps_member_job *job, const struct zps_tensor_spec *spec) {
  return spec->n_ranks ? spec->n_ranks : job->world;
}

static const struct zps_member_rank *rank_at(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                                             uint32_t i) {
  return job->ranks[spec->n_ranks ? spec->ranks[i] : i];
}

/* Ranks of the fullest host, and whether servers are on hosts without ranks. */
static zps_err_t survey(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                        struct zps_plan_cluster *cluster) {
  const uint32_t n = cluster->n;
  const char **const hosts = malloc(n * sizeof *hosts);
  if (!hosts) return ZPS_ERR_NOMEM;
  for (uint32_t i = 0; i < n; i++) hosts[i] = rank_at(job, spec, i)->host;
  qsort(hosts, n, sizeof *hosts, compare_names);
  cluster->ranks_per_host = 1;
  for (uint32_t r = 1, alike = 1; r < n; r++) {
    alike = strcmp(hosts[r], hosts[r - 1]) == 0 ? alike + 1 : 1;
    if (alike > cluster->ranks_per_host) cluster->ranks_per_host = alike;
  }
  cluster->servers_apart = true;
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    if (!zps_view_server(&job->view, i)) continue;
    const char *const host = zps_view_server(&job->view, i)->host;
    if (bsearch(&host, hosts, n, sizeof *hosts, compare_names)) cluster->servers_apart = false;
  }
  free(hosts);
  return ZPS_OK;
}

/* Those that it begins with, though some may be lost for a while; more when more have come. */
static uint32_t count_servers(const struct zps_member_job *job) {
  const uint32_t n = zps_member_job_servers_in(job);
  return n > job->view.n_first ? n : job->view.n_first;
}

static zps_err_t describe(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                          struct zps_plan_input *input) {
  *input = (struct zps_plan_input){
      .cluster = {.n = count_ranks(job, spec),
                  .servers = count_servers(job),
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
  return survey(job, spec, &input->cluster);
}

/* Schemes that cannot be told apart by the values of their results. */
static unsigned alike(void) {
  unsigned schemes = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    schemes |= zps_plan_scheme_alike((enum zps_plan_scheme)i) ? 1u << i : 0;
  return schemes;
}

/* Without those that do on this cluster what another one does that may be chosen: with one rank a host, ranks of a host
 * have nothing to do before hosts have. */
static unsigned distinct(unsigned schemes, const struct zps_plan_cluster *cluster) {
  static const enum zps_plan_scheme same[][2] = {{ZPS_PLAN_HIERARCHICAL, ZPS_PLAN_BALANCED},
                                                 {ZPS_PLAN_TWO_LEVEL, ZPS_PLAN_RING}};
  for (unsigned i = 0; cluster->ranks_per_host == 1 && i < sizeof same / sizeof same[0]; i++)
    if (schemes >> same[i][1] & 1) schemes &= ~(1u << same[i][0]);
  return schemes;
}

zps_err_t zps_members_plan_create(const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                                  struct zps_member_plan **plan_p, struct zps_error *error) {
  struct zps_plan_policy policy;
  *plan_p = NULL;
  if (!zps_scheme_spec_is_auto(&spec->scheme)) return ZPS_OK;
  zps_plan_policy_default(&policy);
  /* In windows, not rounds. */
  policy.profile_rounds = 1;
  policy.patience = 4;
  policy.doubt = DOUBT;
  policy.first_s = FIRST_ROUND_S;
  policy.allowed = spec->scheme.choices ? spec->scheme.choices : alike();
  struct zps_member_plan *plan = calloc(1, sizeof *plan + job->world * sizeof plan->reported[0]);
  const zps_err_t err = plan ? describe(job, spec, &plan->input) : ZPS_ERR_NOMEM;
  if (err) {
    free(plan);
    return zps_fail(error, err, "no memory to plan tensor '%s'", spec->name);
  }
  policy.allowed = distinct(policy.allowed, &plan->input.cluster);
  zps_plan_chooser_init(&plan->chooser, &policy,
                        zps_plan_safest(plan->input.cluster.n, &plan->input.tensor, policy.allowed));
  plan->allowed = policy.allowed;
  *plan_p = plan;
  return ZPS_OK;
}

void zps_members_plan_destroy(struct zps_member_plan *plan) {
  for (unsigned i = 0; plan && i < SKETCHES; i++) free(plan->sketches[i]);
  free(plan);
}

enum zps_plan_scheme zps_member_plan_scheme(const struct zps_member_plan *plan) {
  return plan->chooser.scheme;
}

unsigned zps_member_plan_left_out(const struct zps_member_plan *plan) {
  return plan->chooser.too_slow | plan->chooser.failed;
}

/* ------------------------------------------------------------ reports of ranks */

static void note_link(struct zps_member_plan *plan, const struct zps_plan_request *told) {
  if (told->bandwidth > 0 && (plan->bandwidth == 0 || told->bandwidth < plan->bandwidth))
    plan->bandwidth = told->bandwidth;
  if (told->latency_s > 0) {
    plan->latency_s += told->latency_s;
    plan->n_latencies++;
  }
}

/* One of each rank, however often it reports: two of one are no union. Without memory for it, there is one less. */
static void note_sketch(struct zps_member_plan *plan, uint32_t rank, const struct zps_plan_sketch *sketch) {
  if (!sketch || rank >= SKETCHES) return;
  if (!plan->sketches[rank]) plan->sketches[rank] = malloc(sizeof *plan->sketches[rank]);
  if (!plan->sketches[rank]) return;
  *plan->sketches[rank] = *sketch;
  plan->sketched |= UINT64_C(1) << rank;
}

/* The numbers come from peers: impossible ones are left out. */
static void note(struct zps_member_plan *plan, uint32_t rank, const struct zps_plan_request *told) {
  const struct zps_plan_report *report = &told->report;
  const struct zps_plan_cluster *cluster = &plan->input.cluster;
  const double most = (double)report->rounds * (double)plan->input.tensor.rows;
  note_link(plan, told);
  note_sketch(plan, rank, told->sketch);
  if (told->calibration.encode_value_ns > 0) plan->input.calibration = told->calibration;
  if (told->cores > 0) plan->input.cluster.cores = told->cores;
  if (told->lists) { /* dense sums would list all rows */
    for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
      const unsigned bit = 1u << i, left = plan->chooser.policy.allowed & ~bit;
      if (left && !zps_plan_scheme_shows_union((enum zps_plan_scheme)i)) plan->chooser.policy.allowed = left;
    }
  }
  if (report->rounds == 0 || report->rows > most || report->union_rows > most) return;
  plan->rounds += (double)report->rounds;
  plan->rows += report->rows;
  if (zps_plan_scheme_shows_union(report->scheme)) {
    plan->union_rows += report->union_rows;
  } else { /* estimate from the overlap of ranks when that was last measured */
    struct zps_plan_profile profile = plan->input.profile;
    profile.density = most > 0 ? report->rows / most : 0;
    plan->union_rows += report->rows * zps_plan_gamma(&profile, cluster->n);
  }
  /* A rank that asks again has waited, and knows of a round or two. A late report tells of rounds that were judged
   * already. */
  if (report->scheme != plan->chooser.scheme || plan->reported[rank]) return;
  if (report->step < zps_plan_schedule_until(&plan->schedule)) return;
  plan->seconds = fmax(plan->seconds, report->round_s);
  plan->first_s = fmax(plan->first_s, report->first_s);
}

/* ------------------------------------------------------------ choices */

static void forget(struct zps_member_plan *plan, uint32_t world) {
  plan->rounds = plan->rows = plan->union_rows = plan->seconds = plan->first_s = 0;
  plan->bandwidth = plan->latency_s = 0;
  plan->sketched = 0;
  plan->n_latencies = plan->n_reported = 0;
  memset(plan->reported, 0, world * sizeof plan->reported[0]);
}

/* Ranks of a host read at once, each at its share of the host's link. Ranks that are all on one host exchange through
 * its memory, of which reads from servers say nothing. A scheme that waits for something else leaves bandwidth unused
 * that other schemes can have: the greatest measurement counts. */
static void learn_links(struct zps_member_plan *plan) {
  struct zps_plan_cluster *cluster = &plan->input.cluster;
  const bool within = cluster->n <= cluster->ranks_per_host;
  struct zps_plan_link *link = within ? &cluster->host : &cluster->net;
  const double least = plan->chooser.state == ZPS_PLAN_PROBING ? link->bandwidth : 0;
  const double host_bandwidth = plan->bandwidth * cluster->ranks_per_host;
  if (host_bandwidth > least && !within) link->bandwidth = host_bandwidth;
  if (plan->n_latencies > 0) link->latency_s = plan->latency_s / plan->n_latencies;
}

/* gamma_k of some k from the ranks' sketches; of all ranks, where no scheme shows their union. */
static void learn_overlap(struct zps_member_plan *plan, uint32_t world) {
  const struct zps_plan_sketch *sketches[SKETCHES];
  uint32_t n = 0;
  for (uint32_t r = 0; r < SKETCHES; r++) {
    if (!(plan->sketched >> r & 1)) continue;
    sketches[n++] = plan->sketches[r];
  }
  for (uint32_t k = 2; k <= n && k < world; k *= 2)
    zps_plan_observe_gamma(&plan->observer, k, zps_plan_sketch_gamma(sketches, n, k));
  if (n > 1 && n == world) {
    const double gamma = zps_plan_sketch_gamma(sketches, n, n);
    if (gamma > 0 && !zps_plan_scheme_shows_union(plan->chooser.scheme)) plan->observer.gamma_n = gamma;
  }
}

static bool is_trying(const struct zps_member_plan *plan) {
  return plan->chooser.state == ZPS_PLAN_PROFILING || plan->chooser.state == ZPS_PLAN_PROBING;
}

static uint64_t window_of(const struct zps_member_plan *plan) {
  if (plan->chooser.is_first) return 1;
  if (!is_trying(plan)) return WINDOW;
  if (plan->observer.rounds == 0) return PROBE_WINDOW;
  const double round_s = zps_plan_expected(&plan->chooser, &plan->input, plan->chooser.scheme);
  return round_s >= ZPS_PLAN_LONG_S    ? PROBE_WINDOW_LONG
         : round_s >= ZPS_PLAN_SHORT_S ? PROBE_WINDOW
                                       : PROBE_WINDOW_SHORT;
}

/* Logs the reasons of a choice: the time that each scheme was predicted to take, and the time it took, or why it was
 * not tried. */
static void explain(const struct zps_member_plan *plan, const struct zps_member_job *job,
                    const struct zps_member_tensor *tensor) {
  const struct zps_plan_chooser *chooser = &plan->chooser;
  char text[768] = "";
  size_t len = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES && len < sizeof text; i++) {
    struct zps_plan_cost cost;
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    if (!(chooser->policy.allowed >> i & 1)) continue;
    zps_plan_predict(&plan->input, scheme, &cost);
    len += (size_t)snprintf(text + len, sizeof text - len, " %s=%.4g", zps_plan_scheme_name(scheme), cost.time_s * 1e3);
    if (len >= sizeof text) break;
    if (chooser->time_s[i] > 0)
      len += (size_t)snprintf(text + len, sizeof text - len, "/%.4g", chooser->time_s[i] * 1e3);
    else if ((chooser->too_slow | chooser->failed) >> i & 1)
      len += (size_t)snprintf(text + len, sizeof text - len, "/%s", chooser->failed >> i & 1 ? "failed" : "too slow");
  }
  const struct zps_plan_cluster *cluster = &plan->input.cluster;
  const struct zps_plan_link *link = cluster->n > cluster->ranks_per_host ? &cluster->net : &cluster->host;
  zps_log_about(.job = job->name, .tensor = tensor->spec.name);
  zps_log_info("job '%s': tensor '%s': %s; density %.3g, gamma %.3g, %.3g MB/s, %.3g us; ms predicted/measured:%s",
               job->name, tensor->spec.name, zps_plan_scheme_name(chooser->scheme), plan->input.profile.density,
               zps_plan_gamma(&plan->input.profile, cluster->n), link->bandwidth / 1e6, link->latency_s * 1e6, text);
}

/* The schemes that are left out now and were not before, once each. */
static void tell_left_out(const struct zps_plan_chooser *chooser, unsigned before, const struct zps_member_job *job,
                          const struct zps_member_tensor *tensor) {
  zps_log_about(.job = job->name, .tensor = tensor->spec.name);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!((chooser->too_slow | chooser->failed) & ~before & 1u << i)) continue;
    zps_log_info("job '%s': tensor '%s': %s is not tried: %s", job->name, tensor->spec.name,
                 zps_plan_scheme_name((enum zps_plan_scheme)i),
                 chooser->failed >> i & 1 ? "its first round took more than 3 times as long as the fastest scheme's"
                                          : "at the rate of measured rounds it would take more than 3 times as long");
  }
}

/* Rows of the rounds since the last choice. The single round that begins a trial is of few ranks, and tells a time
 * alone. */
static void learn(struct zps_member_plan *plan, uint32_t world) {
  const double each = plan->rows / plan->rounds;
  zps_plan_observe(&plan->observer, world, plan->input.tensor.rows, each * world, plan->union_rows / plan->rounds);
  learn_links(plan);
  learn_overlap(plan, world);
  zps_plan_observed(&plan->observer, &plan->input.profile);
}

static void choose(struct zps_member_plan *plan, const struct zps_member_job *job,
                   const struct zps_member_tensor *tensor) {
  struct zps_plan_chooser *const chooser = &plan->chooser;
  zps_log_about(.job = job->name, .tensor = tensor->spec.name);
  if (plan->rounds > 0) {
    const enum zps_plan_scheme before = chooser->scheme;
    const unsigned left_out = chooser->too_slow | chooser->failed;
    const bool was_trying = is_trying(plan), was_first = chooser->is_first;
    if (!was_first) learn(plan, count_ranks(job, &tensor->spec));
    const double seconds = was_first ? fmax(plan->seconds, plan->first_s) : plan->seconds;
    if (zps_plan_choose(chooser, &plan->input, seconds))
      zps_log_info(
          "job '%s': tensor '%s': %s after %s from step %llu on: %.3g ms a round instead of %.3g, at density %.3g",
          job->name, tensor->spec.name, zps_plan_scheme_name(chooser->scheme), zps_plan_scheme_name(before),
          (unsigned long long)zps_plan_schedule_until(&plan->schedule),
          zps_plan_expected(chooser, &plan->input, chooser->scheme) * 1e3,
          zps_plan_expected(chooser, &plan->input, before) * 1e3, plan->input.profile.density);
    tell_left_out(chooser, left_out, job, tensor);
    if (was_trying && !is_trying(plan)) explain(plan, job, tensor);
  }
  forget(plan, job->world);
}

static void tell(struct zps_members *members, const struct zps_member_job *job, const struct zps_member_tensor *tensor,
                 struct zps_member_client *client, const struct zps_plan_run *runs, unsigned n_runs, bool whole) {
  zps_members_act(members, .type = ZPS_ACT_TENSOR_PLAN, .client = client, .job = job, .tensor = tensor, .runs = runs,
                  .n_runs = n_runs, .whole = whole);
}

/* Notes that the rank has reported. Returns whether all ranks that are there, and can, have. */
static bool all_told(struct zps_member_plan *plan, const struct zps_member_job *job, const struct zps_tensor_spec *spec,
                     uint32_t rank) {
  uint32_t there = 0;
  if (!plan->reported[rank]) plan->n_reported++;
  plan->reported[rank] = true;
  for (uint32_t i = 0; i < count_ranks(job, spec); i++) {
    const struct zps_member_rank *one = rank_at(job, spec, i);
    there += one->state == ZPS_RANK_IN && (one->client || plan->reported[one->rank]);
  }
  return plan->n_reported >= there;
}

/* The ranks knew each other before they knew this coordinator: the choice begins from the scheme that runs. */
static void take_up(struct zps_member_plan *plan, const struct zps_plan_report *report) {
  const struct zps_plan_policy policy = plan->chooser.policy;
  if (plan->schedule.n > 0 || report->rounds == 0 || !(policy.allowed >> report->scheme & 1)) return;
  zps_plan_chooser_init(&plan->chooser, &policy, report->scheme);
}

zps_err_t zps_members_plan(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                           uint32_t number, const struct zps_plan_request *told, struct zps_error *error) {
  const struct zps_member_job *job = client->job;
  const zps_err_t err = zps_members_running(job, job_id, error);
  if (err) return err;
  const struct zps_member_tensor *tensor = zps_members_tensor_find(job, number);
  if (!tensor || !tensor->plan)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s' has no tensor %u whose scheme is auto", job->name, number);
  struct zps_member_plan *plan = tensor->plan;
  if (!zps_members_tensor_has(&tensor->spec, client->rank))
    return zps_fail(error, ZPS_ERR_UNKNOWN, "rank %u is none of the ranks of tensor '%s' of job '%s'", client->rank,
                    tensor->spec.name, job->name);
  take_up(plan, &told->report);
  note(plan, client->rank, told);
  const struct zps_member_rank *decider = rank_at(job, &tensor->spec, 0);
  if (told->report.step < zps_plan_schedule_until(&plan->schedule)) {
    if (client == decider->client) tell(members, job, tensor, client, plan->schedule.runs, plan->schedule.n, true);
    return ZPS_OK;
  }
  if (!all_told(plan, job, &tensor->spec, client->rank) && !told->report.waits) return ZPS_OK;
  choose(plan, job, tensor);
  struct zps_plan_run run;
  zps_plan_schedule_extend(&plan->schedule, told->report.step, window_of(plan), plan->chooser.scheme, &run);
  if (decider->state == ZPS_RANK_IN) tell(members, job, tensor, decider->client, &run, 1, false);
  return ZPS_OK;
}
