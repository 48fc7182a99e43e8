/*
 * A measured curve over counts (of ranks, of parts): a few points, straight lines between them where both axes are
 * logarithmic, and the last line's slope beyond. Two points make a power law, which is what the densification of word
 * embeddings follows (2, 4, 8, 16 ranks of a translation model: 1.6, 2.6, 4.1, 6.2; k^0.66: 1.58, 2.50, 3.95, 6.23).
 */
#ifndef ZPS_PLAN_CURVE_H
#define ZPS_PLAN_CURVE_H

#include "common/base/err.h"

enum { ZPS_PLAN_CURVE_MAX = 16 };

struct zps_plan_curve {
  unsigned n;
  double x[ZPS_PLAN_CURVE_MAX], y[ZPS_PLAN_CURVE_MAX]; /* positive, x ascending */
};

/* The curve's value at x > 0; 1 where there is no point. */
double zps_plan_curve_at(const struct zps_plan_curve *curve, double x);
/* Adds a point, or replaces the one at this x; false when it is full or a number is not positive and finite. */
bool zps_plan_curve_set(struct zps_plan_curve *curve, double x, double y);
/* "2:1.6,4:2.6,16:6.2": points; the point 1:1 is added where there is none. */
zps_err_t zps_plan_curve_parse(const char *text, struct zps_plan_curve *curve, struct zps_error *error) ZPS_MUSTCHECK;

#endif
