#include "worker/tools/perf_levels.h"

#include <math.h>

enum { BUCKET = 1024 };
#define ROUNDING 1e-4 /* of a level: what floats take from a product of up to 127 levels, with room */

static double at(bool f32, const void *values, uint64_t i) {
  return f32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

/* Values [from, to) of one bucket; the index of one that is wrong, or `to`. */
static uint64_t check_bucket(struct perf_levels *levels, bool f32, const void *exact, const void *got, uint64_t from,
                             uint64_t to) {
  const double n_levels = (double)((1u << (levels->bits - 1)) - 1);
  double greatest = 0;
  for (uint64_t i = from; i < to; i++) greatest = fmax(greatest, fabs(at(f32, exact, i)));
  for (uint64_t i = from; i < to; i++) {
    const double value = at(f32, got, i);
    if (greatest == 0 && value == 0) continue;
    if (greatest == 0) return i;
    const double wanted = at(f32, exact, i) / greatest * n_levels, level = value / greatest * n_levels;
    if (!(fabs(level - wanted) <= 1 + ROUNDING) || fabs(level - nearbyint(level)) > ROUNDING ||
        fabs(level) > n_levels + ROUNDING)
      return i;
    const double above = wanted - floor(wanted);
    levels->error += level - wanted;
    levels->variance += above * (1 - above);
    levels->n_drawn++;
  }
  return to;
}

zps_err_t perf_levels_check(struct perf_levels *levels, uint64_t step, bool f32, const void *exact, const void *got,
                            struct zps_error *error) {
  for (uint32_t range = 0; range < levels->world; range++) {
    const uint64_t first = levels->rows * range / levels->world * levels->width;
    const uint64_t end = levels->rows * (range + 1) / levels->world * levels->width;
    for (uint64_t from = first; from < end; from += BUCKET) {
      const uint64_t to = end - from < BUCKET ? end : from + BUCKET;
      const uint64_t wrong = check_bucket(levels, f32, exact, got, from, to);
      if (wrong < to)
        return zps_fail(error, ZPS_ERR_INTERNAL,
                        "step %llu: value %llu of row %llu is %.9g, which is no level next to %.9g",
                        (unsigned long long)step, (unsigned long long)(wrong % levels->width),
                        (unsigned long long)(wrong / levels->width), at(f32, got, wrong), at(f32, exact, wrong));
    }
  }
  if (fabs(levels->error) > 6 * sqrt(levels->variance) + ROUNDING * levels->n_drawn)
    return zps_fail(error, ZPS_ERR_INTERNAL,
                    "step %llu: levels are %.3g off their expectation in sum, of a standard deviation of %.3g: the "
                    "draws are biased",
                    (unsigned long long)step, levels->error, sqrt(levels->variance));
  return ZPS_OK;
}
