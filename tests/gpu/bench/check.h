/* A device against the cpu: both must code random gradients alike. Knows the vtable alone. */
#ifndef ZPS_GPU_BENCH_CHECK_H
#define ZPS_GPU_BENCH_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ZPS_BENCH_SHAPES = 40 };
/* Encodes, decodes, merges and hashes gradients of up to `rows_max` rows, of the first `n_shapes` of many shapes, makes
 * checksums of their slices, and selects of as many values; prints differences on stderr. `n_checks_p` counts the
 * comparisons. */
bool zps_bench_check(struct zps_device *cpu, struct zps_device *device, uint64_t rows_max, unsigned n_shapes,
                     unsigned *n_checks_p);

/* Selects of `n` random values by several cuts. Adds to `n_checks_p`. */
bool zps_bench_check_selection(struct zps_device *device, enum zps_dtype dtype, uint64_t n, uint64_t seed,
                               unsigned *n_checks_p);

#ifdef __cplusplus
}
#endif
#endif
