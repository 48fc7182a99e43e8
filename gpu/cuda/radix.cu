/*
 * Stable sort by digits of eight bits, least significant first; each pass reads the entries once. A tile's entries are
 * counted by digit, each digit's count looks back over the tiles on its own, and the entries go straight to their
 * place.
 */
#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum { ITEMS = 8, WARP_ITEMS = WARP * ITEMS, TILE_ITEMS = WARP_ITEMS * WARPS, NO_BIN = RADIX_BINS };
static_assert(+RADIX_BINS == +THREADS, "a thread looks after a bin");

struct DigitCounts {
  u32 bins[RADIX_PASSES_MAX][RADIX_BINS];
};

__device__ __forceinline__ u64 entries(const u64 *count, u64 capacity) {
  return *count < capacity ? *count : capacity;
}

template <typename Key>
__device__ __forceinline__ u32 digit_of(Key key, u32 shift) {
  return static_cast<u32>(key >> shift) & (RADIX_BINS - 1);
}

/* Counts the entries by digit, for all passes at once. */
template <typename Key>
__global__ void __launch_bounds__(THREADS)
    radix_count_kernel(const Key *keys, const u64 *count, u64 capacity, RadixDigits digits, u64 *counts) {
  ZPS_SHARED(DigitCounts, mine);
  const u64 n = entries(count, capacity), stride = gridDim.x * static_cast<u64>(THREADS);
  for (u32 d = 0; d < digits.n; d++) mine.bins[d][threadIdx.x] = 0;
  __syncthreads();
  for (u64 first = blockIdx.x * static_cast<u64>(THREADS); first < n; first += stride) {
    const u64 i = first + threadIdx.x;
    const bool is_there = i < n;
    const Key key = is_there ? keys[i] : 0;
    for (u32 d = 0; d < digits.n; d++) {
      /* Equal digits of a warp are counted by one lane: with few partitions all lanes would add to the same bin. */
      const u32 digit = is_there ? digit_of(key, digits.shifts[d]) : static_cast<u32>(NO_BIN);
      const u32 peers = __match_any_sync(ALL, digit);
      if (is_there && (peers & lanes_below()) == 0) atomicAdd(&mine.bins[d][digit], static_cast<u32>(__popc(peers)));
    }
  }
  __syncthreads();
  for (u32 d = 0; d < digits.n; d++) {
    const u32 n_mine = mine.bins[d][threadIdx.x];
    if (n_mine) atomicAdd(&counts[d * RADIX_BINS + threadIdx.x], static_cast<u64>(n_mine));
  }
}

/* Counts become places: a block for each pass. */
__global__ void __launch_bounds__(THREADS) radix_place_kernel(u64 *counts) {
  ZPS_SHARED(BlockSums, sums);
  u64 *const at = &counts[blockIdx.x * RADIX_BINS + threadIdx.x], total;
  *at = block_prefix(*at, &sums, &total);
}

struct Tile {
  u32 counts[WARPS][RADIX_BINS + 1]; /* the last one for entries that are not there */
  u64 bases[RADIX_BINS];
  u64 ticket;
};

/* The number of entries of this bin in the tiles before; called by each thread for its own bin. */
__device__ __forceinline__ u64 look_back_bin(u64 *states, u64 tile, u64 n) {
  u64 *const mine = &states[tile * RADIX_BINS + threadIdx.x];
  if (tile == 0) {
    racy_store(mine, static_cast<u64>(TILE_PREFIX | n));
    return 0;
  }
  racy_store(mine, static_cast<u64>(TILE_SUM | n));
  u64 before = 0;
  for (u64 other = tile; other-- > 0;) {
    u64 state;
    do {
      state = racy_load(&states[other * RADIX_BINS + threadIdx.x]);
    } while (state < TILE_SUM);
    before += state & TILE_VALUE;
    if (state >= TILE_PREFIX) break;
  }
  racy_store(mine, static_cast<u64>(TILE_PREFIX | (before + n)));
  return before;
}

