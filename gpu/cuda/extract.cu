/*
 * From a dense gradient to the list of its rows that are not zero. One look at the gradient makes a bit of each row;
 * what follows, counting and listing, reads a thirty-second of that or less.
 */
#include "gpu/cuda/emit.cuh"
#include "gpu/cuda/kernels.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

namespace {

/* A thread looks at VECTORS times four rows, a warp at stretches of 128 rows, so that loads are side by side. */
enum {
  VECTORS = 4,
  PER_LOAD = 4,
  STRETCH = WARP * PER_LOAD,
  WARP_ROWS = STRETCH * VECTORS,
  WORD_LANES = WARP / PER_LOAD
};

__device__ __forceinline__ uint4 load_four(const u32 *values, u64 row, u64 rows, bool is_aligned) {
  if (is_aligned && row + PER_LOAD <= rows) return *reinterpret_cast<const uint4 *>(values + row);
  uint4 four = {0, 0, 0, 0};
  if (row < rows) four.x = values[row];
  if (row + 1 < rows) four.y = values[row + 1];
  if (row + 2 < rows) four.z = values[row + 2];
  if (row + 3 < rows) four.w = values[row + 3];
  return four;
}

__global__ void __launch_bounds__(THREADS) mark_singles_kernel(const u32 *values, u32 mask, u64 rows, u32 *bits) {
  const u64 n_words = (rows + WARP - 1) / WARP, stride = gridDim.x * static_cast<u64>(WARPS) * WARP_ROWS;
  const bool is_aligned = reinterpret_cast<uintptr_t>(values) % sizeof(uint4) == 0;
  const u32 lane = lane_of_thread();
  for (u64 first = (blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread()) * WARP_ROWS; first < rows;
       first += stride) {
    uint4 fours[VECTORS];
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++)
      fours[v] = load_four(values, first + v * STRETCH + lane * PER_LOAD, rows, is_aligned);
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++) {
      const u32 four = ((fours[v].x & mask) != 0) | ((fours[v].y & mask) != 0) << 1 | ((fours[v].z & mask) != 0) << 2 |
                       ((fours[v].w & mask) != 0) << 3;
      u32 marks = four << lane % WORD_LANES * PER_LOAD;
      for (int step = 1; step < WORD_LANES; step *= 2) marks |= __shfl_xor_sync(ALL, marks, step);
      const u64 word = (first + v * STRETCH) / WARP + lane / WORD_LANES;
      if (lane % WORD_LANES == 0 && word < n_words) bits[word] = marks;
    }
  }
}

/* Rows of several elements, or of other ones: their bytes one after the other, whatever they belong to. */
enum { TILE_BYTES = 32768, TILE_WORDS_MAX = TILE_BYTES / WARP };
struct Marks {
  u32 words[TILE_WORDS_MAX];
};

__device__ __forceinline__ void mark(Marks *marks, u32 row) {
  u32 *const word = &marks->words[row / WARP];
  const u32 bit = 1u << row % WARP;
  if (!(racy_load(word) & bit)) atomicOr(word, bit); /* of a row's many elements few get to the atomic */
}

/* The elements of a word that is word `w` of the tile. */
__device__ __forceinline__ void mark_word_of(Marks *marks, u32 width, u32 w, u32 word, float) {
  if (word & 0x7fffffffu) mark(marks, w / width);
}
__device__ __forceinline__ void mark_word_of(Marks *marks, u32 width, u32 w, u32 word, double) {
  if (w % 2 ? word & 0x7fffffffu : word) mark(marks, w / 2 / width);
}
__device__ __forceinline__ void mark_word_of(Marks *marks, u32 width, u32 w, u32 word, uint8_t) {
  for (u32 i = 0; i < 4 && word >> 8 * i != 0; i++)
    if (word >> 8 * i & 255) mark(marks, (4 * w + i) / width);
}

