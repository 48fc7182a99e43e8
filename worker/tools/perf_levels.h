/*
 * dsar's and topkdsa's dense half as QSGD levels, against the definition: every rank's even range of the sum travels in
 * buckets of 1024 values, each of them one of the two multiples of the bucket's greatest magnitude / (2^(bits-1) - 1)
 * that enclose it, drawn so that the expected value is exact. Which of the two is chance, so this checks the bounds of
 * each value, and that all draws together are within six standard deviations of their expectation.
 */
#ifndef ZPS_TOOLS_PERF_LEVELS_H
#define ZPS_TOOLS_PERF_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct perf_levels {
  uint64_t rows, width, bits;
  uint32_t world;
  double error, variance, n_drawn; /* of all draws so far, in levels */
};

/* `exact` and `got`: rows * width values, floats or doubles. ZPS_ERR_INTERNAL says what is wrong. */
zps_err_t perf_levels_check(struct perf_levels *levels, uint64_t step, bool f32, const void *exact, const void *got,
                            struct zps_error *error) ZPS_MUSTCHECK;

#endif
