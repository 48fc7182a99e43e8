/* Entries of COO gradients: unsorted, repeated. Sorted by partition and index, stably, those of a row are a run, in
 * order of appearance; a run is added up in that order, starting from +0.0, and one entry alone is taken as it is.
 * Halves are added up as floats: a sum that is no half makes its partition's slice wide. */
#include "gpu/cuda/emit.cuh"
#include "gpu/cuda/runs.cuh"

namespace zps {

namespace {

__global__ void __launch_bounds__(THREADS)
    coo_keys_kernel(const int64_t *rows, u64 n, zps_partition part, u64 *keys, u32 *entries, u64 *bad) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    const u64 row = static_cast<u64>(rows[i]);
    u32 index = 0, p = 0;
    if (row < part.rows)
      p = zps_partition_of(&part, row, &index);
    else
      atomicMin(bad, i);
    keys[i] = static_cast<u64>(p) << 32 | index;
    entries[i] = static_cast<u32>(i);
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    coo_mark_kernel(const T *values, u32 width, CooRuns runs, u32 lanes, u32 *bits, u32 *wide) {
  const u64 n_words = (runs.n + WARP - 1) / WARP;
  for (u64 word = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); word < n_words;
       word += gridDim.x * static_cast<u64>(WARPS)) {
    const u32 marks = mark_word(lanes, [=](u32 i, u32 lane) {
      const u64 at = word * WARP + i;
      bool any = false;
      if (at < runs.n && (at == 0 || runs.keys[at] != runs.keys[at - 1]))
        for (u32 c = lane; c < width; c += lanes) {
          const SumOf<T> sum = run_value<SumOf<T>>(values, width, runs, at, c);
          any |= !is_zero(sum);
          if constexpr (is_half<T>)
            if (wide && !is_held<T>(sum)) racy_store(&wide[runs.keys[at] >> 32], 1u);
        }
      return any;
    });
    if (lane_of_thread() == 0) bits[word] = marks;
  }
}

struct RunOfBit {
  const u64 *keys;
  __device__ void operator()(const Found &found, u64 at, u64 bit) const {
    const u64 key = keys[bit];
    emit(found, at, static_cast<u32>(key >> 32), static_cast<u32>(key), static_cast<u32>(bit));
  }
};

struct NumberOfRun {
  const int64_t *rows;
  u64 n_rows;
  const u32 *entries;
  u32 *numbers;
  /* What is no row, and is reported, becomes one. */
  __device__ void operator()(const Found &found, u64 at, u64 bit) const {
    const u64 row = static_cast<u64>(rows[entries[bit]]);
    if (at < found.capacity) numbers[at] = row < n_rows ? static_cast<u32>(row) : 0;
  }
};

}  // namespace

void coo_keys(cudaStream_t stream, const Grid &grid, const int64_t *rows, u64 n, const zps_partition &part, u64 *keys,
              u32 *entries, u64 *bad) {
  cudaMemsetAsync(bad, 0xff, sizeof *bad, stream);
  ZPS_LAUNCH(stream, blocks_for(grid, n, THREADS), THREADS, coo_keys_kernel, rows, n, part, keys, entries, bad);
}

void coo_mark(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u32 width,
              const CooRuns &runs, u32 *bits, u32 *wide) {
  const u32 blocks = blocks_for(grid, runs.n, THREADS), lanes = lanes_per_row(width);
  by_dtype(dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks, THREADS, coo_mark_kernel<T>, static_cast<const T *>(values), width, runs, lanes, bits,
               wide);
  });
}

void coo_list(cudaStream_t stream, const Grid &grid, const u32 *bits, const CooRuns &runs, const Found &found,
              u64 *space) {
  const RunOfBit emit_run = {runs.keys};
  list_bits(stream, grid, bits, runs.n, emit_run, found, space);
}

void coo_numbers(cudaStream_t stream, const Grid &grid, const u32 *bits, const int64_t *rows, u64 n_rows,
                 const CooRuns &runs, u32 *numbers, const Found &found, u64 *space) {
  const NumberOfRun emit_number = {rows, n_rows, runs.entries, numbers};
  list_bits(stream, grid, bits, runs.n, emit_number, found, space);
}

}  // namespace zps
