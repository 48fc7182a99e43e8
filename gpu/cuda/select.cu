/*
 * Magnitudes are compared as integers: a float's bits without the sign, with Inf above every finite value and NaN above
 * Inf. The k-th greatest is found digit by digit from the top; then one look lists the greater ones, and of those equal
 * the first ones.
 */
#include "gpu/cuda/select.cuh"

namespace zps {

namespace {

enum { PICK_ITEMS = 4, PICK_TILE = THREADS * PICK_ITEMS };
/* Two counts in the value of a tile's state. */
enum : u32 { EQUAL_SHIFT = 31 };
enum : u64 { ABOVE_MASK = (1ull << EQUAL_SHIFT) - 1 };

__device__ __forceinline__ u64 magnitude_of(float value) {
  return bits_as<u32>(value) & 0x7fffffffu;
}
__device__ __forceinline__ u64 magnitude_of(double value) {
  return bits_as<u64>(value) & 0x7fffffffffffffffull;
}

/* The addend of a residual, and their sum. */
template <typename T>
struct Addend {
  const T *velocity; /* NULL without momentum */
  const T *gradient;
  T momentum, factor, decay;
  __device__ __forceinline__ T at(u64 i) const {
    const T value = product_of(gradient[i], factor);
    return velocity ? sum_of(product_of(velocity[i], momentum), value) : value;
  }
  __device__ __forceinline__ T sum(T residual, T value) const { return sum_of(product_of(residual, decay), value); }
};

template <typename T>
__global__ void __launch_bounds__(THREADS) feedback_add_kernel(T *residual, T *velocity, Addend<T> addend, u64 n) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    const T value = addend.at(i);
    if (velocity) velocity[i] = value;
    residual[i] = addend.sum(residual[i], value);
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) feedback_clear_kernel(T *residual, T *velocity, const int64_t *ids, u64 n) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    residual[ids[i]] = 0;
    if (velocity) velocity[ids[i]] = 0;
  }
}

/* Where value j of a sample is taken: one from each of n_sample equal stretches. */
struct Places {
  u64 n, key, n_sample;
  __device__ __forceinline__ u64 at(u64 j) const {
    const u64 whole = n / n_sample, rest = n % n_sample;
    const u64 len = whole + (j < rest), begin = j * whole + (j < rest ? j : rest);
    return begin + mul_high(zps_hash_mix64(key + j), len);
  }
};

template <typename T>
__global__ void __launch_bounds__(THREADS) sample_kernel(const T *values, Places places, T *sample) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 j = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; j < places.n_sample; j += stride)
    sample[j] = values[places.at(j)];
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    sample_sums_kernel(const T *residual, Addend<T> addend, Places places, T *sample) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 j = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; j < places.n_sample; j += stride) {
    const u64 i = places.at(j);
    sample[j] = addend.sum(residual[i], addend.at(i));
  }
}

struct Bins {
  u32 of[SELECT_BINS];
};

/* Counts the values with the ranking's prefix by the digit below it. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    rank_count_kernel(const T *values, u64 n, u32 shift, const Ranking *ranking, u64 *counts) {
  ZPS_SHARED(Bins, mine);
  const u64 prefix = ranking->prefix, stride = gridDim.x * static_cast<u64>(THREADS);
  mine.of[threadIdx.x] = 0;
  __syncthreads();
  for (u64 first = blockIdx.x * static_cast<u64>(THREADS); first < n; first += stride) {
    const u64 i = first + threadIdx.x, magnitude = i < n ? magnitude_of(values[i]) : 0;
    const bool is_in = i < n && (magnitude >> shift) >> SELECT_BITS == prefix;
    const u32 digit = is_in ? static_cast<u32>(magnitude >> shift) % SELECT_BINS : +SELECT_BINS;
    /* Equal digits of a warp are counted by one lane. */
    const u32 peers = __match_any_sync(ALL, digit);
    if (is_in && (peers & lanes_below()) == 0) atomicAdd(&mine.of[digit], static_cast<u32>(__popc(peers)));
  }
  __syncthreads();
  if (mine.of[threadIdx.x]) atomicAdd(&counts[threadIdx.x], static_cast<u64>(mine.of[threadIdx.x]));
}

/* One block: the digit that the k-th greatest has. */
__global__ void __launch_bounds__(THREADS) rank_digit_kernel(const u64 *counts, Ranking *ranking) {
  ZPS_SHARED(BlockSums, sums);
  const u32 digit = SELECT_BINS - 1 - threadIdx.x;
  const u64 left = ranking->left, count = counts[digit], prefix = ranking->prefix;
  u64 total;
  const u64 above = block_prefix(count, &sums, &total);
  if (above >= left || left > above + count) return;
  ranking->prefix = prefix << SELECT_BITS | digit;
  ranking->left = left - above;
}

__global__ void rank_start_kernel(Ranking *ranking, u64 k) {
  *ranking = {0, k, k};
}

