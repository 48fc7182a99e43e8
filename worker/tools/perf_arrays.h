/* The arrays of a case of zenps-perf: its gradient and its result, in host memory, where they are made and checked, and
 * with --memory device once more in a GPU's, where rounds take them from. */
#ifndef ZPS_TOOLS_PERF_ARRAYS_H
#define ZPS_TOOLS_PERF_ARRAYS_H

#include <zenps/zenps.h>

#include "common/base/err.h"
#include "worker/tools/gpu.h"
#include "worker/tools/perf.h"

/* --parts: a case's gradient and result as even parts, each with arrays of its own where it is a list. */
struct perf_parts {
  uint32_t n;
  uint64_t rows;
  size_t row_bytes;
  zenps_part_t *in, *out;
  zenps_grad_t in_grad;
  int64_t *ids; /* of the gradient's lists, one part's after the other's; of a result that is a list, from row 0 on */
  int64_t *joined;
  void *values;
  uint64_t *places; /* [n + 1] */
};

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
