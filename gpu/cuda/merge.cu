/*
 * The sum of the contributions of a host's ranks. A bit for every row of every partition tells whether the row is
 * there, a count before each word tells the place of its sum; then one rank after the other adds its rows, so that the
 * order of a row's additions is that of the ranks.
 */
#include "gpu/cuda/emit.cuh"
#include "gpu/cuda/merge.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

namespace {

struct Place {
  u64 word;
  u32 bit;
};

__device__ __forceinline__ Place place_of(const Merge &merge, const Reading &reading, u32 v, u64 i) {
  const u32 index = reading.indices[i];
  return {merge.word_starts[reading.views[v].partition] + index / 32, index % 32};
}

__global__ void __launch_bounds__(THREADS) merge_mark_kernel(Merge merge, Reading reading) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < reading.n_rows; i += stride) {
    const Place place = place_of(merge, reading, find_start(reading.starts, reading.n_views, i), i);
    atomicOr(&merge.bits[place.word], 1u << place.bit);
  }
}

__global__ void __launch_bounds__(THREADS) merge_count_kernel(Merge merge) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 word = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; word < merge.n_words; word += stride)
    merge.counts[word] = static_cast<u32>(__popc(merge.bits[word]));
}

struct RowOfUnion {
  const u64 *word_starts;
  u32 n_parts;
  __device__ void operator()(const Found &found, u64 at, u64 bit) const {
    const u32 p = find_start(word_starts, n_parts, static_cast<u64>(bit / 32));
    emit(found, at, p, static_cast<u32>(bit - word_starts[p] * 32), 0);
  }
};

/* The rows of the views [first, end): those of one rank, no two of which are the same row. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    merge_add_kernel(Merge merge, Reading reading, u32 first, u32 end, u32 lanes) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS) / lanes, last = reading.starts[end];
  T *const sums = static_cast<T *>(merge.sums);
  for (u64 i = reading.starts[first] + (blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x) / lanes; i < last;
       i += stride) {
    const u32 v = find_start(reading.starts, reading.n_views, i);
    const Place place = place_of(merge, reading, v, i);
    const u64 at =
        merge.word_counts[place.word] + static_cast<u32>(__popc(merge.bits[place.word] & ((1u << place.bit) - 1)));
    const zps_device_view view = reading.views[v];
    for (u32 c = threadIdx.x % lanes; c < reading.width; c += lanes)
      sums[at * reading.width + c] =
          sum_of(sums[at * reading.width + c], view_value<T>(reading, view, i - reading.starts[v], c));
  }
}

}  // namespace

void merge_union(cudaStream_t stream, const Grid &grid, const Merge &merge, const Reading &reading, const Found &found,
                 Tickets *tickets, u64 *scan_states, u64 *space) {
  const u64 n_bits = merge.n_words * 32;
  const RowOfUnion emit_row = {merge.word_starts, reading.part.n_parts};
  ZPS_LAUNCH(stream, blocks_for(grid, reading.n_rows, THREADS), THREADS, merge_mark_kernel, merge, reading);
  ZPS_LAUNCH(stream, blocks_for(grid, merge.n_words, THREADS), THREADS, merge_count_kernel, merge);
  scan_u32(stream, grid, merge.counts, nullptr, merge.n_words, merge.word_counts, tickets, scan_states);
  list_bits(stream, grid, merge.bits, n_bits, emit_row, found, space);
}

void merge_add(cudaStream_t stream, const Grid &grid, const Merge &merge, const Reading &reading, u32 n_ranks) {
  const u32 lanes = lanes_per_row(reading.width), n_parts = reading.part.n_parts;
  const u32 blocks = blocks_for(grid, reading.n_rows / n_ranks * lanes + 1, THREADS);
  by_dtype(reading.dtype, [&](auto zero) {
    typedef SumOf<decltype(zero)> T; /* halves are refused */
    for (u32 rank = 0; rank < n_ranks; rank++)
      ZPS_LAUNCH(stream, blocks, THREADS, merge_add_kernel<T>, merge, reading, rank * n_parts, (rank + 1) * n_parts,
                 lanes);
  });
}

}  // namespace zps
