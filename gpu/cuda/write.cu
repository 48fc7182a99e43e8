/* Writes slices: values, then the index set where it is plain. */
#include "gpu/cuda/runs.cuh"

namespace zps {

namespace {

/* The element that a row of one came with. */
template <typename T>
__device__ __forceinline__ T element_of(u32 payload) {
  T element = T();
  memcpy(&element, &payload, sizeof element < sizeof payload ? sizeof element : sizeof payload);
  return element;
}

template <typename As, typename T>
__device__ __forceinline__ As value_of(const Plan &plan, const Source &source, u64 i, u32 p, u32 c) {
  const T *const values = static_cast<const T *>(source.values);
  switch (source.kind) {
    case SOURCE_PAYLOADS:
      return value_as<As>(element_of<T>(plan.found.payloads[i]));
    case SOURCE_DENSE:
      return value_as<As>(values[zps_partition_row(&plan.part, p, plan.found.indices[i]) * source.width + c]);
    case SOURCE_NUMBERS:
      return value_as<As>(values[static_cast<u64>(plan.found.payloads[i]) * source.width + c]);
    case SOURCE_RUNS:
      return run_value<As>(values, source.width, source.runs, plan.found.payloads[i], c);
    default:
      return value_as<As>(values[i * source.width + c]);
  }
}

/* The bits of a value that travels in 16. */
template <typename T>
__device__ __forceinline__ u32 half_bits(u32 codec, T value) {
  if constexpr (is_half<T>)
    return value.bits;
  else
    return codec == ZPS_VALUES_BF16 ? to_bf16(odd_bits(value)) : to_f16(odd_bits(value));
}

/* Value i of a list of n; the last one sees to what lies behind it. */
template <typename T>
__device__ __forceinline__ void put_value(u32 codec, void *list, u64 n, u64 i, T value) {
  if (codec == ZPS_VALUES_RAW) {
    static_cast<T *>(list)[i] = value;
    return;
  }
  uint16_t *const halves = static_cast<uint16_t *>(list);
  halves[i] = static_cast<uint16_t>(half_bits(codec, value));
  if (i == n - 1 && n % 2) halves[n] = 0;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) write_values_kernel(Plan plan, Source source, u32 lanes, void *const *outs) {
  const u64 n = rows_listed(plan.found), stride = gridDim.x * static_cast<u64>(THREADS) / lanes;
  const u32 lane = threadIdx.x % lanes;
  for (u64 i = (blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x) / lanes; i < n; i += stride) {
    const u32 p = plan.found.parts[i];
    if (!outs[p]) continue;
    const u64 start = plan.starts[p], n_values = (plan.starts[p + 1] - start) * source.width;
    const u32 codec = value_codec_of(plan, p);
    const bool is_wide = is_half<T> && codec == ZPS_VALUES_RAW; /* a list's */
    for (u32 c = lane; c < source.width; c += lanes) {
      const u64 at = (i - start) * source.width + c;
      if (is_wide)
        put_value(codec, outs[p], n_values, at,
                  run_value<SumOf<T>>(static_cast<const T *>(source.values), source.width, source.runs,
                                      plan.found.payloads[i], c));
      else
        put_value(codec, outs[p], n_values, at, value_of<T, T>(plan, source, i, p, c));
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) stage_values_kernel(Plan plan, Source source, u32 lanes, SumOf<T> *staged) {
  const u64 n = rows_listed(plan.found), stride = gridDim.x * static_cast<u64>(THREADS) / lanes;
  for (u64 i = (blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x) / lanes; i < n; i += stride)
    for (u32 c = threadIdx.x % lanes; c < source.width; c += lanes)
      staged[i * source.width + c] = value_of<SumOf<T>, T>(plan, source, i, plan.found.parts[i], c);
}

__global__ void __launch_bounds__(THREADS) write_payloads_kernel(Plan plan, void *const *outs) {
  const u64 n = rows_listed(plan.found), stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    const u32 p = plan.found.parts[i];
    if (outs[p]) static_cast<u32 *>(outs[p])[i - plan.starts[p]] = plan.found.payloads[i];
  }
}

/* After an odd number of bytes words are not aligned. */
__device__ __forceinline__ void store_word(uint8_t *at, u32 word) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof word == 0) {
    *reinterpret_cast<u32 *>(at) = word;
    return;
  }
  for (u32 i = 0; i < sizeof word; i++) at[i] = static_cast<uint8_t>(word >> 8 * i);
}

/* Zeros from a slice's values to its end, and on to the next multiple of eight bytes. Columns of blocks take
 * partitions, rows of blocks pieces of these. */
__global__ void __launch_bounds__(THREADS) clear_index_kernel(Plan plan, void *const *outs) {
  for (u32 p = blockIdx.x; p < plan.part.n_parts; p += gridDim.x) {
    uint8_t *const out = static_cast<uint8_t *>(outs[p]);
    if (!out) continue;
    const u64 first = values_bytes(plan, plan.slices[p]), end = (plan.slices[p].len_bytes + 7) & ~7ull;
    const u64 aligned = (first + 3) & ~3ull, stride = gridDim.y * static_cast<u64>(THREADS);
    const u64 thread = blockIdx.y * static_cast<u64>(THREADS) + threadIdx.x;
    if (first + thread < aligned && first + thread < end) out[first + thread] = 0;
    for (u64 at = aligned + 4 * thread; at < end; at += 4 * stride) *reinterpret_cast<u32 *>(out + at) = 0;
  }
}

__global__ void __launch_bounds__(THREADS) write_index_kernel(Plan plan, void *const *outs) {
  const u64 n = rows_listed(plan.found), stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    const u32 p = plan.found.parts[i];
    const zps_device_slice slice = plan.slices[p];
    if (slice.codec == ZPS_CODEC_RICE || slice.codec == ZPS_CODEC_HOLES || !outs[p]) continue;
    const u32 local = plan.found.indices[i];
    uint8_t *const index = static_cast<uint8_t *>(outs[p]) + values_bytes(plan, slice);
    const u64 start = plan.starts[p], end = start + slice.nnz;
    if (slice.codec == ZPS_CODEC_COO || slice.codec == ZPS_CODEC_COO_ANY) store_word(index + 4 * (i - start), local);
    if (slice.codec != ZPS_CODEC_BITMAP) continue;
    /* The first index of a word writes all of it. */
    const u32 word = local / 32;
    if (i > start && plan.found.indices[i - 1] / 32 == word) continue;
    u32 bits = 0;
    for (u64 other = i; other < end && plan.found.indices[other] / 32 == word; other++)
      bits |= 1u << plan.found.indices[other] % 32;
    store_word(index + 4 * static_cast<u64>(word), bits);
  }
}

}  // namespace

