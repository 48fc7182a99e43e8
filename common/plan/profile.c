#include "common/plan/profile.h"

#include <math.h>

static double within(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}

double zps_plan_gamma(const struct zps_plan_profile *profile, double k) {
  const double d = profile->density;
  if (k <= 1 || d <= 0) return 1;
  double gamma = k;
  if (profile->overlap == ZPS_PLAN_INDEPENDENT) gamma = d < 1 ? -expm1(k * log1p(-d)) / d : 1;
  if (profile->overlap == ZPS_PLAN_MEASURED) gamma = zps_plan_curve_at(&profile->gamma, k);
  return within(gamma, 1, fmin(k, 1 / d));
}

double zps_plan_union(const struct zps_plan_profile *profile, double k) {
  return profile->density * zps_plan_gamma(profile, k);
}

double zps_plan_skew(const struct zps_plan_profile *profile, double parts) {
  if (parts <= 1 || profile->density <= 0) return 1;
  return within(zps_plan_curve_at(&profile->skew, parts), 1, fmin(parts, 1 / profile->density));
}

double zps_plan_blocks(const struct zps_plan_profile *profile, uint32_t width, double density) {
  /* The number of runs, which are zero or not on their own, in a block. */
  double things = ZPS_PLAN_BLOCK / fmax(profile->run, width);
  const double d = profile->density, measured = profile->block_density;
  if (measured > 0 && measured < 1 && d > 0 && d < 1) things = log1p(-measured) / log1p(-d);
  if (density >= 1) return 1;
  return -expm1(fmax(things, 1) * log1p(-density));
}

/* A mean that forgets: each new value counts for an eighth, once there are eight. */
static double mean(double old, double value, uint64_t count) {
  return old + (value - old) / (double)(count < 8 ? count : 8);
}

void zps_plan_observe(struct zps_plan_observer *observer, uint32_t n, uint64_t rows, double pushed_rows,
                      double union_rows) {
  if (n == 0 || rows == 0) return;
  if (observer->n != n) *observer = (struct zps_plan_observer){.n = n};
  const double each = pushed_rows / n;
  observer->rounds++;
  observer->density = mean(observer->density, each / (double)rows, observer->rounds);
  observer->gamma_n = mean(observer->gamma_n, each > 0 ? union_rows / each : 1, observer->rounds);
}

void zps_plan_observe_gamma(struct zps_plan_observer *observer, uint32_t k, double gamma) {
  if (k <= 1 || k >= observer->n) return;
  unsigned i = 0;
  while (i < observer->between.n && observer->between.x[i] != k) i++;
  const double old = i < observer->between.n ? observer->between.y[i] : gamma;
  zps_plan_curve_set(&observer->between, k, mean(old, gamma, 8));
}

void zps_plan_observed(const struct zps_plan_observer *observer, struct zps_plan_profile *profile) {
  if (observer->rounds == 0) return;
  profile->density = observer->density;
  profile->overlap = ZPS_PLAN_MEASURED;
  profile->gamma = observer->between;
  zps_plan_curve_set(&profile->gamma, 1, 1);
  if (observer->n > 1 && observer->gamma_n > 0) zps_plan_curve_set(&profile->gamma, observer->n, observer->gamma_n);
}
