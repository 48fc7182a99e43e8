/* Thresholds that are estimated instead of found. */
#ifndef ZPS_WORKER_SELECT_ESTIMATE_H
#define ZPS_WORKER_SELECT_ESTIMATE_H

#include "worker/select/feedback.h"

/* `n_sample` values of what the residual is going to be, into `sample`: one from each of as many equal stretches, at a
 * place that depends on (seed, step, its number) alone. */
void zps_estimate_sample(const struct zps_feedback *feedback, const void *gradient, double factor, uint64_t seed,
                         uint64_t step, void *sample, uint64_t n_sample);

/* The rank in a sample of the magnitude from which on about k of the n values that it stands for lie, from 1 on.
 * n_sample: all that are not zero. With `deviations` standard deviations of the sample's error towards more: how many
 * lie there then falls short of k about as seldom as a normal variate goes that far. */
uint64_t zps_estimate_rank(uint64_t n_sample, uint64_t n, uint64_t k, double deviations);
/* The magnitude with that rank, at least the smallest over 0. */
uint64_t zps_estimate_quantile(enum zps_dtype dtype, const void *sample, uint64_t n_sample, uint64_t n, uint64_t k,
                               double deviations);

/* t with P(|X| >= t) = p for a normal X of this mean and deviation (> 0), 0 < p <= 1. */
double zps_estimate_normal(double mean, double deviation, double p);

/* Gaussiank's correction: the threshold, divided or multiplied by 1.02 again and again until it selects 3/4 k to 5/4 k;
 * too many rather than too few where equal magnitudes leave no choice. The same as counting after each step, from two
 * order statistics: the values of the zps_estimate_fewest(k)-th greatest magnitude and of the one after the
 * zps_estimate_most(k)-th (0: there is none). 0: no such threshold can be found so. [Ok-Topk section 5.4] */
double zps_estimate_correct(double threshold, double fewest, double beyond_most);
static inline uint64_t zps_estimate_fewest(uint64_t k) {
  return k - k / 4;
}
static inline uint64_t zps_estimate_most(uint64_t k) {
  return k + k / 4;
}

/* Mean and deviation of the finite ones of n values, from their moments where those are finite. False when there is no
 * deviation to speak of: no finite value, all equal, or out of a double's range. */
struct zps_moments;
bool zps_estimate_spread(enum zps_dtype dtype, const void *values, uint64_t n, const struct zps_moments *moments,
                         double *mean_p, double *deviation_p);

#endif
