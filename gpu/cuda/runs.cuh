/* The value of a row of a COO gradient. */
#ifndef ZPS_GPU_CUDA_RUNS_CUH
#define ZPS_GPU_CUDA_RUNS_CUH

#include "gpu/cuda/kernels.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

/* Element c of the run that begins at `at`. */
template <typename As, typename T>
__device__ __forceinline__ As run_value(const T *values, u32 width, const CooRuns &runs, u64 at, u32 c) {
  typedef SumOf<T> Sum;
  const u64 key = runs.keys[at];
  const T first = values[static_cast<u64>(runs.entries[at]) * width + c];
  if (at + 1 >= runs.n || runs.keys[at + 1] != key) return value_as<As>(first);
  Sum sum = sum_of(static_cast<Sum>(0), value_as<Sum>(first));
  for (u64 next = at + 1; next < runs.n && runs.keys[next] == key; next++)
    sum = sum_of(sum, value_as<Sum>(values[static_cast<u64>(runs.entries[next]) * width + c]));
  return value_as<As>(sum);
}

}  // namespace zps

#endif