template <typename Key>
__global__ void __launch_bounds__(THREADS)
    radix_pass_kernel(Columns<Key> from, Columns<Key> to, const u64 *count, u64 capacity, u32 shift, const u64 *places,
                      Tickets *tickets, u64 *states) {
  ZPS_SHARED(Tile, shared);
  const u64 n = entries(count, capacity), n_tiles = (n + TILE_ITEMS - 1) / TILE_ITEMS;
  const u32 warp = warp_of_thread(), lane = lane_of_thread();
  for (u64 tile; (tile = take_tile(tickets, &shared.ticket)) < n_tiles;) {
    const u64 first = tile * TILE_ITEMS + warp * WARP_ITEMS + lane;
    Key keys[ITEMS];
    u32 bins[ITEMS], ranks[ITEMS];
    for (u32 i = lane; i <= RADIX_BINS; i += WARP) shared.counts[warp][i] = 0;
    ZPS_UNROLL
    for (u32 j = 0; j < ITEMS; j++) {
      const u64 i = first + j * WARP;
      keys[j] = i < n ? from.keys[i] : 0;
      bins[j] = i < n ? digit_of(keys[j], shift) : static_cast<u32>(NO_BIN);
    }
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
    shared.bases[threadIdx.x] = places[threadIdx.x] + look_back_bin(states, tile, sum);
    __syncthreads();
    ZPS_UNROLL
    for (u32 j = 0; j < ITEMS; j++) {
      const u64 i = first + j * WARP;
      if (i >= n) continue;
      const u64 place = shared.bases[bins[j]] + shared.counts[warp][bins[j]] + ranks[j];
      to.keys[place] = keys[j];
      to.a[place] = from.a[i];
      if (from.b) to.b[place] = from.b[i];
    }
  }
}

}  // namespace

u64 radix_tiles(u64 n) {
  return (n + TILE_ITEMS - 1) / TILE_ITEMS;
}

template <typename Key>
bool radix_sort(cudaStream_t stream, const Grid &grid, const Columns<Key> &from, const Columns<Key> &to,
                const u64 *count, u64 capacity, const RadixDigits &digits, const RadixScratch &scratch) {
  if (digits.n == 0) return false;
  const u64 states_bytes = radix_tiles(capacity) * RADIX_BINS * sizeof(u64);
  cudaMemsetAsync(scratch.counts, 0, RADIX_PASSES_MAX * RADIX_BINS * sizeof(u64), stream);
  cudaMemsetAsync(scratch.tickets, 0, RADIX_PASSES_MAX * sizeof(Tickets), stream);
  ZPS_LAUNCH(stream, blocks_for(grid, capacity, TILE_ITEMS), THREADS, radix_count_kernel<Key>, from.keys, count,
             capacity, digits, scratch.counts);
  ZPS_LAUNCH(stream, digits.n, THREADS, radix_place_kernel, scratch.counts);
  for (u32 d = 0; d < digits.n; d++) {
    cudaMemsetAsync(scratch.states, 0, states_bytes, stream);
    ZPS_LAUNCH(stream, blocks_for(grid, capacity, TILE_ITEMS), THREADS, radix_pass_kernel<Key>, d % 2 ? to : from,
               d % 2 ? from : to, count, capacity, digits.shifts[d], scratch.counts + d * RADIX_BINS,
               scratch.tickets + d, scratch.states);
  }
  return digits.n % 2 != 0;
}

template bool radix_sort<uint16_t>(cudaStream_t, const Grid &, const Columns<uint16_t> &, const Columns<uint16_t> &,
                                   const u64 *, u64, const RadixDigits &, const RadixScratch &);
template bool radix_sort<u64>(cudaStream_t, const Grid &, const Columns<u64> &, const Columns<u64> &, const u64 *, u64,
                              const RadixDigits &, const RadixScratch &);

}  // namespace zps
