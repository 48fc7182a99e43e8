#include "worker/select/estimate.h"

#include <math.h>

#include "common/base/hash.h"
#include "worker/select/magnitude.h"
#include "worker/select/order.h"
#include "worker/select/scan.h"

void zps_estimate_sample(const struct zps_feedback *feedback, const void *gradient, double factor, uint64_t seed,
                         uint64_t step, void *sample, uint64_t n_sample) {
  const uint64_t key = zps_hash_mix64(seed ^ zps_hash_mix64(step + 1));
  const uint64_t whole = feedback->n / n_sample, rest = feedback->n % n_sample;
  for (uint64_t j = 0, begin = 0; j < n_sample; j++) {
    const uint64_t len = whole + (j < rest); /* never 0: a sample is at most all values */
    const uint64_t at = (uint64_t)(((unsigned __int128)zps_hash_mix64(key + j) * len) >> 64);
    zps_feedback_preview(feedback, gradient, factor, begin + at, sample, j);
    begin += len;
  }
}

uint64_t zps_estimate_rank(uint64_t n_sample, uint64_t n, uint64_t k, double deviations) {
  const double p = (double)k / (double)n, expected = p * (double)n_sample;
  const double position = expected + deviations * (sqrt(expected * (1 - p)) + 1);
  if (position >= (double)n_sample) return n_sample;
  return position < 1 ? 1 : (uint64_t)llround(position);
}

uint64_t zps_estimate_quantile(enum zps_dtype dtype, const void *sample, uint64_t n_sample, uint64_t n, uint64_t k,
                               double deviations) {
  const uint64_t rank = zps_estimate_rank(n_sample, n, k, deviations);
  if (rank >= n_sample) return 1;
  const uint64_t magnitude = zps_order_select(dtype, sample, n_sample, rank).magnitude;
  return magnitude ? magnitude : 1;
}

static double beyond(double t, double mean, double deviation) {
  const double scale = deviation * M_SQRT2;
  return (erfc((t - mean) / scale) + erfc((t + mean) / scale)) / 2;
}

double zps_estimate_normal(double mean, double deviation, double p) {
  double low = 0, high = fabs(mean) + 40 * deviation; /* beyond() is 0 there in a double */
  for (unsigned i = 0; i < 100 && low < high; i++) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    if (beyond(middle, mean, deviation) >= p)
      low = middle;
    else
      high = middle;
  }
  return low;
}

double zps_estimate_correct(double threshold, double fewest, double beyond_most) {
  const double step = 1.02;
  if (!(threshold > 0) || fewest == 0) return 0;
  while (threshold > fewest) threshold /= step;
  for (double next; beyond_most >= threshold; threshold = next) {
    next = threshold * step;
    if (next > fewest || isinf(next)) break;
  }
  return threshold;
}

bool zps_estimate_spread(enum zps_dtype dtype, const void *values, uint64_t n, const struct zps_moments *moments,
                         double *mean_p, double *deviation_p) {
  struct zps_moments finite = *moments;
  uint64_t n_finite = n;
  if (!isfinite(finite.squares)) {
    finite = (struct zps_moments){0};
    n_finite = 0;
    for (uint64_t i = 0; i < n; i++) {
      const double value = dtype == ZPS_DTYPE_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
      if (!isfinite(value)) continue;
      finite.sum += value;
      finite.squares += value * value;
      n_finite++;
    }
  }
  if (n_finite == 0 || !isfinite(finite.squares)) return false;
  const double mean = finite.sum / (double)n_finite;
  const double variance = finite.squares / (double)n_finite - mean * mean;
  if (!(variance > 0)) return false;
  *mean_p = mean;
  *deviation_p = sqrt(variance);
  return true;
}