void write_values(cudaStream_t stream, const Grid &grid, const Plan &plan, const Source &source, void *const *outs) {
  const u64 n = plan.found.capacity;
  if (source.kind == SOURCE_PAYLOADS && plan.format.codec == ZPS_VALUES_RAW) {
    ZPS_LAUNCH(stream, blocks_for(grid, n, THREADS), THREADS, write_payloads_kernel, plan, outs);
    return;
  }
  const u32 lanes = lanes_per_row(source.width), blocks = blocks_for(grid, n * lanes, THREADS);
  by_dtype(source.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks, THREADS, write_values_kernel<T>, plan, source, lanes, outs);
  });
}

void stage_values(cudaStream_t stream, const Grid &grid, const Plan &plan, const Source &source, void *staged) {
  const u32 lanes = lanes_per_row(source.width), blocks = blocks_for(grid, plan.found.capacity * lanes, THREADS);
  by_dtype(source.dtype, [&](auto zero) {
    typedef decltype(zero) T;
    ZPS_LAUNCH(stream, blocks, THREADS, stage_values_kernel<T>, plan, source, lanes, static_cast<SumOf<T> *>(staged));
  });
}

void write_index(cudaStream_t stream, const Grid &grid, const Plan &plan, void *const *outs) {
  enum { COLUMNS_MAX = 1024, PIECES = 16 };
  const u32 n_parts = plan.part.n_parts;
  const dim3 clear_grid(n_parts < COLUMNS_MAX ? n_parts : +COLUMNS_MAX, PIECES);
  ZPS_LAUNCH(stream, clear_grid, THREADS, clear_index_kernel, plan, outs);
  ZPS_LAUNCH(stream, blocks_for(grid, plan.found.capacity, THREADS), THREADS, write_index_kernel, plan, outs);
}

}  // namespace zps
