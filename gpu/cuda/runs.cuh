/* The value of a row of a COO gradient. */
#ifndef ZPS_GPU_CUDA_RUNS_CUH
#define ZPS_GPU_CUDA_RUNS_CUH

#include "gpu/cuda/kernels.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

/* Element c of the run that begins at `at`. */
template <typename T>
__device__ __forceinline__ T run_value(const T *values, u32 width, const CooRuns &runs, u64 at, u32 c) {
  const u64 key = runs.keys[at];
  const T first = values[static_cast<u64>(runs.entries[at]) * width + c];
  if (at + 1 >= runs.n || runs.keys[at + 1] != key) return first;
  T sum = sum_of(static_cast<T>(0), first);
  for (u64 next = at + 1; next < runs.n && runs.keys[next] == key; next++)
    sum = sum_of(sum, values[static_cast<u64>(runs.entries[next]) * width + c]);
  return sum;
}

}  // namespace zps

#endif
