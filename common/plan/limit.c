#include "common/plan/limit.h"

#include <math.h>

/* Latency and computing may be this many times the predicted ones: of sparse rounds on loopback they are twice. */
#define OVERHEAD_DOUBT 3.0
/* But bytes took this share of a round at least: a latency that was measured on a busy machine explains nothing. */
#define BYTES_SHARE 0.1
/* The first scheme in the order of their numbers may take this many times as long as the best one. */
#define SAFE 2.0

double zps_plan_slowdown(const struct zps_plan_input *input, const double time_s[ZPS_PLAN_SCHEMES]) {
  double least = INFINITY;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    struct zps_plan_cost cost;
    if (!(time_s[i] > 0)) continue;
    zps_plan_predict(input, (enum zps_plan_scheme)i, &cost);
    if (!(cost.wire_s > 0)) continue;
    const double overhead_s = OVERHEAD_DOUBT * (cost.latency_s + cost.compute_s);
    least = fmin(least, fmax(time_s[i] - overhead_s, BYTES_SHARE * time_s[i]) / cost.wire_s);
  }
  return isfinite(least) ? fmax(1, least) : 1;
}

double zps_plan_slowed(const struct zps_plan_input *input, enum zps_plan_scheme scheme, double slowdown) {
  struct zps_plan_cost cost;
  zps_plan_predict(input, scheme, &cost);
  return cost.latency_s + cost.wire_s * slowdown + cost.compute_s;
}

/* The greatest ratio of the scheme's time to the best one's, over all densities. */
static double worst(struct zps_plan_input *input, unsigned allowed, enum zps_plan_scheme scheme) {
  static const double densities[] = {1e-4, 1e-3, 1e-2, 0.1, 0.3, 1};
  double ratio = 0;
  for (unsigned i = 0; i < sizeof densities / sizeof densities[0]; i++) {
    struct zps_plan_cost cost, best;
    input->profile.density = densities[i];
    zps_plan_predict(input, scheme, &cost);
    zps_plan_predict(input, zps_plan_fastest(input, allowed), &best);
    ratio = fmax(ratio, cost.time_s / best.time_s);
  }
  return ratio;
}

enum zps_plan_scheme zps_plan_safest(uint32_t n, const struct zps_plan_tensor *tensor, unsigned allowed) {
  const struct zps_plan_link slow = {.bandwidth = 1e6, .latency_s = 100e-6};
  struct zps_plan_input input = {.cluster = {.n = n, .ranks_per_host = 1, .net = slow, .host = slow},
                                 .tensor = *tensor};
  enum zps_plan_scheme safest = ZPS_PLAN_SCHEMES;
  double least = INFINITY;
  zps_plan_calibration_default(&input.calibration);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(allowed >> i & 1)) continue;
    const double ratio = worst(&input, allowed, (enum zps_plan_scheme)i);
    if (ratio <= SAFE) return (enum zps_plan_scheme)i;
    if (safest < ZPS_PLAN_SCHEMES && !(ratio < least)) continue;
    safest = (enum zps_plan_scheme)i;
    least = ratio;
  }
  return safest;
}
