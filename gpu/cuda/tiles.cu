/*
 * Rows that are smaller than a sector of memory, into a dense array: tile after tile of the array, so that the sectors
 * of a tile are written while the cache has them. In order of the views, each of which has rows everywhere, every
 * sector would be fetched and written back as often as it has rows.
 *
 * A tile is some consecutive groups of a stripe (partition.h): the same indices of each of the stripe's partitions.
 */
#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum { SECTOR_BYTES = 32, TILE_BYTES = 65536, GROUPS_MAX = 4096 };

/* The rows of a tile: those of several views, one after the other. */
struct Stretches {
  BlockSums sums;
  zps_device_view views[THREADS];
  u64 places[THREADS];  /* of the first of them in its view, less the start */
  u64 indices[THREADS]; /* of that one's index in the list of all, less the start */
  u32 starts[THREADS];
  uint16_t rotations[GROUPS_MAX];
};

/* The number of indices below `bound`, of n that ascend, when `low` of them are known to be. Looks ahead in growing
 * steps; indices that do not ascend lead to some number up to n. */
__device__ __forceinline__ u32 indices_below(const u32 *indices, u32 n, u32 low, u64 bound) {
  u32 high = n;
  for (u32 step = 4; low < high; step *= 4) {
    const u32 at = n - low > step ? low + step : n - 1;
    if (indices[at] >= bound) {
      high = at;
      break;
    }
    low = at + 1;
  }
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (indices[middle] < bound)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* How tiles are cut: 2^bits indices of each partition. */
struct Tiling {
  u32 bits;
  u64 of_stripe; /* tiles */
};

template <typename T>
__global__ void __launch_bounds__(THREADS) scatter_tiles_kernel(Reading reading, Tiling tiling, T *dense) {
  ZPS_SHARED(Stretches, shared);
  const zps_partition &part = reading.part;
  const u32 block_bits = part.block_bits, parts = part.stripe_parts, n_groups = 1u << (tiling.bits - block_bits);
  const u64 n_tiles = tiling.of_stripe << part.stripe_bits, per_block = (n_tiles + gridDim.x - 1) / gridDim.x;
  u64 tile = blockIdx.x * per_block;
  const u64 end = tile + per_block < n_tiles ? tile + per_block : n_tiles;
  u32 before = 0; /* rows of this thread's view in the tiles before, where these were the last ones looked at */
  for (u64 last = ~0ull; tile < end; last = tile++) {
    const u32 stripe = static_cast<u32>(tile / tiling.of_stripe);
    const u64 in_stripe = tile % tiling.of_stripe, first = in_stripe << tiling.bits, first_group = first >> block_bits,
              bound = (in_stripe + 1) << tiling.bits;
    for (u32 g = threadIdx.x; g < n_groups; g += THREADS)
      shared.rotations[g] = static_cast<uint16_t>(zps_partition_rotation(&part, stripe, first_group + g));
    for (u32 views = 0; views < reading.n_views; views += THREADS) {
      const u32 v = views + threadIdx.x;
      u64 n = 0, all, low = 0;
      zps_device_view view = {};
      if (v < reading.n_views) view = reading.views[v];
      if (v < reading.n_views && zps_partition_stripe_of(&part, view.partition) == stripe) {
        const u32 *const indices = reading.indices + reading.starts[v];
        const bool goes_on = reading.n_views <= THREADS && tile == last + 1 && in_stripe > 0;
        low = goes_on ? before : indices_below(indices, view.nnz, 0, first);
        before = indices_below(indices, view.nnz, static_cast<u32>(low), bound);
        n = before - low;
        view.partition -= stripe * parts;
      }
      const u64 start = block_prefix(n, &shared.sums, &all);
      shared.views[threadIdx.x] = view;
      shared.starts[threadIdx.x] = static_cast<u32>(start);
      shared.places[threadIdx.x] = low - start;
      shared.indices[threadIdx.x] = (v < reading.n_views ? reading.starts[v] : 0) + low - start;
      __syncthreads();
      const u32 n_here = reading.n_views - views < THREADS ? reading.n_views - views : +THREADS;
      for (u32 i = threadIdx.x; i < all; i += THREADS) {
        const u32 w = find_start(shared.starts, n_here, i);
        const u32 index = reading.indices[shared.indices[w] + i],
                  group = (index >> block_bits) - static_cast<u32>(first_group);
        if (group >= n_groups) continue; /* of a view whose indices do not ascend */
        const u32 rotation = shared.rotations[group], p = shared.views[w].partition;
        const u32 position = p >= rotation ? p - rotation : p + parts - rotation;
        const u64 block = (first_group + group) * parts + position;
        const u64 row =
            zps_partition_stripe_row(&part, stripe, block << block_bits | (index & ((1u << block_bits) - 1)));
        if (row >= part.rows) continue;
        T *const to = dense + row * reading.width;
        const u64 place = shared.places[w] + i;
        for (u32 c = 0; c < reading.width; c++) to[c] = view_value<T>(reading, shared.views[w], place, c);
      }
      __syncthreads();
    }
  }
}

}  // namespace

bool rows_share_sectors(const Reading &reading) {
  return reading.width * reading.value_bytes < SECTOR_BYTES && !zps_partition_is_hashed(&reading.part) &&
         reading.part.block_bits < 16;
}

void scatter_tiles(cudaStream_t stream, const Grid &grid, const Reading &reading, void *dense) {
  const zps_partition &part = reading.part;
  const u64 group_bytes =
      (static_cast<u64>(part.stripe_parts) << part.block_bits) * reading.width * reading.value_bytes;
  u32 bits = part.block_bits;
  while (1u << (bits - part.block_bits) < GROUPS_MAX && group_bytes << (bits - part.block_bits + 1) <= TILE_BYTES)
    bits++;
  const Tiling tiling = {bits, ((part.n_groups << part.block_bits) + (1ull << bits) - 1) >> bits};
  by_dtype(reading.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, tiling.of_stripe << part.stripe_bits, 1), THREADS, scatter_tiles_kernel<T>,
               reading, tiling, static_cast<T *>(dense));
  });
}

}  // namespace zps
