/*
 * Sums over warps, blocks and the whole grid.
 *
 * Over the grid by decoupled look-back: blocks take tiles by ticket, in order, so that every tile before one's own is
 * done or being worked on by a block that is running; each publishes its sum, looks back until it meets one whose
 * prefix is known, and publishes its own prefix. State and value share a word: a block that sees the state sees the
 * value.
 */
#ifndef ZPS_GPU_CUDA_SCAN_CUH
#define ZPS_GPU_CUDA_SCAN_CUH

#include "gpu/cuda/port.cuh"

namespace zps {

template <typename T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL, value, step);
  return value;
}

template <typename T>
__device__ __forceinline__ T warp_min(T value) {
  for (int step = WARP / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(ALL, value, step);
    value = other < value ? other : value;
  }
  return value;
}

/* The sum of the lanes before this one; `total_p` gets that of all. */
template <typename T>
__device__ __forceinline__ T warp_prefix(T value, T *total_p) {
  T sum = value;
  for (u32 step = 1; step < WARP; step *= 2) {
    const T other = __shfl_up_sync(ALL, sum, step);
    if (lane_of_thread() >= step) sum += other;
  }
  *total_p = __shfl_sync(ALL, sum, WARP - 1);
  return sum - value;
}

struct BlockSums {
  u64 warps[WARPS];
  u64 base, total;
};

/* The sum of the threads before this one in a block of THREADS, for a value that is not negative. All threads call it;
 * `sums` may be used again after the next barrier. */
__device__ __forceinline__ u64 block_prefix(u64 value, BlockSums *sums, u64 *total_p) {
  u64 total;
  const u64 prefix = warp_prefix(value, &total);
  if (lane_of_thread() == 0) sums->warps[warp_of_thread()] = total;
  __syncthreads();
  u64 before = 0;
  total = 0;
  for (u32 i = 0; i < WARPS; i++) {
    if (i == warp_of_thread()) before = total;
    total += sums->warps[i];
  }
  *total_p = total;
  return before + prefix;
}

/* Of a grid's tiles; all zero when a kernel starts. */
struct Tickets {
  u64 next;
};
enum : u64 { TILE_SUM = 1ull << 62, TILE_PREFIX = 2ull << 62, TILE_VALUE = TILE_SUM - 1 };

/* The next tile, the same for all threads of the block. */
__device__ __forceinline__ u64 take_tile(Tickets *tickets, u64 *shared) {
  __syncthreads(); /* all are through with the tile before, and with *shared */
  if (threadIdx.x == 0) *shared = atomicAdd(&tickets->next, static_cast<u64>(1));
  __syncthreads();
  return *shared;
}

/* The sum of all tiles before `tile`; called by one whole warp. */
__device__ __forceinline__ u64 look_back(u64 *states, u64 tile, u64 sum) {
  const u32 lane = lane_of_thread();
  if (tile == 0) {
    if (lane == 0) racy_store(&states[0], static_cast<u64>(TILE_PREFIX | sum));
    return 0;
  }
  if (lane == 0) racy_store(&states[tile], static_cast<u64>(TILE_SUM | sum));
  u64 before = 0;
  for (u64 end = tile;; end -= WARP) { /* lane 0 looks at the nearest one */
    const bool is_there = end > lane;
    u64 state = 0;
    for (;;) {
      if (is_there) state = racy_load(&states[end - 1 - lane]);
      if (__all_sync(ALL, !is_there || state >= TILE_SUM)) break;
    }
    const u32 known = __ballot_sync(ALL, state >= TILE_PREFIX);
    const u32 last = known ? static_cast<u32>(__ffs(static_cast<int>(known))) - 1 : WARP - 1;
    before += warp_sum(lane <= last ? state & TILE_VALUE : 0ull);
    if (known) break;
  }
  if (lane == 0) racy_store(&states[tile], static_cast<u64>(TILE_PREFIX | (before + sum)));
  return before;
}

/* As block_prefix(), over all tiles up to this one. `total_p` gets the sum of the tiles up to and with this one. */
__device__ __forceinline__ u64 grid_prefix(u64 value, BlockSums *sums, u64 *states, u64 tile, u64 *total_p) {
  u64 total;
  const u64 prefix = block_prefix(value, sums, &total);
  if (warp_of_thread() == 0) {
    const u64 base = look_back(states, tile, total);
    if (lane_of_thread() == 0) sums->base = base;
  }
  __syncthreads();
  *total_p = sums->base + total;
  return sums->base + prefix;
}

/* The greatest i in [0, n) with starts[i] <= at; starts[0] <= at, ascending. */
template <typename T>
__device__ __forceinline__ u32 find_start(const T *starts, u32 n, T at) {
  u32 low = 0;
  while (n > 1) {
    const u32 half = n / 2;
    if (starts[low + half] <= at) low += half;
    n -= half;
  }
  return low;
}

/* The j-th number that is not among the n ascending ones: it has those of them before it that are not greater than j
 * plus how many these are. */
__device__ __forceinline__ u32 complement_at(const u32 *numbers, u32 n, u32 j) {
  u32 low = 0, high = n; /* how many are smaller */
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (numbers[middle] - middle <= j)
      low = middle + 1;
    else
      high = middle;
  }
  return j + low;
}

}  // namespace zps

#endif
