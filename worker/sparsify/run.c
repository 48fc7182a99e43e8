/*
 * The selections. Whatever the kind, a threshold is guessed first, so that one pass over memory adds the gradient and
 * picks the greatest entries while they are in the cache; the picks then are the answer, or contain it, or the
 * selection is made again.
 */
#include <math.h>

#include "worker/select/estimate.h"
#include "worker/select/magnitude.h"
#include "worker/select/order.h"
#include "worker/sparsify/bounds.h"
#include "worker/sparsify/bucket.h"
#include "worker/sparsify/sparsifier.h"

/* A guess for an exact selection misses about once in 30000. */
static const double SAFE_DEVIATIONS = 4;

uint64_t zps_sparsifier_total_k(const struct zenps_sparsifier *sparsifier) {
  const uint64_t k = sparsifier->options.k, bucket = sparsifier->options.bucket;
  if (sparsifier->options.kind != ZENPS_SPARSIFY_BUCKETS) return k;
  return sparsifier->n / bucket * k + (sparsifier->n % bucket * k + bucket - 1) / bucket;
}

/* Adds the gradient and picks all from `magnitude` on; false when that is more than there is room for. */
static bool add_and_pick(struct zenps_sparsifier *sparsifier, const void *gradient, double factor, uint64_t magnitude) {
  bool fits = true;
  uint64_t ties = UINT64_MAX;
  for (uint64_t begin = 0, end; begin < sparsifier->n; begin = end) {
    end = sparsifier->n - begin < ZPS_SCAN_BLOCK ? sparsifier->n : begin + ZPS_SCAN_BLOCK;
    zps_feedback_add(&sparsifier->feedback, gradient, factor, begin, end);
    fits = fits && zps_scan_pick(sparsifier->dtype, sparsifier->feedback.residual, begin, end, magnitude, &ties,
                                 &sparsifier->picks);
  }
  return fits;
}

/* The k greatest, from the residual alone and whatever it looks like. */
static uint64_t pick_again(struct zenps_sparsifier *sparsifier) {
  const uint64_t k = sparsifier->options.k;
  struct zps_order order = {0};
  if (k < sparsifier->n) order = zps_order_select(sparsifier->dtype, sparsifier->feedback.residual, sparsifier->n, k);
  uint64_t ties = order.magnitude ? k - order.n_above : UINT64_MAX;
  if (order.magnitude == 0) order.magnitude = 1;
  sparsifier->picks.n = 0;
  /* It fits: at most k are picked. */
  const bool fits = zps_scan_pick(sparsifier->dtype, sparsifier->feedback.residual, 0, sparsifier->n, order.magnitude,
                                  &ties, &sparsifier->picks);
  if (!fits) sparsifier->picks.n = 0;
  return order.magnitude;
}

/* Makes the k greatest out of what was picked from `magnitude` on, and returns the smallest kept magnitude. */
static uint64_t refine(struct zenps_sparsifier *sparsifier, bool fits, uint64_t magnitude) {
  struct zps_picks *const picks = &sparsifier->picks;
  if (fits && picks->n >= sparsifier->options.k) return zps_picks_keep(sparsifier->dtype, picks, sparsifier->options.k);
  return fits && magnitude == 1 ? magnitude : pick_again(sparsifier); /* 1: nothing is left out but zeros */
}

/* Takes what was picked from `magnitude` on when it is between `least` and `most` of k, and refines it otherwise. */
static bool accept(struct zenps_sparsifier *sparsifier, bool fits, uint64_t magnitude, double least, double most) {
  if (zps_bounds_hold(&sparsifier->options, sparsifier->picks.n, fits, magnitude, least, most)) return true;
  sparsifier->threshold = refine(sparsifier, fits, magnitude);
  sparsifier->refined++;
  return false;
}

