/*
 * Limits to what is tried: the first scheme, before anything is measured, and the schemes that measured rounds rule
 * out.
 *
 * A probe of a link can find a rate that the link does not sustain: a shaped link lets a burst pass. At such a rate a
 * scheme that sends 50 times the bytes looks nearly as fast as the others, and its trial takes 50 rounds' time.
 * Measured rounds bound the rate: a round cannot have sent its bytes faster than in the time that it took.
 */
#ifndef ZPS_PLAN_LIMIT_H
#define ZPS_PLAN_LIMIT_H

#include "common/plan/model.h"

/* A scheme is not tried if its time, at the rate that measured rounds imply, is more than this many times the best
 * measured one. */
#define ZPS_PLAN_TOO_SLOW 3.0

/* How many times longer bytes take than `input` says, at least 1: `time_s[scheme]` is the measured time of a round, or
 * 0. The overhead of a round (latency and computing) may be three times the predicted one, up to nine tenths of the
 * round. Bytes took the rest. */
double zps_plan_slowdown(const struct zps_plan_input *input, const double time_s[ZPS_PLAN_SCHEMES]);
/* The predicted time of a round whose bytes take `slowdown` times longer. */
double zps_plan_slowed(const struct zps_plan_input *input, enum zps_plan_scheme scheme, double slowdown);

/* The first scheme among `allowed` (not empty) that takes at most twice as long as the best of them on a slow link, at
 * any density; if there is none, the scheme that loses least. */
enum zps_plan_scheme zps_plan_safest(uint32_t n, const struct zps_plan_tensor *tensor, unsigned allowed);

#endif
