/*
 * Finds the fastest of several schemes by times that are noisy: successive halving, in rungs. In each rung every scheme
 * that is left runs a few rounds, one scheme after another. Other work on the machine changes from one moment to the
 * next, so schemes are compared within a rung, and a rung that was disturbed counts no more than another. Not half of
 * the schemes drop out after a rung, but those that are behind by more than chance explains; so the more schemes
 * differ, the sooner the race is over. It ends after ZPS_PLAN_RUNGS at the latest.
 *
 * Every other rung runs in reverse order: load that grows or falls steadily favours no scheme.
 */
#ifndef ZPS_PLAN_PROBE_H
#define ZPS_PLAN_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/plan/schemes.h"

enum { ZPS_PLAN_RUNGS = 9 };

struct zps_plan_probe {
  unsigned left;                                   /* bits 1u << scheme: may be the fastest */
  unsigned due;                                    /* those of them that are to run in this rung */
  uint32_t rung;                                   /* from 0 */
  double time_s[ZPS_PLAN_SCHEMES][ZPS_PLAN_RUNGS]; /* 0: not known */
};

/* Long rounds are disturbed less in proportion to their length: a scheme may be half as far behind, and fewer rungs are
 * enough. For very long rounds, each of which costs a second, it is a quarter, and still fewer rungs. Short rounds are
 * disturbed more, and cost little. */
#define ZPS_PLAN_VERY_LONG_S 750e-3
#define ZPS_PLAN_LONG_S 20e-3
#define ZPS_PLAN_SHORT_S 2e-3

/* `scheme` joins, in the first rung. */
void zps_plan_probe_join(struct zps_plan_probe *probe, enum zps_plan_scheme scheme);
/* `scheme` is out. */
void zps_plan_probe_drop(struct zps_plan_probe *probe, enum zps_plan_scheme scheme);
/* `scheme` ran in this rung, and its rounds took that long; 0: not known. */
void zps_plan_probe_ran(struct zps_plan_probe *probe, enum zps_plan_scheme scheme, double seconds);
/* The scheme that runs next; ZPS_PLAN_SCHEMES: this rung is over. */
enum zps_plan_scheme zps_plan_probe_next(const struct zps_plan_probe *probe);
/* Drops schemes that are too far behind and begins another rung; false: the race is decided. */
bool zps_plan_probe_repeat(struct zps_plan_probe *probe);
/* The fastest of those that are left; ZPS_PLAN_SCHEMES: no time is known. */
enum zps_plan_scheme zps_plan_probe_best(const struct zps_plan_probe *probe);
/* The time that a round of `scheme` took, the best and the worst rungs left out; 0: not known. */
double zps_plan_probe_time(const struct zps_plan_probe *probe, enum zps_plan_scheme scheme);

#endif
