/* The rounding of a tensor's values: on the way between a rank and the servers, both ways; between ranks, of what each
 * gives. The reference that zenps-perf --verify holds rounded results against. */
#ifndef ZPS_TOOLS_PERF_ROUND_H
#define ZPS_TOOLS_PERF_ROUND_H

#include <zenps/zenps.h>

#include "common/base/err.h"

struct perf_round;
/* `n_ranges`: between ranks, how many even ranges a gradient is cut into, each a list of values of its own; 0: as
 * servers have it, in partitions. */
zps_err_t perf_round_create(const zenps_tensor_t *tensor, uint32_t n_ranges, struct perf_round **round_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
void perf_round_destroy(struct perf_round *round);
/* Replaces the marked rows of a dense array by what `rank` sends for them in `step`; sums are sent by "rank" world. */
void perf_round_rows(struct perf_round *round, uint64_t step, uint32_t rank, const uint8_t *marked, void *values);

#endif
