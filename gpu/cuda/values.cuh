/* Elements: their types, and what is zero. */
#ifndef ZPS_GPU_CUDA_VALUES_CUH
#define ZPS_GPU_CUDA_VALUES_CUH

#include "gpu/cuda/port.cuh"

namespace zps {

/* Calls what(T()) with the type of the dtype's elements. */
template <typename What>
void by_dtype(enum zps_dtype dtype, What what) {
  switch (dtype) {
    case ZPS_DTYPE_F32:
      what(0.0f);
      break;
    case ZPS_DTYPE_F64:
      what(0.0);
      break;
    case ZPS_DTYPE_U8:
      what(static_cast<uint8_t>(0));
      break;
  }
}

/* NaN is none, -0.0 is one. */
__device__ __forceinline__ bool is_zero(float value) {
  return value == 0.0f;
}
__device__ __forceinline__ bool is_zero(double value) {
  return value == 0.0;
}
__device__ __forceinline__ bool is_zero(uint8_t value) {
  return value == 0;
}

/* The bits of a word that decide whether it is zero. */
enum : u32 { MASK_F32 = 0x7fffffffu };

}  // namespace zps

#endif