/* Zeros are never picked. */
__global__ void rank_cut_kernel(const Ranking *ranking, bool is_exact, Cut *cut) {
  cut->magnitude = ranking->prefix ? ranking->prefix : 1;
  cut->ties = is_exact && ranking->prefix ? ranking->left : ~0ull;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) pick_kernel(const T *values, u64 n, const Cut *cut, int64_t *ids, T *picked,
                                                       u64 capacity, u64 *count, Tickets *tickets, u64 *states) {
  ZPS_SHARED(BlockSums, sums);
  ZPS_SHARED(u64, ticket);
  const u64 n_tiles = (n + PICK_TILE - 1) / PICK_TILE, least = cut->magnitude, ties = cut->ties;
  for (u64 tile; (tile = take_tile(tickets, &ticket)) < n_tiles;) {
    const u64 first = tile * PICK_TILE + threadIdx.x * PICK_ITEMS;
    T mine[PICK_ITEMS];
    u64 counts = 0;
    ZPS_UNROLL
    for (u32 j = 0; j < PICK_ITEMS; j++) {
      mine[j] = first + j < n ? values[first + j] : static_cast<T>(0);
      const u64 magnitude = magnitude_of(mine[j]);
      counts += (magnitude > least) + (static_cast<u64>(magnitude == least) << EQUAL_SHIFT);
    }
    u64 all;
    const u64 before = grid_prefix(counts, &sums, states, tile, &all);
    u64 above = before & ABOVE_MASK, equal = before >> EQUAL_SHIFT;
    ZPS_UNROLL
    for (u32 j = 0; j < PICK_ITEMS; j++) {
      const u64 magnitude = magnitude_of(mine[j]), at = above + (equal < ties ? equal : ties);
      const bool is_picked = magnitude > least || (magnitude == least && equal < ties);
      above += magnitude > least;
      equal += magnitude == least;
      if (!is_picked || at >= capacity) continue;
      ids[at] = static_cast<int64_t>(first + j);
      picked[at] = mine[j];
    }
    const u64 all_equal = all >> EQUAL_SHIFT;
    if (tile == n_tiles - 1 && threadIdx.x == 0) *count = (all & ABOVE_MASK) + (all_equal < ties ? all_equal : ties);
  }
}

struct Buckets {
  u64 n, size, k;
};

/* One block: the cut that leaves the k greatest of `len` values, as find_cut() does over the whole grid. */
template <typename T>
__device__ Cut bucket_cut(const T *values, u64 len, u64 k, Bins *bins, BlockSums *sums, Ranking *ranking) {
  if (k >= len) return {1, ~0ull};
  if (threadIdx.x == 0) *ranking = {0, k, k};
  for (int shift = (sizeof(T) * 8 / SELECT_BITS - 1) * SELECT_BITS; shift >= 0; shift -= SELECT_BITS) {
    __syncthreads();
    const u64 prefix = ranking->prefix, left = ranking->left;
    bins->of[threadIdx.x] = 0;
    __syncthreads();
    for (u64 i = threadIdx.x; i < len; i += THREADS) {
      const u64 magnitude = magnitude_of(values[i]);
      if ((magnitude >> shift) >> SELECT_BITS == prefix) atomicAdd(&bins->of[(magnitude >> shift) % SELECT_BINS], 1u);
    }
    __syncthreads();
    const u32 digit = SELECT_BINS - 1 - threadIdx.x;
    u64 total;
    const u64 count = bins->of[digit], above = block_prefix(count, sums, &total);
    if (above < left && left <= above + count) *ranking = {prefix << SELECT_BITS | digit, k, left - above};
  }
  __syncthreads();
  const Cut cut = {ranking->prefix ? ranking->prefix : 1, ranking->prefix ? ranking->left : ~0ull};
  return cut;
}

/* A block takes a bucket: finds its cut, counts, learns where its picks begin from the buckets before, and writes. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    pick_buckets_kernel(const T *values, Buckets buckets, int64_t *ids, T *picked, u64 capacity, u64 *count,
                        Tickets *tickets, u64 *states) {
  ZPS_SHARED(Bins, bins);
  ZPS_SHARED(BlockSums, sums);
  ZPS_SHARED(Ranking, ranking);
  ZPS_SHARED(u64, ticket);
  const u64 n_tiles = (buckets.n + buckets.size - 1) / buckets.size;
  for (u64 tile; (tile = take_tile(tickets, &ticket)) < n_tiles;) {
    const u64 begin = tile * buckets.size, left = buckets.n - begin, len = left < buckets.size ? left : buckets.size;
    const T *const mine = values + begin;
    const u64 k = (len * buckets.k + buckets.size - 1) / buckets.size;
    const Cut cut = bucket_cut(mine, len, k, &bins, &sums, &ranking);
    u64 found = 0, all, end;
    for (u64 i = threadIdx.x; i < len; i += THREADS) found += magnitude_of(mine[i]) >= cut.magnitude;
    block_prefix(found, &sums, &all);
    all = all < k ? all : k; /* the cut leaves out ties alone */
    __syncthreads();
    grid_prefix(threadIdx.x == 0 ? all : 0, &sums, states, tile, &end);
    u64 above = end - all, equal = 0;
    for (u64 first = 0; first < len; first += THREADS) {
      const u64 i = first + threadIdx.x;
      const T value = i < len ? mine[i] : static_cast<T>(0);
      const u64 magnitude = magnitude_of(value);
      const bool is_above = magnitude > cut.magnitude, is_equal = magnitude == cut.magnitude;
      u64 here;
      __syncthreads();
      const u64 before = block_prefix(is_above + (static_cast<u64>(is_equal) << EQUAL_SHIFT), &sums, &here);
      const u64 ties = equal + (before >> EQUAL_SHIFT);
      const u64 at = above + (before & ABOVE_MASK) + (ties < cut.ties ? ties : cut.ties);
      above += here & ABOVE_MASK;
      equal += here >> EQUAL_SHIFT;
      if (!(is_above || (is_equal && ties < cut.ties)) || at >= capacity) continue;
      ids[at] = static_cast<int64_t>(begin + i);
      picked[at] = value;
    }
    if (tile == n_tiles - 1 && threadIdx.x == 0) *count = end;
  }
}

