/* Rice blocks (common/codec/codec_rice.h), a warp for each. */
#ifndef ZPS_GPU_CUDA_RICE_CUH
#define ZPS_GPU_CUDA_RICE_CUH

#include "gpu/cuda/kernels.cuh"

namespace zps {

enum {
  PER_LANE = ZPS_RICE_BLOCK / WARP,
  HEADER_BITS = 1 + ZPS_RICE_K_BITS,
  /* A block's bits are at most 5 over the best parameter's, which are at most those of the greatest one. */
  BLOCK_BITS_MAX = HEADER_BITS + ZPS_RICE_K_BITS + ZPS_RICE_BLOCK * (ZPS_RICE_K_MAX + 1) + 2,
  BLOCK_WORDS = (BLOCK_BITS_MAX + 31) / 32 + 2,
};
static_assert(+ZPS_RICE_K_MAX == WARP - 1, "a lane looks after a parameter");

/* The numbers of a block. */
struct RiceBlock {
  u32 p;              /* partition, or view */
  bool is_first;      /* of the partition */
  u32 n;              /* numbers */
  const u32 *numbers; /* its first one; the one before is numbers[-1] unless it is the first block */
};

/* The gap before number lane + j * WARP of the block; 0 beyond its end. */
__device__ __forceinline__ u32 rice_gap(const RiceBlock &block, u32 j) {
  const u32 i = lane_of_thread() + j * WARP;
  if (i >= block.n) return 0;
  return block.is_first && i == 0 ? block.numbers[0] : block.numbers[i] - *(block.numbers + i - 1) - 1;
}

/*
 * The function from the parameter of the block before to a block's own. A block keeps a parameter that is not dearer
 * than its best by more than the five bits that another one takes, and these are lowest..highest, because the cost is
 * convex. A parameter from below goes up to the first of the best ones, one from above down to the last.
 */
__device__ __forceinline__ u32 rice_function(u32 lowest, u32 highest, u32 first_best, u32 last_best) {
  return lowest | highest << 5 | first_best << 10 | last_best << 15;
}
__device__ __forceinline__ u32 rice_apply(u32 function, u32 before) {
  if (before < (function & 31)) return function >> 10 & 31;
  return before > (function >> 5 & 31) ? function >> 15 & 31 : before;
}

}  // namespace zps

#endif
