/*
 * Rows that are smaller than a sector of memory, into a dense array: tile after tile of the array, so that the sectors
 * of a tile are written while the cache has them. In order of the views, each of which has rows everywhere, every
 * sector would be fetched and written back as often as it has rows.
 */
#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum { SECTOR_BYTES = 32, TILE_BYTES = 65536, ROWS_PER_PART = 256 };

/* Rows of several views, one after the other. */
struct Stretches {
  BlockSums sums;
  u64 from[THREADS]; /* of the first of them, less the start */
  u32 starts[THREADS];
};

/* The number of the first n indices, which ascend, that are below `index`. They are spread evenly, more or less, so
 * that a look nearby finds most; indices that do not ascend lead to some number up to n. */
__device__ __forceinline__ u32 indices_below(const u32 *indices, u32 n, u32 index, u32 size) {
  if (n == 0 || index >= size) return n;
  const u32 guess = static_cast<u32>(static_cast<u64>(n) * index / size);
  u32 low = 0, high = n, step = 16;
  if (guess < n && indices[guess] < index) {
    for (low = guess + 1; low < n && step < n; step *= 4) {
      const u32 at = n - low > step ? low + step : n;
      if (at == n) break;
      if (indices[at] >= index) {
        high = at;
        break;
      }
      low = at + 1;
    }
  } else {
    for (high = guess < n ? guess : n; high > 0 && step < n; step *= 4) {
      const u32 at = high > step ? high - step : 0;
      if (indices[at] < index) {
        low = at + 1;
        break;
      }
      high = at;
    }
  }
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (indices[middle] < index)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* A tile is 2^tile_bits rows, all of them of one stripe. */
template <typename T>
__global__ void __launch_bounds__(THREADS) scatter_tiles_kernel(Reading reading, u32 tile_bits, T *dense) {
  ZPS_SHARED(Stretches, shared);
  const zps_partition &part = reading.part;
  for (u64 tile = blockIdx.x; tile << tile_bits < part.rows; tile += gridDim.x) {
    const u64 first = tile << tile_bits, end = first + (1ull << tile_bits);
    const u32 stripe = static_cast<u32>(first >> part.chunk_bits) & (zps_partition_stripes(&part) - 1);
    const u64 inner = zps_partition_stripe_rows(&part, stripe, first),
              inner_end = zps_partition_stripe_rows(&part, stripe, end < part.rows ? end : part.rows);
    for (u32 views = 0; views < reading.n_views; views += THREADS) {
      const u32 v = views + threadIdx.x;
      u64 n = 0, all, from = 0;
      if (v < reading.n_views && zps_partition_stripe_of(&part, reading.views[v].partition) == stripe) {
        const u32 p = reading.views[v].partition, nnz = reading.views[v].nnz, size = zps_partition_size(&part, p);
        const u32 *const indices = reading.indices + reading.starts[v];
        const u32 low = indices_below(indices, nnz, zps_partition_indices_below(&part, p, inner), size);
        const u32 high = indices_below(indices, nnz, zps_partition_indices_below(&part, p, inner_end), size);
        from = reading.starts[v] + low;
        n = high > low ? high - low : 0;
      }
      const u64 start = block_prefix(n, &shared.sums, &all);
      shared.starts[threadIdx.x] = static_cast<u32>(start);
      shared.from[threadIdx.x] = from - start;
      __syncthreads();
      const u32 n_here = reading.n_views - views < THREADS ? reading.n_views - views : +THREADS;
      for (u32 i = threadIdx.x; i < all; i += THREADS) {
        const u32 w = find_start(shared.starts, n_here, i);
        const u64 at = shared.from[w] + i, place = at - reading.starts[views + w];
        const zps_device_view view = reading.views[views + w];
        const u32 index = reading.indices[at];
        if (index >= zps_partition_size(&part, view.partition)) continue;
        T *const to = dense + zps_partition_row(&part, view.partition, index) * reading.width;
        for (u32 c = 0; c < reading.width; c++) to[c] = view_value<T>(reading, view, place, c);
      }
      __syncthreads();
    }
  }
}

}  // namespace

bool rows_share_sectors(const Reading &reading) {
  return reading.width * reading.value_bytes < SECTOR_BYTES && !zps_partition_is_hashed(&reading.part);
}

void scatter_tiles(cudaStream_t stream, const Grid &grid, const Reading &reading, void *dense) {
  const zps_partition &part = reading.part;
  u32 tile_bits = 0;
  while (tile_bits < part.chunk_bits && (2ull << tile_bits) * reading.width * reading.value_bytes <= TILE_BYTES)
    tile_bits++;
  /* Of many partitions each has few rows in a tile, and looking for them costs the most. */
  while (tile_bits < part.chunk_bits && 1ull << tile_bits < static_cast<u64>(part.stripe_parts) * ROWS_PER_PART &&
         (2ull << tile_bits) * reading.width * reading.value_bytes <= 4ull * TILE_BYTES)
    tile_bits++;
  by_dtype(reading.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, part.rows, 1ull << tile_bits), THREADS, scatter_tiles_kernel<T>, reading,
               tile_bits, static_cast<T *>(dense));
  });
}

}  // namespace zps
