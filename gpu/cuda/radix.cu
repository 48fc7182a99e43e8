/*
 * Stable sort by digits of eight bits, least significant first. Each pass looks at the entries twice: tiles count
 * theirs by digit, sums over these counts, digit by digit and tile by tile, are places, and each tile then takes its
 * entries there, in order.
 */
#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum { ITEMS = 8, WARP_ITEMS = WARP * ITEMS, TILE_ITEMS = WARP_ITEMS * WARPS, NO_BIN = RADIX_BINS };
static_assert(+RADIX_BINS == +THREADS, "a thread looks after a bin");

__device__ __forceinline__ u64 entries(const u64 *count, u64 capacity) {
  return *count < capacity ? *count : capacity;
}

/* A digit of a pass: its place in the key, and how many values it has. */
struct Digit {
  u32 shift, bins;
};

template <typename Key>
__device__ __forceinline__ u32 digit_of(Key key, u32 shift) {
  return static_cast<u32>(key >> shift) & (RADIX_BINS - 1);
}

struct DigitCounts {
  u32 of[RADIX_BINS];
};

/* Counts each tile's entries by digit, into counts[digit * n_tiles + tile]. */
template <typename Key>
__global__ void __launch_bounds__(THREADS)
    radix_count_kernel(const Key *keys, const u64 *count, u64 capacity, Digit digit, u64 n_tiles, u64 *counts) {
  ZPS_SHARED(DigitCounts, mine);
  const u64 n = entries(count, capacity);
  for (u64 tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
    mine.of[threadIdx.x] = 0;
    __syncthreads();
    Key keys_here[ITEMS];
    ZPS_UNROLL
    for (u32 j = 0; j < ITEMS; j++) {
      const u64 i = tile * TILE_ITEMS + j * THREADS + threadIdx.x;
      keys_here[j] = i < n ? keys[i] : 0;
    }
    ZPS_UNROLL
    for (u32 j = 0; j < ITEMS; j++) {
      /* Equal digits of a warp are counted by one lane: with few partitions all lanes would add to the same bin. */
      const bool is_there = tile * TILE_ITEMS + j * THREADS + threadIdx.x < n;
      const u32 bin = is_there ? digit_of(keys_here[j], digit.shift) : static_cast<u32>(NO_BIN);
      const u32 peers = __match_any_sync(ALL, bin);
      if (is_there && (peers & lanes_below()) == 0) atomicAdd(&mine.of[bin], static_cast<u32>(__popc(peers)));
    }
    __syncthreads();
    if (threadIdx.x < digit.bins) counts[threadIdx.x * n_tiles + tile] = mine.of[threadIdx.x];
    __syncthreads();
  }
}

template <typename Key>
struct Tile {
  BlockSums sums;
  u32 counts[WARPS][RADIX_BINS + 1]; /* the last one for entries that are not there */
  u32 starts[RADIX_BINS];            /* of the bins, within the tile */
  u64 places[RADIX_BINS];            /* less these */
  Key keys[TILE_ITEMS];
  u32 a[TILE_ITEMS], b[TILE_ITEMS];
};

