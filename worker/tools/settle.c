#include "worker/tools/settle.h"

#include <math.h>
#include <string.h>

#include "common/plan/probe.h"

/* Of long rounds it tries fewer. */
#define LONG_ROUNDS 12
/* Twice what the coordinator takes for long: it may measure another length than a trainer does. */
#define LONG_MS (2 * 1e3 * ZPS_PLAN_LONG_S)

enum zps_settle_verdict zps_settle_round(struct zps_settle *settle, const char *scheme, double ms) {
  if (!settle->scheme || strcmp(scheme, settle->scheme) != 0) *settle = (struct zps_settle){scheme, 0, INFINITY};
  settle->alike++;
  settle->shortest_ms = fmin(settle->shortest_ms, ms);
  return settle->alike >= ZPS_SETTLE_ROUNDS ? ZPS_SETTLED
         : settle->alike == LONG_ROUNDS     ? ZPS_SETTLE_IF_LONG
                                            : ZPS_SETTLE_NOT;
}

bool zps_settle_is_long(double shortest_ms) {
  return shortest_ms >= LONG_MS;
}
