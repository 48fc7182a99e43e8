/* The arrays of a case of zenps-perf: its gradient and its result, in host memory, where they are made and checked, and
 * with --memory device once more in a GPU's, where rounds take them from. */
#ifndef ZPS_TOOLS_PERF_ARRAYS_H
#define ZPS_TOOLS_PERF_ARRAYS_H

#include "worker/tools/gpu.h"
#include "worker/tools/perf.h"
#include "worker/tools/perf_parts.h"

struct perf_arrays {
  const struct perf *perf;
  size_t row_bytes;
  zenps_grad_t in, out; /* in host memory; without a GPU what rounds are given */
  struct zps_gpu_grad in_there, out_there, result;
  struct perf_parts parts; /* with --parts */
};

zps_err_t perf_arrays_init(struct perf_arrays *arrays, const struct perf *perf, struct zps_error *error) ZPS_MUSTCHECK;
void perf_arrays_fini(struct perf_arrays *arrays);
/* arrays->in has another gradient: brings it to where rounds take it from, and waits until it is there. */
zps_err_t perf_arrays_bring(struct perf_arrays *arrays, struct zps_error *error) ZPS_MUSTCHECK;
/* The gradient that a round is given, and the result that it fills: rows come in arrays of the library's, fresh each
 * time. */
const zenps_grad_t *perf_arrays_in(const struct perf_arrays *arrays);
zenps_grad_t perf_arrays_out(struct perf_arrays *arrays);
/* Finds a round's result in host memory: itself, or a copy that lasts until the next call. */
zps_err_t perf_arrays_result(struct perf_arrays *arrays, zenps_grad_t *out, const zenps_grad_t **result_p,
                             struct zps_error *error) ZPS_MUSTCHECK;

#endif
