/*
 * From slices to lists of indices, and from these to a dense array or to rows. The bytes are a peer's: a set
 * unlike its announcement is noted as bad, and leads to no access outside of the arrays.
 */
#include "gpu/cuda/kernels.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

namespace {

/* A word that may lie anywhere: after values of an odd number of bytes. */
__device__ __forceinline__ u32 load_word(const uint8_t *at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(u32) == 0) return *reinterpret_cast<const u32 *>(at);
  return at[0] | static_cast<u32>(at[1]) << 8 | static_cast<u32>(at[2]) << 16 | static_cast<u32>(at[3]) << 24;
}

__device__ __forceinline__ const uint8_t *index_of(const Reading &reading, const zps_device_view &view) {
  return static_cast<const uint8_t *>(view.payload_on_device) + index_offset(reading, view);
}

__global__ void __launch_bounds__(THREADS) read_coo_kernel(Reading reading) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < reading.n_rows; i += stride) {
    const u32 v = find_start(reading.starts, reading.n_views, i);
    const zps_device_view view = reading.views[v];
    if (view.codec != ZPS_CODEC_COO) continue;
    const u64 place = i - reading.starts[v];
    const uint8_t *const index = index_of(reading, view);
    const u32 local = load_word(index + 4 * place);
    const bool is_good = local < zps_partition_size(&reading.part, view.partition) &&
                         (place == 0 || load_word(index + 4 * (place - 1)) < local);
    if (!is_good) atomicMax(reading.bad, v + 1);
    reading.indices[i] = is_good ? local : 0;
  }
}

/* All bitmaps' words one after the other. A view's indices begin where those of the views before it end, if these have
 * as many as they say; if not, no place is right, and some view is bad. */
__global__ void __launch_bounds__(THREADS) read_bitmap_kernel(Reading reading, Tickets *tickets, u64 *states) {
  ZPS_SHARED(BlockSums, sums);
  ZPS_SHARED(u64, ticket);
  const u64 n_tiles = (reading.n_words + THREADS - 1) / THREADS;
  for (u64 tile; (tile = take_tile(tickets, &ticket)) < n_tiles;) {
    const u64 i = tile * THREADS + threadIdx.x;
    u32 bits = 0, v = 0, word = 0;
    u64 announced = 0; /* in the bitmaps before this one */
    if (i < reading.n_words) {
      v = find_start(reading.word_starts, reading.n_views, i);
      const zps_device_view view = reading.views[v];
      const u32 m = zps_partition_size(&reading.part, view.partition);
      word = static_cast<u32>(i - reading.word_starts[v]);
      bits = load_word(index_of(reading, view) + 4 * static_cast<u64>(word));
      if (m - word * 32 < 32) {
        const u32 beyond = bits & ~((1u << (m - word * 32)) - 1);
        if (beyond) atomicMax(reading.bad, v + 1);
        bits &= ~beyond;
      }
      announced = reading.bit_starts[v];
    }
    u64 all;
    u64 place = grid_prefix(static_cast<u64>(__popc(bits)), &sums, states, tile, &all) - announced;
    if (i >= reading.n_words) continue;
    const u32 nnz = reading.views[v].nnz;
    for (; bits; bits &= bits - 1, place++) {
      if (place < nnz)
        reading.indices[reading.starts[v] + place] = word * 32 + static_cast<u32>(__ffs(static_cast<int>(bits))) - 1;
      else
        atomicMax(reading.bad, v + 1);
    }
    if (i + 1 == reading.word_starts[v + 1] && place != nnz) atomicMax(reading.bad, v + 1);
  }
}

/* The indices of a view are those that are not among its holes. */
__global__ void __launch_bounds__(THREADS) read_holes_kernel(Reading reading) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < reading.n_rows; i += stride) {
    const u32 v = find_start(reading.starts, reading.n_views, i);
    if (reading.views[v].codec != ZPS_CODEC_HOLES) continue;
    const u64 first = reading.hole_starts[v];
    const u32 n_holes = static_cast<u32>(reading.hole_starts[v + 1] - first);
    reading.indices[i] = complement_at(reading.holes + first, n_holes, static_cast<u32>(i - reading.starts[v]));
  }
}

/* A thread for each value; the last of a list looks at the bits behind it. */
__global__ void __launch_bounds__(THREADS) check_values_kernel(Reading reading) {
  enum : u32 { INFINITE = 0x7f800000u, SCALE_NAN = 0x7fc00000u };
  const u64 stride = gridDim.x * static_cast<u64>(THREADS), n_all = reading.n_rows * reading.width;
  for (u64 e = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; e < n_all; e += stride) {
    const u32 v = find_start(reading.starts, reading.n_views, static_cast<u64>(e / reading.width));
    const zps_device_view view = reading.views[v];
    const u32 bits = level_bits(view.value_codec);
    const u64 n = static_cast<u64>(view.nnz) * reading.width, i = e - reading.starts[v] * reading.width;
    const uint8_t *const list = static_cast<const uint8_t *>(view.payload_on_device);
    bool is_bad = false;
    if (bits) {
      const int level = level_at(list, bits, n, i);
      const u32 scale = reinterpret_cast<const u32 *>(list)[i / ZPS_VALUES_BUCKET];
      is_bad = level == -(1 << (bits - 1)) || (scale >= INFINITE && scale != SCALE_NAN) ||
               (level != 0 && (scale == 0 || scale == SCALE_NAN));
      const u32 used = n * bits % 32;
      if (i == n - 1 && used)
        is_bad |= reinterpret_cast<const u32 *>(list + 4 * value_buckets(n))[i * bits / 32] >> used != 0;
    } else if (view.value_codec != ZPS_VALUES_RAW && n % 2 && i == n - 1) {
      is_bad = reinterpret_cast<const uint16_t *>(list)[n] != 0;
    }
    if (is_bad) atomicMax(reading.bad, v + 1);
  }
}