/* The threshold of a sample, with a margin towards too many. */
static uint64_t sampled(struct zenps_sparsifier *sparsifier, const void *gradient, double factor, double deviations) {
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  zps_estimate_sample(&sparsifier->feedback, gradient, factor, options->seed, sparsifier->steps, sparsifier->sample,
                      options->sample);
  return zps_estimate_quantile(sparsifier->dtype, sparsifier->sample, options->sample, sparsifier->n, options->k,
                               deviations);
}

static void run_topk(struct zenps_sparsifier *sparsifier, const void *gradient, double factor) {
  const uint64_t guess = sampled(sparsifier, gradient, factor, SAFE_DEVIATIONS);
  const bool fits = add_and_pick(sparsifier, gradient, factor, guess);
  sparsifier->threshold = refine(sparsifier, fits, guess);
}

static void run_sampled(struct zenps_sparsifier *sparsifier, const void *gradient, double factor) {
  sparsifier->threshold = sampled(sparsifier, gradient, factor, 0);
  const bool fits = add_and_pick(sparsifier, gradient, factor, sparsifier->threshold);
  (void)accept(sparsifier, fits, sparsifier->threshold, ZPS_SAMPLED_LEAST, ZPS_SAMPLED_MOST);
}

uint64_t zps_sparsifier_steered(struct zenps_sparsifier *sparsifier) {
  const double share = (double)sparsifier->picks.n / (double)sparsifier->options.k;
  const double next =
      zps_steer(&sparsifier->steer, zps_magnitude_value(sparsifier->dtype, sparsifier->threshold), share);
  const uint64_t magnitude = isfinite(next) ? zps_magnitude_from(sparsifier->dtype, next) : sparsifier->threshold;
  return magnitude ? magnitude : 1;
}

static void run_reused(struct zenps_sparsifier *sparsifier, const void *gradient, double factor) {
  if (sparsifier->age == 0) {
    run_topk(sparsifier, gradient, factor);
    sparsifier->reused = sparsifier->threshold;
  } else {
    sparsifier->threshold = sparsifier->reused;
    const bool fits = add_and_pick(sparsifier, gradient, factor, sparsifier->threshold);
    const bool accepted = accept(sparsifier, fits, sparsifier->threshold, ZPS_REUSED_LEAST, ZPS_MOST);
    if (!accepted) sparsifier->age = 0;
    sparsifier->reused =
        accepted && !sparsifier->options.unrefined ? zps_sparsifier_steered(sparsifier) : sparsifier->threshold;
  }
  sparsifier->age = (sparsifier->age + 1) % sparsifier->options.period;
}

static double greatest(const struct zenps_sparsifier *sparsifier, uint64_t k) {
  if (k > sparsifier->n) return 0;
  const struct zps_order order = zps_order_select(sparsifier->dtype, sparsifier->feedback.residual, sparsifier->n, k);
  return zps_magnitude_value(sparsifier->dtype, order.magnitude);
}

static bool pick_from(struct zenps_sparsifier *sparsifier, double threshold) {
  const uint64_t magnitude = zps_magnitude_from(sparsifier->dtype, threshold);
  uint64_t ties = UINT64_MAX;
  sparsifier->threshold = magnitude ? magnitude : 1;
  sparsifier->picks.n = 0;
  return zps_scan_pick(sparsifier->dtype, sparsifier->feedback.residual, 0, sparsifier->n, sparsifier->threshold, &ties,
                       &sparsifier->picks);
}

/* Picks from the normal threshold on, and again where it is to be corrected. */
static bool pick_normal(struct zenps_sparsifier *sparsifier, double threshold) {
  const uint64_t k = sparsifier->options.k, fewest = zps_estimate_fewest(k), most = zps_estimate_most(k);
  const bool fits = pick_from(sparsifier, threshold);
  const uint64_t n = sparsifier->picks.n;
  if (sparsifier->options.unrefined || (fits && n >= fewest && n <= most)) return fits;
  const double corrected =
      zps_estimate_correct(threshold, greatest(sparsifier, fewest), greatest(sparsifier, most + 1));
  return corrected > 0 ? pick_from(sparsifier, corrected) : fits;
}

