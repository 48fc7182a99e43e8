#include "common/plan/probe.h"

#include <math.h>
#include <stdlib.h>

/* The share of the best's time that others may be behind after so many rungs. */
static const double behind[ZPS_PLAN_RUNGS] = {2.0, 0.6, 0.25, 0.15, 0.12, 0.1, 0.08, 0.06, 0.05};
/* By how long rounds are: how many rungs, and how much more or less than that others may be behind. */
static const struct {
  double least_s;
  unsigned rungs;
  double part;
} lengths[] = {
    {ZPS_PLAN_VERY_LONG_S, 3, 0.25},
    {ZPS_PLAN_LONG_S, 7, 0.5},
    {ZPS_PLAN_SHORT_S, ZPS_PLAN_RUNGS, 1},
    {0, ZPS_PLAN_RUNGS, 1.5},
};

void zps_plan_probe_join(struct zps_plan_probe *probe, enum zps_plan_scheme scheme) {
  probe->left |= 1u << scheme;
  probe->due |= 1u << scheme;
}

void zps_plan_probe_drop(struct zps_plan_probe *probe, enum zps_plan_scheme scheme) {
  probe->left &= ~(1u << scheme);
  probe->due &= ~(1u << scheme);
}

void zps_plan_probe_ran(struct zps_plan_probe *probe, enum zps_plan_scheme scheme, double seconds) {
  if (!(probe->due >> scheme & 1)) return;
  probe->due &= ~(1u << scheme);
  if (seconds > 0 && isfinite(seconds)) probe->time_s[scheme][probe->rung] = seconds;
}

enum zps_plan_scheme zps_plan_probe_next(const struct zps_plan_probe *probe) {
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const unsigned scheme = probe->rung & 1 ? ZPS_PLAN_SCHEMES - 1 - i : i;
    if (probe->due >> scheme & 1) return (enum zps_plan_scheme)scheme;
  }
  return ZPS_PLAN_SCHEMES;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Of logarithms: the mean of the middle ones, and the lesser of two, since disturbances make rounds longer; n > 0. */
static double middle(double *logs, unsigned n) {
  const unsigned out = (n + 1) / 4;
  double sum = 0;
  qsort(logs, n, sizeof logs[0], compare);
  if (n == 2) return logs[0];
  for (unsigned i = out; i < n - out; i++) sum += logs[i];
  return sum / (n - 2 * out);
}

/* Mean logarithm of a rung's times, of those that are left; false: one of them is not known. */
static bool rung_mean(const struct zps_plan_probe *probe, uint32_t rung, double *mean_p) {
  double sum = 0;
  unsigned n = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(probe->left >> i & 1)) continue;
    if (!(probe->time_s[i][rung] > 0)) return false;
    sum += log(probe->time_s[i][rung]);
    n++;
  }
  *mean_p = n ? sum / n : 0;
  return n > 0;
}

/* Logarithm of its time, within rungs relative to the others; INFINITY: not known. */
static double score(const struct zps_plan_probe *probe, unsigned scheme) {
  double logs[ZPS_PLAN_RUNGS], mean;
  unsigned n = 0;
  for (uint32_t h = 0; h <= probe->rung; h++) {
    if (rung_mean(probe, h, &mean)) logs[n++] = log(probe->time_s[scheme][h]) - mean;
  }
  return n ? middle(logs, n) : INFINITY;
}

double zps_plan_probe_time(const struct zps_plan_probe *probe, enum zps_plan_scheme scheme) {
  double logs[ZPS_PLAN_RUNGS];
  unsigned n = 0;
  for (uint32_t h = 0; h < ZPS_PLAN_RUNGS; h++) {
    if (probe->time_s[scheme][h] > 0) logs[n++] = log(probe->time_s[scheme][h]);
  }
  return n ? exp(middle(logs, n)) : 0;
}

/* Where no rung was complete, by all times of each scheme. */
static enum zps_plan_scheme best_by(const struct zps_plan_probe *probe, bool within_rungs) {
  enum zps_plan_scheme best = ZPS_PLAN_SCHEMES;
  double least = INFINITY;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(probe->left >> i & 1)) continue;
    const double time_s = zps_plan_probe_time(probe, (enum zps_plan_scheme)i);
    const double one = within_rungs ? score(probe, i) : time_s > 0 ? log(time_s) : INFINITY;
    if (one >= least) continue;
    best = (enum zps_plan_scheme)i;
    least = one;
  }
  return best;
}

enum zps_plan_scheme zps_plan_probe_best(const struct zps_plan_probe *probe) {
  const enum zps_plan_scheme best = best_by(probe, true);
  return best == ZPS_PLAN_SCHEMES ? best_by(probe, false) : best;
}

bool zps_plan_probe_repeat(struct zps_plan_probe *probe) {
  const enum zps_plan_scheme best = best_by(probe, true);
  const bool known = best != ZPS_PLAN_SCHEMES;
  const double best_s = known ? zps_plan_probe_time(probe, best) : 0;
  unsigned length = 0;
  while (best_s < lengths[length].least_s) length++;
  const double least = known ? score(probe, best) : 0, most = log(1 + behind[probe->rung] * lengths[length].part);
  unsigned left = probe->left;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES && known; i++) {
    if (left >> i & 1 && score(probe, i) > least + most) left &= ~(1u << i);
  }
  probe->left = left;
  if (!known && zps_plan_probe_best(probe) == ZPS_PLAN_SCHEMES) return false;
  if ((left & (left - 1)) == 0 || probe->rung + 1 >= lengths[length].rungs) return false;
  probe->rung++;
  probe->due = left;
  return true;
}
