/* One threshold for the parts of a layer: samples, and the quantile of all of them. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "worker/base/error.h"
#include "worker/select/estimate.h"
#include "worker/select/magnitude.h"
#include "worker/sparsify/on_device.h"

zenps_status_t zenps_sparsifier_sample(zenps_sparsifier_t *sparsifier, const void *gradient, void *stream,
                                       double *magnitudes, uint64_t capacity, uint64_t *n) {
  if (!sparsifier || !gradient || !magnitudes || !n)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_sample: sparsifier, gradient, magnitudes or n is NULL");
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  if (options->kind != ZENPS_SPARSIFY_THRESHOLD)
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_sparsifier_sample: the sparsifier is of kind %d; only "
                           "ZENPS_SPARSIFY_THRESHOLD is told a threshold",
                           (int)options->kind);
  if (sparsifier->selected)
    return zps_worker_fail(ZPS_ERR_BUSY,
                           "zenps_sparsifier_sample: selection %" PRIu64 " was neither committed nor canceled",
                           sparsifier->steps);
  *n = options->sample;
  if (capacity < *n)
    return zps_worker_fail(ZPS_ERR_TRUNCATED, "zenps_sparsifier_sample: %" PRIu64 " magnitudes, room for %" PRIu64, *n,
                           capacity);
  struct zps_error error;
  if (sparsifier->there) {
    if (zps_on_device_sample(sparsifier, gradient, stream, &error) != ZPS_OK) return zps_worker_raise(&error);
  } else {
    const double factor = zps_feedback_clip(&sparsifier->feedback, gradient);
    zps_estimate_sample(&sparsifier->feedback, gradient, factor, options->seed, sparsifier->steps, sparsifier->sample,
                        options->sample);
  }
  for (uint64_t i = 0; i < *n; i++)
    magnitudes[i] = zps_magnitude_value(sparsifier->dtype, zps_magnitude_at(sparsifier->dtype, sparsifier->sample, i));
  return ZENPS_OK;
}

struct weighted {
  uint64_t magnitude; /* an integer, since that orders NaN, too */
  double weight;
};

static int greatest_first(const void *a, const void *b) {
  const uint64_t x = ((const struct weighted *)a)->magnitude, y = ((const struct weighted *)b)->magnitude;
  return (x < y) - (x > y);
}

static zps_err_t check_samples(const zenps_sample_t *samples, uint32_t n_samples, double density, uint64_t *n_p,
                               double *total_p, struct zps_error *error) {
  if (!(density > 0 && density <= 1))
    return zps_fail(error, ZPS_ERR_INVALID, "density is %g; it must be over 0 and at most 1", density);
  *n_p = 0;
  *total_p = 0;
  for (uint32_t i = 0; i < n_samples; i++) {
    const zenps_sample_t *const sample = &samples[i];
    if (sample->n > 0 && !sample->magnitudes) return zps_fail(error, ZPS_ERR_INVALID, "sample %u has no magnitudes", i);
    if (sample->n > sample->of || (sample->of > 0 && sample->n == 0))
      return zps_fail(error, ZPS_ERR_INVALID,
                      "sample %u has %" PRIu64 " magnitudes for %" PRIu64 " values: it must have 1 to all of them", i,
                      sample->n, sample->of);
    *n_p += sample->n;
    *total_p += (double)sample->of;
  }
  return *n_p > 0 ? ZPS_OK : zps_fail(error, ZPS_ERR_INVALID, "there is no sample");
}

zenps_status_t zenps_sparsify_threshold(const zenps_sample_t *samples, uint32_t n_samples, double density,
                                        double *threshold) {
  struct zps_error error;
  uint64_t n = 0, at = 0;
  double total = 0, above = 0;
  if (!samples || !threshold)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsify_threshold: samples or threshold is NULL");
  if (check_samples(samples, n_samples, density, &n, &total, &error) != ZPS_OK)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsify_threshold: %s", error.text);
  struct weighted *const all = malloc(n * sizeof *all);
  if (!all) return zps_worker_fail(ZPS_ERR_NOMEM, "no memory for %" PRIu64 " magnitudes", n);
  for (uint32_t i = 0; i < n_samples; i++)
    for (uint64_t j = 0; j < samples[i].n; j++)
      all[at++] =
          (struct weighted){zps_magnitude_f64(samples[i].magnitudes[j]), (double)samples[i].of / (double)samples[i].n};
  qsort(all, n, sizeof *all, greatest_first);
  for (at = 0; at < n; at++) {
    above += all[at].weight;
    if (above >= density * total) break;
  }
  *threshold = zps_magnitude_value(ZPS_DTYPE_F64, all[at < n ? at : n - 1].magnitude);
  if (isnan(*threshold)) *threshold = INFINITY; /* select() takes infinity, and NaN is beyond it */
  free(all);
  return ZENPS_OK;
}
