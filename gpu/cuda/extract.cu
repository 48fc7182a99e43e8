/*
 * From a dense gradient to the list of its rows that are not zero. One look at the gradient makes a bit of each row;
 * what follows, counting and listing, reads a thirty-second of that or less.
 */
#include "gpu/cuda/emit.cuh"
#include "gpu/cuda/kernels.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

namespace {

/* Rows of one element, as its bits. A thread looks at VECTORS times a load of 16 bytes, a warp at stretches of its
 * threads' loads, so that loads are side by side. */
enum { VECTORS = 4 };
template <typename Bits>
struct Singles {
  enum {
    PER_LOAD = sizeof(uint4) / sizeof(Bits),
    STRETCH = WARP * PER_LOAD,
    WARP_ROWS = STRETCH * VECTORS,
    WORD_LANES = WARP / PER_LOAD
  };
};

template <typename Bits>
__device__ __forceinline__ uint4 load_singles(const Bits *values, u64 row, u64 rows, bool is_aligned) {
  enum { PER_LOAD = Singles<Bits>::PER_LOAD, BITS = 8 * sizeof(Bits) };
  if (is_aligned && row + PER_LOAD <= rows) return *reinterpret_cast<const uint4 *>(values + row);
  u32 words[sizeof(uint4) / sizeof(u32)] = {0, 0, 0, 0};
  ZPS_UNROLL
  for (u32 i = 0; i < PER_LOAD; i++)
    if (row + i < rows) words[i * BITS / 32] |= static_cast<u32>(values[row + i]) << i * BITS % 32;
  return {words[0], words[1], words[2], words[3]};
}

/* A bit for each element of a word: the sign alone is zero. */
__device__ __forceinline__ u32 marks_of(u32 word, u32) {
  return (word & 0x7fffffffu) != 0;
}
__device__ __forceinline__ u32 marks_of(u32 word, uint16_t) {
  return ((word & 0x7fffu) != 0) | ((word & 0x7fff0000u) != 0) << 1;
}

template <typename Bits>
__global__ void __launch_bounds__(THREADS) mark_singles_kernel(const Bits *values, u64 rows, u32 *bits) {
  typedef Singles<Bits> S;
  enum { PER_WORD = sizeof(u32) / sizeof(Bits) };
  const u64 n_words = (rows + WARP - 1) / WARP, stride = gridDim.x * static_cast<u64>(WARPS) * S::WARP_ROWS;
  const bool is_aligned = reinterpret_cast<uintptr_t>(values) % sizeof(uint4) == 0;
  const u32 lane = lane_of_thread();
  for (u64 first = (blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread()) * S::WARP_ROWS; first < rows;
       first += stride) {
    uint4 loads[VECTORS];
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++)
      loads[v] = load_singles(values, first + v * S::STRETCH + lane * S::PER_LOAD, rows, is_aligned);
    ZPS_UNROLL
    for (u32 v = 0; v < VECTORS; v++) {
      const u32 found = marks_of(loads[v].x, Bits()) | marks_of(loads[v].y, Bits()) << PER_WORD |
                        marks_of(loads[v].z, Bits()) << 2 * PER_WORD | marks_of(loads[v].w, Bits()) << 3 * PER_WORD;
      u32 marks = found << lane % S::WORD_LANES * S::PER_LOAD;
      for (int step = 1; step < S::WORD_LANES; step *= 2) marks |= __shfl_xor_sync(ALL, marks, step);
      const u64 word = (first + v * S::STRETCH) / WARP + lane / S::WORD_LANES;
      if (lane % S::WORD_LANES == 0 && word < n_words) bits[word] = marks;
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

__device__ __forceinline__ void mark_halves_of(Marks *marks, u32 width, u32 w, u32 word) {
  if (word & 0x7fffu) mark(marks, 2 * w / width);
  if (word & 0x7fff0000u) mark(marks, (2 * w + 1) / width);
}
__device__ __forceinline__ void mark_word_of(Marks *marks, u32 width, u32 w, u32 word, Bf16) {
  mark_halves_of(marks, width, w, word);
}
__device__ __forceinline__ void mark_word_of(Marks *marks, u32 width, u32 w, u32 word, F16) {
  mark_halves_of(marks, width, w, word);
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
        mark_word_of(&marks, width, w, fours[v].x, T());
        mark_word_of(&marks, width, w + 1, fours[v].y, T());
        mark_word_of(&marks, width, w + 2, fours[v].z, T());
        mark_word_of(&marks, width, w + 3, fours[v].w, T());
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

template <typename Bits>
struct SingleOfBit {
  const Bits *values;
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

/* Calls what(Bits()) with the type of a single element's bits. */
template <typename What>
void by_bits(enum zps_dtype dtype, What what) {
  if (dtype == ZPS_DTYPE_F32)
    what(static_cast<u32>(0));
  else
    what(static_cast<uint16_t>(0));
}

}  // namespace

void mark_rows(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u32 width, u64 rows,
               u32 *bits) {
  if (is_single(dtype, width)) {
    by_bits(dtype, [&](auto zero) {
      typedef decltype(zero) Bits;
      ZPS_LAUNCH(stream, blocks_for(grid, rows, Singles<Bits>::WARP_ROWS * WARPS), THREADS, mark_singles_kernel<Bits>,
                 static_cast<const Bits *>(values), rows, bits);
    });
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

void list_singles(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const u32 *bits, const void *values,
                  const zps_partition &part, const Found &found, u64 *space) {
  by_bits(dtype, [&](auto zero) {
    typedef decltype(zero) Bits;
    const SingleOfBit<Bits> emit = {static_cast<const Bits *>(values), part};
    list_bits(stream, grid, bits, part.rows, emit, found, space);
  });
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
