/* The rounding of a tensor's values on the way between a rank and the servers: the reference that zenps-perf --verify
 * holds rounded results against. */
#ifndef ZPS_TOOLS_PERF_ROUND_H
#define ZPS_TOOLS_PERF_ROUND_H

#include <zenps/zenps.h>

#include "common/base/err.h"

struct perf_round;
zps_err_t perf_round_create(const zenps_tensor_t *tensor, struct perf_round **round_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
void perf_round_destroy(struct perf_round *round);
/* Replaces the marked rows of a dense array by what `rank` sends for them in `step`; sums are sent by "rank" world. */
void perf_round_rows(struct perf_round *round, uint64_t step, uint32_t rank, const uint8_t *marked, void *values);

#endif
