/* The computing constants of the machine at hand, from the codec itself on a small tensor. */
#ifndef ZPS_PLAN_MEASURE_H
#define ZPS_PLAN_MEASURE_H

#include "common/plan/calibration.h"

/* Takes a few milliseconds of the calling thread's processor time; other work on the machine does not count. A constant
 * that cannot be measured, as where memory is short, keeps its default. */
void zps_plan_calibration_measure(struct zps_plan_calibration *calibration);

#endif
