#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum { TILE_VALUES = THREADS, SPACE_ITEMS = 16, SPACE_TILE = THREADS * SPACE_ITEMS };

template <typename T>
__global__ void __launch_bounds__(THREADS)
    scan_kernel(const T *in, const u64 *count, u64 n_known, u64 *out, Tickets *tickets, u64 *states) {
  ZPS_SHARED(BlockSums, sums);
  ZPS_SHARED(u64, ticket);
  const u64 n = count ? *count : n_known, n_tiles = n / TILE_VALUES + 1; /* the total has a place of its own */
  for (u64 tile; (tile = take_tile(tickets, &ticket)) < n_tiles;) {
    const u64 i = tile * TILE_VALUES + threadIdx.x;
    u64 all;
    const u64 before = grid_prefix(i < n ? static_cast<u64>(in[i]) : 0, &sums, states, tile, &all);
    if (i <= n) out[i] = before;
  }
}

__global__ void __launch_bounds__(THREADS) space_sums_kernel(const u64 *values, u64 n, u64 *tile_sums) {
  ZPS_SHARED(BlockSums, sums);
  for (u64 tile = blockIdx.x; tile * SPACE_TILE < n; tile += gridDim.x) {
    u64 mine = 0, total;
    for (u32 j = 0; j < SPACE_ITEMS; j++) {
      const u64 i = tile * SPACE_TILE + j * THREADS + threadIdx.x;
      if (i < n) mine += values[i];
    }
    (void)block_prefix(mine, &sums, &total);
    if (threadIdx.x == 0) tile_sums[tile] = total;
    __syncthreads();
  }
}

/* A block adds up the tiles before its own, which are few, and needs to wait for none. */
__global__ void __launch_bounds__(THREADS) space_scan_kernel(u64 *values, u64 n, const u64 *tile_sums) {
  ZPS_SHARED(BlockSums, sums);
  for (u64 tile = blockIdx.x; tile * SPACE_TILE <= n; tile += gridDim.x) {
    u64 before = 0, base;
    for (u64 other = threadIdx.x; other < tile; other += THREADS) before += tile_sums[other];
    (void)block_prefix(before, &sums, &base);
    __syncthreads();
    const u64 first = tile * SPACE_TILE + threadIdx.x * SPACE_ITEMS;
    u64 mine[SPACE_ITEMS], sum = 0, total;
    ZPS_UNROLL
    for (u32 j = 0; j < SPACE_ITEMS; j++) sum += mine[j] = first + j < n ? values[first + j] : 0;
    u64 at = base + block_prefix(sum, &sums, &total);
    ZPS_UNROLL
    for (u32 j = 0; j < SPACE_ITEMS; j++) {
      if (first + j <= n) values[first + j] = at;
      at += mine[j];
    }
    __syncthreads();
  }
}

}  // namespace

u64 scan_tiles(u64 n) {
  return n / TILE_VALUES + 1;
}

void scan_u32(cudaStream_t stream, const Grid &grid, const u32 *in, const u64 *count, u64 n, u64 *out, Tickets *tickets,
              u64 *states) {
  ZPS_LAUNCH(stream, blocks_for(grid, n + 1, TILE_VALUES), THREADS, scan_kernel<u32>, in, count, n, out, tickets,
             states);
}

void scan_u64(cudaStream_t stream, const Grid &grid, const u64 *in, const u64 *count, u64 n, u64 *out, Tickets *tickets,
              u64 *states) {
  ZPS_LAUNCH(stream, blocks_for(grid, n + 1, TILE_VALUES), THREADS, scan_kernel<u64>, in, count, n, out, tickets,
             states);
}

u64 scan_space(u64 n) {
  return n + 1 + n / SPACE_TILE + 1;
}

void scan_in_place(cudaStream_t stream, const Grid &grid, u64 *space, u64 n) {
  u64 *const tile_sums = space + n + 1;
  ZPS_LAUNCH(stream, blocks_for(grid, n, SPACE_TILE), THREADS, space_sums_kernel, space, n, tile_sums);
  ZPS_LAUNCH(stream, blocks_for(grid, n + 1, SPACE_TILE), THREADS, space_scan_kernel, space, n, tile_sums);
}

}  // namespace zps
