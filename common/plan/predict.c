/* A scheme's prediction, and which one is the fastest. */
#include <math.h>

#include "common/plan/model_impl.h"

/* Times that a thread wakes up in a round besides those for its messages: to begin it, to encode, sum and decode its
 * parts, and to see its end. */
#define ROUND_WAKES 6

zps_err_t zps_plan_check(const struct zps_plan_input *input, struct zps_error *error) {
  const struct zps_plan_cluster *cluster = &input->cluster;
  const struct zps_plan_tensor *tensor = &input->tensor;
  if (cluster->n < 1 || cluster->ranks_per_host < 1)
    return zps_fail(error, ZPS_ERR_INVALID, "a plan needs at least one rank, and one per host");
  if (tensor->rows < 1 || tensor->width < 1 || !(tensor->value_bytes > 0))
    return zps_fail(error, ZPS_ERR_INVALID, "a plan needs a tensor of at least one row of one value");
  if (!(input->profile.density >= 0) || input->profile.density > 1)
    return zps_fail(error, ZPS_ERR_INVALID, "a density is between 0 and 1, not %g", input->profile.density);
  const struct zps_plan_link *const links[] = {&cluster->net, &cluster->host,
                                               cluster->hosts_per_rack ? &cluster->rack : &cluster->net};
  for (unsigned i = 0; i < sizeof links / sizeof links[0]; i++) {
    if (!(links[i]->bandwidth > 0) || !(links[i]->latency_s >= 0))
      return zps_fail(error, ZPS_ERR_INVALID, "a link's bandwidth is more than 0, and its latency not less than 0");
  }
  return ZPS_OK;
}

void zps_plan_predict(const struct zps_plan_input *input, enum zps_plan_scheme scheme, struct zps_plan_cost *cost) {
  *cost = (struct zps_plan_cost){.time_s = 0};
  struct zps_plan_round round = {.in = input, .cost = cost, .n = input->cluster.n};
  round.per_host = fmin(input->cluster.ranks_per_host, round.n);
  round.hosts = ceil(round.n / round.per_host);
  if (zps_plan_scheme_served(scheme))
    zps_plan_served(&round, scheme);
  else if (zps_plan_scheme_all_values(scheme))
    zps_plan_dense(&round, scheme);
  else if (zps_plan_scheme_lossy(scheme))
    zps_plan_topk(&round, scheme);
  else
    zps_plan_sparse(&round, scheme);
  if (round.n > 1) zps_plan_compute(&round, ROUND_WAKES * input->calibration.message_ns);
  cost->time_s = cost->latency_s + cost->wire_s + cost->compute_s;
}

unsigned zps_plan_lossless(void) {
  unsigned allowed = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    allowed |= zps_plan_scheme_lossy((enum zps_plan_scheme)i) ? 0 : 1u << i;
  return allowed;
}

enum zps_plan_scheme zps_plan_fastest(const struct zps_plan_input *input, unsigned allowed) {
  enum zps_plan_scheme best = ZPS_PLAN_BALANCED;
  double best_s = INFINITY;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    struct zps_plan_cost cost;
    if (!(allowed >> i & 1)) continue;
    zps_plan_predict(input, (enum zps_plan_scheme)i, &cost);
    if (cost.time_s >= best_s) continue;
    best = (enum zps_plan_scheme)i;
    best_s = cost.time_s;
  }
  return best;
}

uint32_t zps_plan_servers_worth(const struct zps_plan_input *input, enum zps_plan_scheme scheme, uint32_t most,
                                double slack) {
  if (!zps_plan_scheme_served(scheme)) return 0;
  struct zps_plan_input with = *input;
  struct zps_plan_cost cost;
  double best_s = INFINITY;
  for (with.cluster.servers = 1; with.cluster.servers <= most; with.cluster.servers++) {
    zps_plan_predict(&with, scheme, &cost);
    best_s = fmin(best_s, cost.time_s);
  }
  for (with.cluster.servers = 1; with.cluster.servers < most; with.cluster.servers++) {
    zps_plan_predict(&with, scheme, &cost);
    if (cost.time_s <= best_s * slack) break;
  }
  return with.cluster.servers;
}