/* A block of threads for each tile of `tile_rows` rows, a multiple of 32. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    mark_rows_kernel(const T *values, u32 width, u64 rows, u64 tile_rows, u32 *bits) {
  ZPS_SHARED(Marks, marks);
  enum { PER_VECTOR = sizeof(uint4) / sizeof(T), AT_ONCE = THREADS * VECTORS };
  const bool is_aligned = reinterpret_cast<uintptr_t>(values) % sizeof(uint4) == 0;
  for (u64 first = blockIdx.x * tile_rows; first < rows; first += gridDim.x * tile_rows) {
    const u32 n_rows = static_cast<u32>(rows - first < tile_rows ? rows - first : tile_rows),
              n_words = (n_rows + WARP - 1) / WARP;
    const T *const from = values + first * width;
    const u64 n = static_cast<u64>(n_rows) * width;
    const u32 n_vectors = is_aligned ? static_cast<u32>(n / PER_VECTOR) : 0;
    for (u32 i = threadIdx.x; i < n_words; i += THREADS) marks.words[i] = 0;
    __syncthreads();
    for (u32 at = threadIdx.x; at < n_vectors; at += AT_ONCE) {
      uint4 fours[VECTORS];
      ZPS_UNROLL
      for (u32 v = 0; v < VECTORS; v++) {
        const u32 i = at + v * THREADS;
        fours[v] = i < n_vectors ? reinterpret_cast<const uint4 *>(from)[i] : uint4{0, 0, 0, 0};
      }
      ZPS_UNROLL
      for (u32 v = 0; v < VECTORS; v++) {
        const u32 w = 4 * (at + v * THREADS);
        if (!(fours[v].x | fours[v].y | fours[v].z | fours[v].w)) continue;
        mark_word_of(&marks, width, w, fours[v].x, static_cast<T>(0));
        mark_word_of(&marks, width, w + 1, fours[v].y, static_cast<T>(0));
        mark_word_of(&marks, width, w + 2, fours[v].z, static_cast<T>(0));
        mark_word_of(&marks, width, w + 3, fours[v].w, static_cast<T>(0));
      }
    }
    for (u64 i = static_cast<u64>(n_vectors) * PER_VECTOR + threadIdx.x; i < n; i += THREADS)
      if (!is_zero(from[i])) mark(&marks, static_cast<u32>(i) / width);
    __syncthreads();
    for (u32 i = threadIdx.x; i < n_words; i += THREADS) bits[first / WARP + i] = marks.words[i];
    __syncthreads();
  }
}

__global__ void __launch_bounds__(THREADS) count_bits_kernel(const u32 *bits, u64 n_bits, u64 *counts) {
  const u64 n_words = (n_bits + WARP - 1) / WARP, n_tiles = (n_words + THREADS - 1) / THREADS;
  for (u64 tile = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); tile < n_tiles;
       tile += gridDim.x * static_cast<u64>(WARPS)) {
    u32 n = 0;
    ZPS_UNROLL
    for (u32 j = 0; j < THREADS / WARP; j++) {
      const u64 word = tile * THREADS + j * WARP + lane_of_thread();
      n += word < n_words ? static_cast<u32>(__popc(bits[word])) : 0;
    }
    n = warp_sum(n);
    if (lane_of_thread() == 0) counts[tile] = n;
  }
}

struct SingleOfBit {
  const u32 *values;
  zps_partition part;
  __device__ void operator()(const Found &found, u64 at, u64 bit) const { emit_row(found, at, part, bit, values[bit]); }
};

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

void mark_rows(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u32 width, u64 rows,
               u32 *bits) {
  if (dtype == ZPS_DTYPE_F32 && width == 1) {
    ZPS_LAUNCH(stream, blocks_for(grid, rows, WARP_ROWS * WARPS), THREADS, mark_singles_kernel,
               static_cast<const u32 *>(values), +MASK_F32, rows, bits);
    return;
  }
  by_dtype(dtype, [&](auto zero) {
    typedef decltype(zero) T;
    const u64 words = TILE_BYTES / (sizeof(T) * width * WARP), tile_rows = (words ? words : 1) * WARP;
    ZPS_LAUNCH(stream, blocks_for(grid, rows, tile_rows), THREADS, mark_rows_kernel<T>, static_cast<const T *>(values),
               width, rows, tile_rows, bits);
  });
}

u64 list_space(u64 n_bits) {
  return scan_space((n_bits + LIST_TILE_BITS - 1) / LIST_TILE_BITS);
}

void count_bits(cudaStream_t stream, const Grid &grid, const u32 *bits, u64 n_bits, u64 *counts) {
  ZPS_LAUNCH(stream, blocks_for(grid, n_bits, LIST_TILE_BITS * WARPS), THREADS, count_bits_kernel, bits, n_bits,
             counts);
}

void list_singles(cudaStream_t stream, const Grid &grid, const u32 *bits, const u32 *values, const zps_partition &part,
                  const Found &found, u64 *space) {
  const SingleOfBit emit = {values, part};
  list_bits(stream, grid, bits, part.rows, emit, found, space);
}

void list_rows(cudaStream_t stream, const Grid &grid, const u32 *bits, const zps_partition &part, const Found &found,
               u64 *space) {
  const RowOfBit emit = {part};
  list_bits(stream, grid, bits, part.rows, emit, found, space);
}

void list_numbers(cudaStream_t stream, const Grid &grid, const u32 *bits, u64 rows, u32 *numbers, const Found &found,
                  u64 *space) {
  const NumberOfBit emit = {numbers};
  list_bits(stream, grid, bits, rows, emit, found, space);
}

}  // namespace zps