struct Row {
  u32 v;
  u64 place; /* in the view */
  u64 number;
  bool is_good;
};

__device__ __forceinline__ Row row_at(const Reading &reading, u64 i) {
  Row row;
  row.v = find_start(reading.starts, reading.n_views, i);
  row.place = i - reading.starts[row.v];
  const u32 p = reading.views[row.v].partition, index = reading.indices[i];
  row.is_good = index < zps_partition_size(&reading.part, p);
  row.number = row.is_good ? zps_partition_row(&reading.part, p, index) : 0;
  return row;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) scatter_rows_kernel(Reading reading, u32 lanes, T *dense) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS) / lanes;
  for (u64 i = (blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x) / lanes; i < reading.n_rows; i += stride) {
    const Row row = row_at(reading, i);
    if (!row.is_good) continue;
    const zps_device_view view = reading.views[row.v];
    T *const to = dense + row.number * reading.width;
    for (u32 c = threadIdx.x % lanes; c < reading.width; c += lanes) to[c] = view_value<T>(reading, view, row.place, c);
  }
}

__global__ void __launch_bounds__(THREADS) list_keys_kernel(Reading reading, u64 *keys, u32 *places) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < reading.n_rows; i += stride) {
    keys[i] = row_at(reading, i).number;
    places[i] = static_cast<u32>(i);
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gather_rows_kernel(Reading reading, const u64 *keys, const u32 *places, u32 lanes, int64_t *rows, T *values) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS) / lanes;
  const u32 lane = threadIdx.x % lanes;
  for (u64 i = (blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x) / lanes; i < reading.n_rows; i += stride) {
    const u64 at = places[i];
    const u32 v = find_start(reading.starts, reading.n_views, at);
    const zps_device_view view = reading.views[v];
    if (lane == 0) rows[i] = static_cast<int64_t>(keys[i]);
    for (u32 c = lane; c < reading.width; c += lanes)
      values[i * reading.width + c] = view_value<T>(reading, view, at - reading.starts[v], c);
  }
}

}  // namespace

void read_indices(cudaStream_t stream, const Grid &grid, const Reading &reading, Tickets *tickets, u64 *word_states,
                  u64 *block_states) {
  const u32 blocks = blocks_for(grid, reading.n_rows, THREADS);
  rice_read(stream, grid, reading, tickets, block_states);
  if (reading.n_words > 0)
    ZPS_LAUNCH(stream, blocks_for(grid, reading.n_words, THREADS), THREADS, read_bitmap_kernel, reading, tickets + 1,
               word_states);
  if (reading.n_rows == 0) return;
  if (reading.codecs & 1u << ZPS_CODEC_COO) ZPS_LAUNCH(stream, blocks, THREADS, read_coo_kernel, reading);
  if (reading.codecs & 1u << ZPS_CODEC_HOLES) ZPS_LAUNCH(stream, blocks, THREADS, read_holes_kernel, reading);
}

void check_values(cudaStream_t stream, const Grid &grid, const Reading &reading) {
  if (reading.is_raw || reading.n_rows == 0) return;
  ZPS_LAUNCH(stream, blocks_for(grid, reading.n_rows * reading.width, THREADS), THREADS, check_values_kernel, reading);
}

void scatter_rows(cudaStream_t stream, const Grid &grid, const Reading &reading, void *dense) {
  if (reading.n_rows == 0) return;
  const u32 lanes = lanes_per_row(reading.width), blocks = blocks_for(grid, reading.n_rows * lanes, THREADS);
  by_dtype(reading.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks, THREADS, scatter_rows_kernel<T>, reading, lanes, static_cast<T *>(dense));
  });
}

void list_keys(cudaStream_t stream, const Grid &grid, const Reading &reading, u64 *keys, u32 *places) {
  ZPS_LAUNCH(stream, blocks_for(grid, reading.n_rows, THREADS), THREADS, list_keys_kernel, reading, keys, places);
}

void gather_rows(cudaStream_t stream, const Grid &grid, const Reading &reading, const u64 *keys, const u32 *places,
                 int64_t *rows, void *values) {
  const u32 lanes = lanes_per_row(reading.width), blocks = blocks_for(grid, reading.n_rows * lanes, THREADS);
  by_dtype(reading.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks, THREADS, gather_rows_kernel<T>, reading, keys, places, lanes, rows,
               static_cast<T *>(values));
  });
}

}  // namespace zps