/* Calls what(T()) with the type of floats. */
template <typename What>
void by_float(enum zps_dtype dtype, What what) {
  if (dtype == ZPS_DTYPE_F32)
    what(0.0f);
  else
    what(0.0);
}

}  // namespace

u64 pick_tiles(u64 n) {
  return (n + PICK_TILE - 1) / PICK_TILE;
}

namespace {

template <typename T>
Addend<T> addend_of(const zps_device_feedback &feedback, const void *gradient, double factor) {
  return {static_cast<const T *>(feedback.velocity_on_device), static_cast<const T *>(gradient),
          static_cast<T>(feedback.momentum), static_cast<T>(factor), static_cast<T>(feedback.decay)};
}

}  // namespace

void feedback_add(cudaStream_t stream, const Grid &grid, const zps_device_feedback &feedback, const void *gradient,
                  double factor) {
  by_float(feedback.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, feedback.n, THREADS), THREADS, feedback_add_kernel<T>,
               static_cast<T *>(feedback.residual_on_device), static_cast<T *>(feedback.velocity_on_device),
               addend_of<T>(feedback, gradient, factor), feedback.n);
  });
}

void feedback_clear(cudaStream_t stream, const Grid &grid, const zps_device_feedback &feedback, const int64_t *ids,
                    u64 n) {
  by_float(feedback.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, n, THREADS), THREADS, feedback_clear_kernel<T>,
               static_cast<T *>(feedback.residual_on_device), static_cast<T *>(feedback.velocity_on_device), ids, n);
  });
}

void sample_values(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, u64 key,
                   void *sample, u64 n_sample) {
  by_float(dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, n_sample, THREADS), THREADS, sample_kernel<T>, static_cast<const T *>(values),
               Places{n, key, n_sample}, static_cast<T *>(sample));
  });
}

void sample_sums(cudaStream_t stream, const Grid &grid, const zps_device_feedback &feedback, const void *gradient,
                 double factor, u64 key, void *sample, u64 n_sample) {
  by_float(feedback.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, n_sample, THREADS), THREADS, sample_sums_kernel<T>,
               static_cast<const T *>(feedback.residual_on_device), addend_of<T>(feedback, gradient, factor),
               Places{feedback.n, key, n_sample}, static_cast<T *>(sample));
  });
}

void find_cut(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, u64 k,
              bool is_exact, u64 *counts, Ranking *ranking, Cut *cut) {
  const u32 passes = select_passes(dtype);
  ZPS_LAUNCH(stream, 1, 1, rank_start_kernel, ranking, k);
  by_float(dtype, [&](auto zero) {
    typedef decltype(zero) T;
    for (u32 i = 0; i < passes; i++) {
      ZPS_LAUNCH(stream, blocks_for(grid, n, THREADS), THREADS, rank_count_kernel<T>, static_cast<const T *>(values), n,
                 (passes - 1 - i) * SELECT_BITS, ranking, counts + i * SELECT_BINS);
      ZPS_LAUNCH(stream, 1, THREADS, rank_digit_kernel, counts + i * SELECT_BINS, ranking);
    }
  });
  ZPS_LAUNCH(stream, 1, 1, rank_cut_kernel, ranking, is_exact, cut);
}

void pick(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, const Cut *cut,
          int64_t *ids, void *picked, u64 capacity, u64 *count, Tickets *tickets, u64 *states) {
  by_float(dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, n, PICK_TILE), THREADS, pick_kernel<T>, static_cast<const T *>(values), n, cut,
               ids, static_cast<T *>(picked), capacity, count, tickets, states);
  });
}

void pick_buckets(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, u64 size,
                  u64 k, int64_t *ids, void *picked, u64 capacity, u64 *count, Tickets *tickets, u64 *states) {
  by_float(dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks_for(grid, n, size), THREADS, pick_buckets_kernel<T>, static_cast<const T *>(values),
               Buckets{n, size, k}, ids, static_cast<T *>(picked), capacity, count, tickets, states);
  });
}

}  // namespace zps
