/* From the list of rows to the plan of every slice: the begins of partitions, the absent rows where most are there,
 * and, once the rice codes' sizes are known, the smallest codec. */
#include "gpu/cuda/kernels.cuh"

namespace zps {

namespace {

enum { RICE = 1u << ZPS_CODEC_RICE, HOLES = 1u << ZPS_CODEC_HOLES };

/* The first row of each partition: where the sorted list goes from one partition to another. */
__global__ void __launch_bounds__(THREADS) plan_starts_kernel(Plan plan) {
  const u64 n = rows_listed(plan.found), stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i <= n; i += stride) {
    const u32 from = i == 0 ? 0 : plan.found.parts[i - 1] + 1u, to = i == n ? plan.part.n_parts : plan.found.parts[i];
    for (u32 p = from; p <= to; p++) plan.starts[p] = i;
  }
}

/* Rice codes are for the rarer of indices and holes. */
__device__ __forceinline__ bool codes_holes(u32 m, u32 z) {
  return z > m / 2;
}

struct Counts {
  u64 holes, blocks, chunks, buckets;
};

__device__ __forceinline__ Counts count_partition(const Plan &plan, u32 p) {
  const u32 m = zps_partition_size(&plan.part, p), z = static_cast<u32>(plan.starts[p + 1] - plan.starts[p]);
  const u64 buckets = level_bits(plan.format.codec) ? value_buckets(static_cast<u64>(z) * plan.width) : 0;
  const bool holes = codes_holes(m, z);
  if (!(plan.allowed & (holes ? +HOLES : +RICE))) return {0, 0, 0, buckets};
  const u32 n = holes ? m - z : z;
  const u64 blocks = (static_cast<u64>(n) + ZPS_RICE_BLOCK - 1) / ZPS_RICE_BLOCK;
  return {holes ? n : 0u, blocks, (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS, buckets};
}

/* One block. */
__global__ void __launch_bounds__(THREADS) plan_counts_kernel(Plan plan) {
  enum { KINDS = 4 };
  ZPS_SHARED(BlockSums, sums);
  Counts before = {0, 0, 0, 0};
  for (u32 first = 0; first < plan.part.n_parts; first += THREADS) {
    const u32 p = first + threadIdx.x;
    const bool is_there = p < plan.part.n_parts;
    const Counts mine = is_there ? count_partition(plan, p) : Counts{0, 0, 0, 0};
    const u64 counts[KINDS] = {mine.holes, mine.blocks, mine.chunks, mine.buckets};
    u64 *const starts[KINDS] = {plan.hole_starts, plan.block_starts, plan.chunk_starts, plan.bucket_starts};
    u64 *const totals[KINDS] = {&before.holes, &before.blocks, &before.chunks, &before.buckets};
    ZPS_UNROLL
    for (u32 i = 0; i < KINDS; i++) {
      u64 total;
      const u64 prefix = block_prefix(counts[i], &sums, &total);
      if (is_there) starts[i][p] = *totals[i] + prefix;
      *totals[i] += total;
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) {
    plan.hole_starts[plan.part.n_parts] = before.holes;
    plan.block_starts[plan.part.n_parts] = before.blocks;
    plan.chunk_starts[plan.part.n_parts] = before.chunks;
    plan.bucket_starts[plan.part.n_parts] = before.buckets;
  }
}

/* Hole j of a partition lies behind as many indices as are smaller than it. */
__global__ void __launch_bounds__(THREADS) plan_holes_kernel(Plan plan) {
  const u64 n = plan.hole_starts[plan.part.n_parts], stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    const u32 p = find_start(plan.hole_starts, plan.part.n_parts, i);
    const u64 start = plan.starts[p];
    plan.holes[i] = complement_at(plan.found.indices + start, static_cast<u32>(plan.starts[p + 1] - start),
                                  static_cast<u32>(i - plan.hole_starts[p]));
  }
}

__global__ void __launch_bounds__(THREADS) plan_choose_kernel(Plan plan) {
  const u32 stride = gridDim.x * THREADS;
  for (u32 p = blockIdx.x * THREADS + threadIdx.x; p < plan.part.n_parts; p += stride) {
    const u32 m = zps_partition_size(&plan.part, p), z = static_cast<u32>(plan.starts[p + 1] - plan.starts[p]);
    const u64 first = plan.block_starts[p], end = plan.block_starts[p + 1];
    u32 codec = 0;
    u64 best = ~0ull;
    for (u32 other = 0; other <= ZPS_CODEC_COO_ANY && best > 0; other++) {
      const bool is_rice = other == ZPS_CODEC_RICE || other == ZPS_CODEC_HOLES;
      if (!(plan.allowed >> other & 1) || (is_rice && codes_holes(m, z) != (other == ZPS_CODEC_HOLES))) continue;
      const u64 bits = is_rice ? plan.bit_starts[end] - plan.bit_starts[first] : 0;
      const u64 bytes = is_rice                     ? (bits + 7) / 8
                        : other == ZPS_CODEC_BITMAP ? 4 * (static_cast<u64>(m) / 32 + (m % 32 != 0))
                                                    : 4 * static_cast<u64>(z);
      if (bytes >= best) continue;
      best = bytes;
      codec = other;
    }
    zps_device_slice slice = {static_cast<uint16_t>(codec), static_cast<uint16_t>(value_codec_of(plan, p)), z, 0};
    slice.len_bytes = values_bytes(plan, slice) + best;
    plan.slices[p] = slice;
  }
}

}  // namespace

void plan_parts(cudaStream_t stream, const Grid &grid, const Plan &plan) {
  const u32 blocks = blocks_for(grid, plan.found.capacity + 1, THREADS);
  ZPS_LAUNCH(stream, blocks, THREADS, plan_starts_kernel, plan);
  ZPS_LAUNCH(stream, 1, THREADS, plan_counts_kernel, plan);
  if (plan.allowed & HOLES) ZPS_LAUNCH(stream, blocks, THREADS, plan_holes_kernel, plan);
}

void plan_choose(cudaStream_t stream, const Grid &grid, const Plan &plan) {
  ZPS_LAUNCH(stream, blocks_for(grid, plan.part.n_parts, THREADS), THREADS, plan_choose_kernel, plan);
}

}  // namespace zps
