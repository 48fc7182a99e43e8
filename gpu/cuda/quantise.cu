/* QSGD (common/codec/values.h): a block for each bucket finds the scale, then each thread makes a word of levels. */
#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum : u32 { INFINITE = 0x7f800000u, SCALE_NAN = 0x7fc00000u };

/* Bits of a magnitude: they order like magnitudes, with values that are not finite above all others. */
__device__ __forceinline__ u64 magnitude_bits(float value) {
  return bits_as<u32>(value) & 0x7fffffffu;
}
__device__ __forceinline__ u64 magnitude_bits(double value) {
  return bits_as<u64>(value) & 0x7fffffffffffffffull;
}

/* The least float that is no smaller; NaN when none is finite. */
__device__ __forceinline__ float scale_of(float, u64 largest) {
  const u32 bits = static_cast<u32>(largest);
  return bits_as<float>(bits < INFINITE ? bits : +SCALE_NAN);
}
__device__ __forceinline__ float scale_of(double, u64 largest) {
  const double magnitude = bits_as<double>(largest);
  const float near = static_cast<float>(magnitude);
  const u32 bits = bits_as<u32>(near) + (static_cast<double>(near) < magnitude);
  return bits_as<float>(bits < INFINITE ? bits : +SCALE_NAN);
}

/* Level of value i of its list, in the lowest `bits`. The build contracts no multiplication with an addition. */
template <typename T>
__device__ __forceinline__ u32 level_of(T value, u32 bits, double factor, u64 key, u64 i) {
  const u64 hash = zps_hash_mix64(key + 8 * (i / 16) + i % 8), draw = i % 16 < 8 ? hash & 0xffffffffu : hash >> 32;
  /* the draw and a half, in units of 2^-32, behind the exponent of 1 */
  const double u = bits_as<double>(static_cast<u64>(draw << 20 | 0x3ff0000000080000ull)) - 1.0;
  const double wide = static_cast<double>(value), magnitude = wide < 0 ? -wide : wide;
  const int level = static_cast<int>(magnitude * factor + u);
  return static_cast<u32>(wide < 0 ? -level : level) & ((1u << bits) - 1);
}

struct Largest {
  u64 of_warps[WARPS];
};

template <typename T>
__global__ void __launch_bounds__(THREADS) quantise_kernel(Plan plan, const T *staged, void *const *outs) {
  ZPS_SHARED(Largest, shared);
  const u32 bits = level_bits(plan.format.codec);
  const u64 n_buckets = plan.bucket_starts[plan.part.n_parts];
  for (u64 b = blockIdx.x; b < n_buckets; b += gridDim.x) {
    const u32 p = find_start(plan.bucket_starts, plan.part.n_parts, static_cast<u64>(b));
    uint8_t *const list = static_cast<uint8_t *>(outs[p]);
    if (!list) continue;
    const u64 n = (plan.starts[p + 1] - plan.starts[p]) * plan.width, bucket = b - plan.bucket_starts[p];
    const u64 first = bucket * ZPS_VALUES_BUCKET;
    const u32 here = n - first < ZPS_VALUES_BUCKET ? static_cast<u32>(n - first) : ZPS_VALUES_BUCKET;
    const T *const values = staged + plan.starts[p] * plan.width + first;
    u64 largest = 0;
    for (u32 i = threadIdx.x; i < here; i += THREADS) {
      const u64 magnitude = magnitude_bits(values[i]);
      largest = magnitude > largest ? magnitude : largest;
    }
    largest = ~warp_min(~largest);
    if (lane_of_thread() == 0) shared.of_warps[warp_of_thread()] = largest;
    __syncthreads();
    for (u32 i = 0; i < WARPS; i++) largest = shared.of_warps[i] > largest ? shared.of_warps[i] : largest;
    const float scale = scale_of(static_cast<T>(0), largest);
    const bool is_coded = scale > 0; /* neither of zeros nor of values that are not finite */
    if (threadIdx.x == 0) reinterpret_cast<float *>(list)[bucket] = scale;
    const double factor = static_cast<double>((1u << (bits - 1)) - 1) / static_cast<double>(scale);
    const u64 key = zps_values_key(&plan.origin, p);
    const u32 per_word = 32 / bits, n_words = (here + per_word - 1) / per_word;
    u32 *const words = reinterpret_cast<u32 *>(list + 4 * value_buckets(n)) + first / per_word;
    for (u32 w = threadIdx.x; w < n_words; w += THREADS) {
      u32 word = 0;
      for (u32 j = 0; j < per_word && w * per_word + j < here && is_coded; j++) {
        const u32 i = w * per_word + j;
        word |= level_of(values[i], bits, factor, key, first + i) << j * bits;
      }
      words[w] = word;
    }
    __syncthreads();
  }
}

}  // namespace

void quantise_values(cudaStream_t stream, const Grid &grid, const Plan &plan, enum zps_dtype dtype, const void *staged,
                     void *const *outs) {
  const u64 n_buckets = value_buckets(plan.found.capacity * plan.width) + plan.part.n_parts;
  if (dtype == ZPS_DTYPE_F64)
    ZPS_LAUNCH(stream, blocks_for(grid, n_buckets, 1), THREADS, quantise_kernel<double>, plan,
               static_cast<const double *>(staged), outs);
  else
    ZPS_LAUNCH(stream, blocks_for(grid, n_buckets, 1), THREADS, quantise_kernel<float>, plan,
               static_cast<const float *>(staged), outs);
}

}  // namespace zps
