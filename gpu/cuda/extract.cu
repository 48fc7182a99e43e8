/* From a dense gradient to the list of its rows that are not zero. One look at the gradient, in tiles, in order. */
#include "gpu/cuda/emit.cuh"
#include "gpu/cuda/kernels.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

namespace {

/* A thread looks at VECTORS times four rows, a warp at stretches of 128 rows, so that loads are side by side. */
enum { VECTORS = 4, PER_LOAD = 4, WARP_ROWS = WARP * PER_LOAD * VECTORS, TILE_ROWS = WARP_ROWS * WARPS };

__device__ __forceinline__ uint4 load_four(const u32 *values, u64 row, u64 rows, bool is_aligned) {
  if (is_aligned && row + PER_LOAD <= rows) return *reinterpret_cast<const uint4 *>(values + row);
  uint4 four = {0, 0, 0, 0};
  if (row < rows) four.x = values[row];
  if (row + 1 < rows) four.y = values[row + 1];
  if (row + 2 < rows) four.z = values[row + 2];
  if (row + 3 < rows) four.w = values[row + 3];
  return four;
}

__global__ void __launch_bounds__(THREADS) extract_singles_kernel(const u32 *values, u32 mask, zps_partition part,
                                                                  Found found, Tickets *tickets, u64 *states) {
  ZPS_SHARED(BlockSums, sums);
  ZPS_SHARED(u64, ticket);
  const u64 n_tiles = (part.rows + TILE_ROWS - 1) / TILE_ROWS;
  const bool is_aligned = reinterpret_cast<uintptr_t>(values) % sizeof(uint4) == 0;
  for (u64 tile; (tile = take_tile(tickets, &ticket)) < n_tiles;) {
    const u64 first = tile * TILE_ROWS + warp_of_thread() * WARP_ROWS + lane_of_thread() * PER_LOAD;
    uint4 fours[VECTORS];
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++) fours[v] = load_four(values, first + v * WARP * PER_LOAD, part.rows, is_aligned);

    /* One count per stretch, in a byte each: a stretch has 128 rows. */
    u32 counts = 0;
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++) {
      const u32 n = ((fours[v].x & mask) != 0) + ((fours[v].y & mask) != 0) + ((fours[v].z & mask) != 0) +
                    ((fours[v].w & mask) != 0);
      counts |= n << 8 * v;
    }
    u32 totals;
    const u32 prefixes = warp_prefix(counts, &totals);
    u32 total = 0;
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++) total += totals >> 8 * v & 255;
    u64 all;
    const u64 prefix = grid_prefix(lane_of_thread() == 0 ? total : 0, &sums, states, tile, &all);
    u64 place = __shfl_sync(ALL, prefix, 0);
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++) {
      const u32 words[PER_LOAD] = {fours[v].x, fours[v].y, fours[v].z, fours[v].w};
      u64 at = place + (prefixes >> 8 * v & 255);
      ZPS_UNROLL
      for (u32 i = 0; i < PER_LOAD; i++) {
        if (!(words[i] & mask)) continue;
        emit_row(found, at++, part, first + v * WARP * PER_LOAD + i, words[i]);
      }
      place += totals >> 8 * v & 255;
    }
    if (tile == n_tiles - 1 && threadIdx.x == 0) *found.count = all;
  }
}

/* A warp makes a word. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    mark_rows_kernel(const T *values, u32 width, u64 rows, u32 lanes, u32 *bits) {
  const u64 n_words = (rows + WARP - 1) / WARP;
  for (u64 word = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); word < n_words;
       word += gridDim.x * static_cast<u64>(WARPS)) {
    const u32 marks = mark_word(lanes, [=](u32 i, u32 lane) {
      const u64 row = word * WARP + i;
      bool any = false;
      if (row < rows)
        for (u32 c = lane; c < width; c += lanes) any |= !is_zero(values[row * width + c]);
      return any;
    });
    if (lane_of_thread() == 0) bits[word] = marks;
  }
}

struct RowOfBit {
  zps_partition part;
  __device__ void operator()(const Found &found, u64 at, u64 bit) const {
    emit_row(found, at, part, bit, static_cast<u32>(bit));
  }
};

struct NumberOfBit {
  u32 *rows;
  __device__ void operator()(const Found &found, u64 at, u64 bit) const {
    if (at < found.capacity) rows[at] = static_cast<u32>(bit);
  }
};

}  // namespace

u64 extract_tiles(u64 rows) {
  return (rows + TILE_ROWS - 1) / TILE_ROWS;
}

void extract_singles(cudaStream_t stream, const Grid &grid, const u32 *values, u32 mask, const zps_partition &part,
                     const Found &found, Tickets *tickets, u64 *states) {
  ZPS_LAUNCH(stream, blocks_for(grid, part.rows, TILE_ROWS), THREADS, extract_singles_kernel, values, mask, part, found,
             tickets, states);
}

void mark_rows(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u32 width, u64 rows,
               u32 *bits) {
  const u32 blocks = blocks_for(grid, rows, THREADS), lanes = lanes_per_row(width);
  by_dtype(dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks, THREADS, mark_rows_kernel<T>, static_cast<const T *>(values), width, rows, lanes, bits);
  });
}

u64 list_tiles(u64 n_bits) {
  return (n_bits + LIST_TILE_BITS - 1) / LIST_TILE_BITS;
}

void list_rows(cudaStream_t stream, const Grid &grid, const u32 *bits, const zps_partition &part, const Found &found,
               Tickets *tickets, u64 *states) {
  const RowOfBit emit = {part};
  ZPS_LAUNCH(stream, blocks_for(grid, part.rows, LIST_TILE_BITS), THREADS, list_kernel<RowOfBit>, bits, part.rows, emit,
             found, tickets, states);
}

void list_numbers(cudaStream_t stream, const Grid &grid, const u32 *bits, u64 rows, u32 *numbers, const Found &found,
                  Tickets *tickets, u64 *states) {
  const NumberOfBit emit = {numbers};
  ZPS_LAUNCH(stream, blocks_for(grid, rows, LIST_TILE_BITS), THREADS, list_kernel<NumberOfBit>, bits, rows, emit, found,
             tickets, states);
}

}  // namespace zps
