/*
 * Weights of jobs by their names (job.weights): "PATTERN:N,PATTERN:N", the first pattern that fits a name counts, and
 * one that none fits weighs 1. In a pattern * is any text, ? any byte and [...] one of some (fnmatch()).
 */
#ifndef ZPS_SERVER_MEMBERSHIP_WEIGHTS_H
#define ZPS_SERVER_MEMBERSHIP_WEIGHTS_H

#include <stdint.h>

#include "common/base/err.h"

/* ZPS_ERR_INVALID: one of them is none, which the error names. NULL and "" are lists of none. */
zps_err_t zps_weights_check(const char *list, struct zps_error *error) ZPS_MUSTCHECK;
/* Of a list that was checked. 1 to ZPS_FAIR_WEIGHT_MAX. */
uint32_t zps_weight_of(const char *list, const char *name);

#endif