static void run_gaussian(struct zenps_sparsifier *sparsifier, const void *gradient, double factor) {
  const struct zps_feedback *const feedback = &sparsifier->feedback;
  const uint64_t n = sparsifier->n, size = zps_dtype_size(sparsifier->dtype);
  struct zps_moments moments = {0};
  for (uint64_t begin = 0, end; begin < n; begin = end) {
    end = n - begin < ZPS_SCAN_BLOCK ? n : begin + ZPS_SCAN_BLOCK;
    zps_feedback_add(&sparsifier->feedback, gradient, factor, begin, end);
    zps_scan_moments(sparsifier->dtype, (const char *)feedback->residual + begin * size, end - begin, &moments);
  }
  double mean, deviation;
  bool fits = zps_estimate_spread(sparsifier->dtype, feedback->residual, n, &moments, &mean, &deviation);
  if (fits)
    fits = pick_normal(sparsifier, zps_estimate_normal(mean, deviation, (double)sparsifier->options.k / (double)n));
  (void)accept(sparsifier, fits, sparsifier->threshold, ZPS_GAUSSIAN_LEAST, ZPS_MOST);
}

static void run_threshold(struct zenps_sparsifier *sparsifier, const void *gradient, double factor) {
  const uint64_t given = zps_magnitude_from(sparsifier->dtype, sparsifier->options.threshold);
  sparsifier->threshold = given ? given : 1;
  const bool fits = add_and_pick(sparsifier, gradient, factor, sparsifier->threshold);
  if (fits && sparsifier->picks.n <= sparsifier->options.k) return;
  sparsifier->threshold = refine(sparsifier, fits, sparsifier->threshold);
  sparsifier->refined++;
}

static void run_scheme(struct zenps_sparsifier *sparsifier, const void *gradient, double factor) {
  zps_feedback_add(&sparsifier->feedback, gradient, factor, 0, sparsifier->n);
  sparsifier->threshold = 0;
}

static void run_buckets(struct zenps_sparsifier *sparsifier, const void *gradient, double factor) {
  const uint64_t bucket = sparsifier->options.bucket;
  for (uint64_t begin = 0, end; begin < sparsifier->n; begin = end) {
    end = sparsifier->n - begin < bucket ? sparsifier->n : begin + bucket;
    zps_feedback_add(&sparsifier->feedback, gradient, factor, begin, end);
    zps_bucket_pick(sparsifier->dtype, sparsifier->feedback.residual, begin, end,
                    ((end - begin) * sparsifier->options.k + bucket - 1) / bucket, &sparsifier->picks);
  }
  sparsifier->threshold = 0;
}

void zps_sparsifier_run(struct zenps_sparsifier *sparsifier, const void *gradient) {
  static void (*const runs[])(struct zenps_sparsifier * sparsifier, const void *gradient, double factor) = {
      [ZENPS_SPARSIFY_TOPK] = run_topk,       [ZENPS_SPARSIFY_SAMPLED] = run_sampled,
      [ZENPS_SPARSIFY_REUSED] = run_reused,   [ZENPS_SPARSIFY_GAUSSIAN] = run_gaussian,
      [ZENPS_SPARSIFY_BUCKETS] = run_buckets, [ZENPS_SPARSIFY_THRESHOLD] = run_threshold,
      [ZENPS_SPARSIFY_SCHEME] = run_scheme};
  const double factor = zps_feedback_clip(&sparsifier->feedback, gradient);
  sparsifier->picks.n = 0;
  runs[sparsifier->options.kind](sparsifier, gradient, factor);
  if (sparsifier->options.capped && sparsifier->picks.n > zps_sparsifier_total_k(sparsifier))
    (void)zps_picks_keep(sparsifier->dtype, &sparsifier->picks, zps_sparsifier_total_k(sparsifier));
  sparsifier->steps++;
}
