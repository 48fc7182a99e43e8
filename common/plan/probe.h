/*
 * Which of several schemes takes least, by times that are noisy: heats, in each of which every scheme that is left runs
 * a few rounds, one after another. What else the machine does changes from one moment to the next, so schemes are held
 * against each other within a heat, and a heat that was disturbed counts no more than another. Who is behind by more
 * than chance explains after so many heats is out; so the more schemes differ, the sooner it is over, and it is over
 * after ZPS_PLAN_HEATS.
 *
 * Every other heat runs in reverse order: what grows or falls steadily favours nobody.
 */
#ifndef ZPS_PLAN_PROBE_H
#define ZPS_PLAN_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/plan/schemes.h"

enum { ZPS_PLAN_HEATS = 9 };

struct zps_plan_probe {
  unsigned left;                                   /* bits 1u << scheme: may be the fastest */
  unsigned due;                                    /* those of them that are to run in this heat */
  uint32_t heat;                                   /* from 0 */
  double time_s[ZPS_PLAN_SCHEMES][ZPS_PLAN_HEATS]; /* 0: not known */
};

/* Rounds of this long or longer are disturbed less, each in its length: half of what others may be behind, and fewer
 * heats, do for them; and a quarter, and still fewer, for very long ones, where every look costs seconds.
 * Shorter ones than that are disturbed more, and cost little. */
#define ZPS_PLAN_VERY_LONG_S 750e-3
#define ZPS_PLAN_LONG_S 20e-3
#define ZPS_PLAN_SHORT_S 2e-3

/* The first heat, of nobody yet. */
void zps_plan_probe_begin(struct zps_plan_probe *probe);
/* `scheme` joins, in the first heat. */
void zps_plan_probe_join(struct zps_plan_probe *probe, enum zps_plan_scheme scheme);
/* It may not be any more. */
void zps_plan_probe_drop(struct zps_plan_probe *probe, enum zps_plan_scheme scheme);
/* It ran in this heat, and its rounds took that long; 0: not known. */
void zps_plan_probe_ran(struct zps_plan_probe *probe, enum zps_plan_scheme scheme, double seconds);
/* Who runs next; ZPS_PLAN_SCHEMES: this heat is over. */
enum zps_plan_scheme zps_plan_probe_next(const struct zps_plan_probe *probe);
/* Drops who is too far behind and begins another heat; false: it is decided. */
bool zps_plan_probe_again(struct zps_plan_probe *probe);
/* The fastest of those that are left; ZPS_PLAN_SCHEMES: nobody's time is known. */
enum zps_plan_scheme zps_plan_probe_best(const struct zps_plan_probe *probe);
/* What a round of it took, the best and the worst heats left out; 0: not known. */
double zps_plan_probe_time(const struct zps_plan_probe *probe, enum zps_plan_scheme scheme);

#endif
