/* The kernels' language: CUDA, or the emulation's C++ (tests/gpu/emu/emu.hpp), where ZPS_EMU says so. */
#ifndef ZPS_GPU_CUDA_PORT_CUH
#define ZPS_GPU_CUDA_PORT_CUH

#include <cstdint>

#ifdef ZPS_EMU
#include "tests/gpu/emu/emu.hpp"
#define ZPS_UNROLL
#else
#include <cuda_runtime.h>
/* One object of a type without constructors in the block's shared memory. */
#define ZPS_SHARED(type, name) __shared__ type name
#define ZPS_UNROLL _Pragma("unroll")
#define ZPS_LAUNCH(stream, grid, block, kernel, ...) \
  ((void)zps::Launched<&kernel>::node, kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__))

namespace zps {

/* All kernels that are launched somewhere, for load_kernels(): a list that is there before main(). */
struct Kernel {
  const void *function;
  const Kernel *next;
  explicit Kernel(const void *function_);
};
extern const Kernel *all_kernels;
template <auto function>
struct Launched {
  static const Kernel node;
};
template <auto function>
const Kernel Launched<function>::node(reinterpret_cast<const void *>(function));

}  // namespace zps
#endif

extern "C" {
#include "gpu/device.h"
}

namespace zps {

typedef uint32_t u32;
typedef unsigned long long u64; /* the type that atomics take; as wide as uint64_t */

enum { WARP = 32, THREADS = 256, WARPS = THREADS / WARP };
static constexpr u32 ALL = 0xffffffffu;

__device__ __forceinline__ u32 lane_of_thread() {
  return threadIdx.x % WARP;
}
__device__ __forceinline__ u32 warp_of_thread() {
  return threadIdx.x / WARP;
}
__device__ __forceinline__ u32 lanes_below() {
  return (1u << lane_of_thread()) - 1;
}

/* Loads and stores of memory that other threads change meanwhile: each takes place once, as a whole. */
template <typename T>
__device__ __forceinline__ T racy_load(const T *at) {
#ifdef ZPS_EMU
  zps_emu::pause();
#endif
  return *static_cast<const volatile T *>(at);
}
template <typename T>
__device__ __forceinline__ void racy_store(T *at, T value) {
#ifdef ZPS_EMU
  zps_emu::pause();
#endif
  *static_cast<volatile T *>(at) = value;
#ifdef ZPS_EMU
  zps_emu::pause();
#endif
}

/* The upper half of the product. */
__host__ __device__ __forceinline__ u64 mul_high(u64 a, u64 b) {
  return static_cast<u64>((static_cast<unsigned __int128>(a) * b) >> 64);
}

}  // namespace zps

#endif
