#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum { TILE_VALUES = THREADS };

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

}  // namespace zps
