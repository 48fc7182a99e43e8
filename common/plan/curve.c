#include "common/plan/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double zps_plan_curve_at(const struct zps_plan_curve *curve, double x) {
  if (curve->n == 0) return 1;
  if (curve->n == 1) return curve->y[0];
  unsigned i = 1;
  while (i + 1 < curve->n && curve->x[i] < x) i++;
  const double slope = log(curve->y[i] / curve->y[i - 1]) / log(curve->x[i] / curve->x[i - 1]);
  return curve->y[i - 1] * pow(x / curve->x[i - 1], slope);
}

bool zps_plan_curve_set(struct zps_plan_curve *curve, double x, double y) {
  if (!(x > 0) || !(y > 0) || !isfinite(x) || !isfinite(y)) return false;
  unsigned i = 0;
  while (i < curve->n && curve->x[i] < x) i++;
  if (i == curve->n || curve->x[i] > x) {
    if (curve->n == ZPS_PLAN_CURVE_MAX) return false;
    memmove(curve->x + i + 1, curve->x + i, (curve->n - i) * sizeof curve->x[0]);
    memmove(curve->y + i + 1, curve->y + i, (curve->n - i) * sizeof curve->y[0]);
    curve->n++;
  }
  curve->x[i] = x;
  curve->y[i] = y;
  return true;
}

zps_err_t zps_plan_curve_parse(const char *text, struct zps_plan_curve *curve, struct zps_error *error) {
  struct zps_plan_curve parsed = {.n = 0};
  for (const char *at = text;; at++) {
    char *end;
    const double x = strtod(at, &end);
    if (end == at || *end != ':') goto bad;
    at = end + 1;
    const double y = strtod(at, &end);
    if (end == at || (*end != ',' && *end != '\0') || !zps_plan_curve_set(&parsed, x, y)) goto bad;
    at = end;
    if (*at == '\0') break;
  }
  if (parsed.x[0] > 1 && !zps_plan_curve_set(&parsed, 1, 1)) goto bad;
  *curve = parsed;
  return ZPS_OK;
bad:
  return zps_fail(error, ZPS_ERR_INVALID,
                  "'%s' is no curve; right would be up to %d points COUNT:VALUE, such as 2:1.6,4:2.6,16:6.2", text,
                  ZPS_PLAN_CURVE_MAX - 1);
}