template <typename Key>
__global__ void __launch_bounds__(THREADS) radix_pass_kernel(Columns<Key> from, Columns<Key> to, const u64 *count,
                                                             u64 capacity, Digit digit, u64 stride, const u64 *places) {
  ZPS_SHARED(Tile<Key>, shared);
  const u64 n = entries(count, capacity), n_tiles = (n + TILE_ITEMS - 1) / TILE_ITEMS;
  const u32 warp = warp_of_thread(), lane = lane_of_thread();
  for (u64 tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
    const u64 first = tile * TILE_ITEMS + warp * WARP_ITEMS + lane;
    Key keys[ITEMS];
    u32 a[ITEMS], b[ITEMS], bins[ITEMS], ranks[ITEMS];
    for (u32 i = lane; i <= RADIX_BINS; i += WARP) shared.counts[warp][i] = 0;
    ZPS_UNROLL
    for (u32 j = 0; j < ITEMS; j++) {
      const u64 i = first + j * WARP;
      keys[j] = i < n ? from.keys[i] : 0;
      a[j] = i < n ? from.a[i] : 0;
      b[j] = i < n && from.b ? from.b[i] : 0;
      bins[j] = i < n ? digit_of(keys[j], digit.shift) : static_cast<u32>(NO_BIN);
    }
    const u64 place = threadIdx.x < digit.bins ? places[threadIdx.x * stride + tile] : 0;
    __syncwarp();
    ZPS_UNROLL
    for (u32 j = 0; j < ITEMS; j++) {
      const u32 peers = __match_any_sync(ALL, bins[j]), before = static_cast<u32>(__popc(peers & lanes_below()));
      const u32 so_far = shared.counts[warp][bins[j]];
      ranks[j] = so_far + before;
      __syncwarp();
      if (before == 0) shared.counts[warp][bins[j]] = so_far + static_cast<u32>(__popc(peers));
      __syncwarp();
    }
    __syncthreads();
    u32 sum = 0;
    for (u32 i = 0; i < WARPS; i++) {
      const u32 of_warp = shared.counts[i][threadIdx.x];
      shared.counts[i][threadIdx.x] = sum;
      sum += of_warp;
    }
    u64 all;
    const u32 start = static_cast<u32>(block_prefix(sum, &shared.sums, &all));
    shared.starts[threadIdx.x] = start;
    shared.places[threadIdx.x] = place - start;
    __syncthreads();
    /* Put in order here first, so that neighbours write to neighbouring places. */
    ZPS_UNROLL
    for (u32 j = 0; j < ITEMS; j++) {
      if (bins[j] == NO_BIN) continue;
      const u32 at = shared.starts[bins[j]] + shared.counts[warp][bins[j]] + ranks[j];
      shared.keys[at] = keys[j];
      shared.a[at] = a[j];
      shared.b[at] = b[j];
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < all; i += THREADS) {
      const Key key = shared.keys[i];
      const u64 at = shared.places[digit_of(key, digit.shift)] + i;
      to.keys[at] = key;
      to.a[at] = shared.a[i];
      if (to.b) to.b[at] = shared.b[i];
    }
    __syncthreads();
  }
}

u64 tiles_of(u64 n) {
  return (n + TILE_ITEMS - 1) / TILE_ITEMS;
}

}  // namespace

u64 radix_space(u64 capacity) {
  return scan_space(tiles_of(capacity) * RADIX_BINS);
}

template <typename Key>
bool radix_sort(cudaStream_t stream, const Grid &grid, const Columns<Key> &from, const Columns<Key> &to,
                const u64 *count, u64 capacity, const RadixDigits &digits, u64 *space) {
  const u64 n_tiles = tiles_of(capacity);
  const u32 blocks = blocks_for(grid, capacity, TILE_ITEMS);
  for (u32 d = 0; d < digits.n; d++) {
    const Digit digit = {digits.shifts[d], digits.bins[d]};
    const Columns<Key> &source = d % 2 ? to : from, &target = d % 2 ? from : to;
    ZPS_LAUNCH(stream, blocks, THREADS, radix_count_kernel<Key>, source.keys, count, capacity, digit, n_tiles, space);
    scan_in_place(stream, grid, space, digit.bins * n_tiles);
    ZPS_LAUNCH(stream, blocks, THREADS, radix_pass_kernel<Key>, source, target, count, capacity, digit, n_tiles, space);
  }
  return digits.n % 2 != 0;
}

template bool radix_sort<uint16_t>(cudaStream_t, const Grid &, const Columns<uint16_t> &, const Columns<uint16_t> &,
                                   const u64 *, u64, const RadixDigits &, u64 *);
template bool radix_sort<u64>(cudaStream_t, const Grid &, const Columns<u64> &, const Columns<u64> &, const u64 *, u64,
                              const RadixDigits &, u64 *);

}  // namespace zps
