/*
 * The results that the schemes which keep only the greatest rows are defined to yield, worked out the plain way in one
 * place: dense arrays of doubles, sorting, no messages. zenps-perf --verify and the schemes' unit tests hold results
 * against it, to the bit; it shares no code with the schemes, but for how thresholds follow counts.
 *
 *   topka, topkdsa  the sum, in rank order, of every rank's k greatest rows
 *   gaussiank       the same of the rows from the magnitude on beyond which k rows of a normal distribution with the
 *                   gradient's mean and deviation would lie; the threshold is corrected in steps of 1.02 where that are
 *                   under 3/4 k or over 5/4 k. Of all rows where they are no more than k
 *   gtopk           a binomial tree: at each node lower + upper, cut to the k greatest
 *   oktopk          rows of the sum from the global threshold on, of the sum of every rank's rows from its local one
 *                   on; thresholds are exact k-th magnitudes every `period` rounds, where the result is the k greatest
 *                   of the sum of the k greatest. Between, each follows its count as worker/schemes/oktopk.c says,
 * which every rank's inputs determine. Which rank summed which rows does not show.
 *
 * A row's magnitude is that of its greatest value. Of equals the lower row is greater; a threshold takes them all.
 */
#ifndef ZPS_TOOLS_LOSSY_H
#define ZPS_TOOLS_LOSSY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct lossy_config {
  const char *scheme;
  uint32_t n; /* ranks */
  uint64_t rows, k;
  uint32_t width;
  uint32_t period;  /* oktopk: rounds between exact thresholds */
  unsigned without; /* bits of enum zps_without: of these, steering and correction show in results */
  bool f32;         /* sums are rounded to floats */
};

/* Puts the gradient of `rank` in this round into `values`: rows * width, all zero before. */
typedef void lossy_load_fn(void *ctx, uint32_t rank, double *values);

struct lossy;
/* ZPS_ERR_INVALID for a scheme that is none of these. */
zps_err_t lossy_create(const struct lossy_config *config, struct lossy **lossy_p) ZPS_MUSTCHECK;
void lossy_destroy(struct lossy *lossy);
/* The next round's result: rows * width values, the reference's until the next call. Rows that were dropped are zero.
 */
const double *lossy_next(struct lossy *lossy, lossy_load_fn *load, void *ctx);

#endif
