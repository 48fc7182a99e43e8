/*
 * Rice codes of all partitions at once. A block's parameter depends on that of the block before, so that one would have
 * to follow the other; but the parameter that a block takes after each of the 32 that it may find is known beforehand.
 * These functions are composed, chunk by chunk, and then every chunk knows the parameter that it starts from.
 */
#include "gpu/cuda/rice.cuh"

namespace zps {

namespace {

__device__ __forceinline__ u32 numbers_of(const Plan &plan, u32 p, const u32 **numbers) {
  const u64 start = plan.starts[p];
  const u32 z = static_cast<u32>(plan.starts[p + 1] - start), m = zps_partition_size(&plan.part, p);
  const u32 n_holes = static_cast<u32>(plan.hole_starts[p + 1] - plan.hole_starts[p]);
  const bool holes = z > m / 2;
  *numbers = holes ? plan.holes + plan.hole_starts[p] : plan.found.indices + start;
  return holes ? n_holes : z;
}

__device__ __forceinline__ RiceBlock block_of(const Plan &plan, u64 b) {
  RiceBlock block;
  block.p = find_start(plan.block_starts, plan.part.n_parts, b);
  const u32 i = static_cast<u32>(b - plan.block_starts[block.p]);
  const u32 n = numbers_of(plan, block.p, &block.numbers);
  block.numbers += static_cast<u64>(i) * ZPS_RICE_BLOCK;
  block.n = n - i * ZPS_RICE_BLOCK < ZPS_RICE_BLOCK ? n - i * ZPS_RICE_BLOCK : ZPS_RICE_BLOCK;
  block.is_first = i == 0;
  return block;
}

__device__ __forceinline__ u32 first_parameter(const Plan &plan, u32 p) {
  const u32 *numbers;
  const u32 n = numbers_of(plan, p, &numbers);
  return zps_rice_parameter(zps_partition_size(&plan.part, p), n);
}

struct Gaps {
  u32 of_warp[WARPS][ZPS_RICE_BLOCK];
};

/* A warp for each block, a lane for the cost of each parameter. */
__global__ void __launch_bounds__(THREADS) rice_cost_kernel(Plan plan) {
  ZPS_SHARED(Gaps, gaps);
  enum { COST_MAX = 65535 };
  const u32 lane = lane_of_thread();
  u32 *const mine = gaps.of_warp[warp_of_thread()];
  const u64 n_blocks = plan.block_starts[plan.part.n_parts];
  for (u64 b = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); b < n_blocks;
       b += gridDim.x * static_cast<u64>(WARPS)) {
    const RiceBlock block = block_of(plan, b);
    for (u32 j = 0; j < PER_LANE; j++) mine[lane + j * WARP] = rice_gap(block, j);
    __syncwarp();
    u64 sum = static_cast<u64>(block.n) * (lane + 1);
    for (u32 i = 0; i < block.n; i++) sum += mine[i] >> lane;
    const u32 cost = sum < COST_MAX ? static_cast<u32>(sum) : static_cast<u32>(COST_MAX);
    const u32 best = warp_min(cost);
    const u32 is_best = __ballot_sync(ALL, cost == best), is_kept = __ballot_sync(ALL, cost <= best + ZPS_RICE_K_BITS);
    plan.costs[b * WARP + lane] = static_cast<uint16_t>(cost);
    if (lane == 0)
      plan.functions[b] = rice_function(static_cast<u32>(__ffs(static_cast<int>(is_kept))) - 1,
                                        31u - static_cast<u32>(__clz(static_cast<int>(is_kept))),
                                        static_cast<u32>(__ffs(static_cast<int>(is_best))) - 1,
                                        31u - static_cast<u32>(__clz(static_cast<int>(is_best))));
    __syncwarp();
  }
}

struct Chunk {
  u32 p;
  u64 first, end; /* blocks */
};

__device__ __forceinline__ Chunk chunk_of(const Plan &plan, u64 c) {
  Chunk chunk;
  chunk.p = find_start(plan.chunk_starts, plan.part.n_parts, c);
  chunk.first = plan.block_starts[chunk.p] + (c - plan.chunk_starts[chunk.p]) * CHUNK_BLOCKS;
  const u64 end = plan.block_starts[chunk.p + 1];
  chunk.end = end - chunk.first < CHUNK_BLOCKS ? end : chunk.first + CHUNK_BLOCKS;
  return chunk;
}

/* A warp for each chunk, a lane for each parameter before it: which one is left after the last block. */
__global__ void __launch_bounds__(THREADS) rice_tables_kernel(Plan plan) {
  const u64 n_chunks = plan.chunk_starts[plan.part.n_parts];
  const u32 lane = lane_of_thread();
  for (u64 c = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); c < n_chunks;
       c += gridDim.x * static_cast<u64>(WARPS)) {
    const Chunk chunk = chunk_of(plan, c);
    u32 k = lane;
    for (u64 b = chunk.first; b < chunk.end; b++) k = rice_apply(plan.functions[b], k);
    plan.tables[c * WARP + lane] = static_cast<uint8_t>(k);
  }
}

/* A warp for each partition: the parameter before each of its chunks. */
__global__ void __launch_bounds__(THREADS) rice_chain_kernel(Plan plan) {
  for (u32 p = blockIdx.x * WARPS + warp_of_thread(); p < plan.part.n_parts; p += gridDim.x * WARPS) {
    const u64 first = plan.chunk_starts[p], end = plan.chunk_starts[p + 1];
    u32 k = first < end ? first_parameter(plan, p) : 0;
    for (u64 c = first; c < end; c++) {
      if (lane_of_thread() == 0) plan.chunk_parameters[c] = static_cast<uint8_t>(k);
      k = __shfl_sync(ALL, static_cast<u32>(plan.tables[c * WARP + lane_of_thread()]), static_cast<int>(k));
    }
  }
}

/* A warp for each chunk: its blocks' parameters and bits. */
__global__ void __launch_bounds__(THREADS) rice_parameters_kernel(Plan plan) {
  const u64 n_chunks = plan.chunk_starts[plan.part.n_parts];
  const u32 lane = lane_of_thread();
  for (u64 c = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); c < n_chunks;
       c += gridDim.x * static_cast<u64>(WARPS)) {
    const Chunk chunk = chunk_of(plan, c);
    u32 k = plan.chunk_parameters[c];
    for (u64 first = chunk.first; first < chunk.end; first += WARP) {
      u32 before = 0, mine = 0; /* of block first + lane */
      for (u32 i = 0; i < WARP && first + i < chunk.end; i++) {
        if (i == lane) before = k;
        k = rice_apply(plan.functions[first + i], k);
        if (i == lane) mine = k;
      }
      const u64 b = first + lane;
      if (b >= chunk.end) continue;
      plan.parameters[b] = static_cast<uint8_t>(mine);
      plan.bits[b] = plan.costs[b * WARP + mine] + (mine == before ? 1u : +HEADER_BITS);
    }
  }
}

struct Words {
  u32 of_warp[WARPS][BLOCK_WORDS];
};

__device__ __forceinline__ void put(u32 *words, u32 at, u32 bits, u32 n_bits) {
  if (n_bits == 0) return;
  const u64 shifted = static_cast<u64>(bits) << at % 32;
  if (static_cast<u32>(shifted)) atomicOr(&words[at / 32], static_cast<u32>(shifted));
  if (shifted >> 32) atomicOr(&words[at / 32 + 1], static_cast<u32>(shifted >> 32));
}

/* A warp for each block puts it together in shared memory. Blocks share their first and last words. */
__global__ void __launch_bounds__(THREADS) rice_write_kernel(Plan plan, void *const *outs) {
  ZPS_SHARED(Words, shared);
  const u32 lane = lane_of_thread();
  u32 *const words = shared.of_warp[warp_of_thread()];
  const u64 n_blocks = plan.block_starts[plan.part.n_parts];
  for (u64 b = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); b < n_blocks;
       b += gridDim.x * static_cast<u64>(WARPS)) {
    const RiceBlock block = block_of(plan, b);
    const zps_device_slice slice = plan.slices[block.p];
    u32 *const out = static_cast<u32 *>(outs[block.p]);
    if (!out || (slice.codec != ZPS_CODEC_RICE && slice.codec != ZPS_CODEC_HOLES)) continue;
    const u64 start = 8 * values_bytes(plan, slice) + plan.bit_starts[b] - plan.bit_starts[plan.block_starts[block.p]];
    const u32 n_words = (static_cast<u32>(start % 32) + plan.bits[b] + 31) / 32;
    for (u32 i = lane; i < n_words; i += WARP) words[i] = 0;
    __syncwarp();

    const u32 k = plan.parameters[b];
    const u32 before = block.is_first ? first_parameter(plan, block.p) : *(plan.parameters + b - 1);
    u32 at = start % 32;
    if (lane == 0 && k != before) put(words, at, 1 | k << 1, HEADER_BITS);
    at += k == before ? 1u : +HEADER_BITS;
    u32 high = at + block.n * k;
    for (u32 j = 0; j < PER_LANE; j++) {
      const u32 gap = rice_gap(block, j), i = lane + j * WARP;
      if (i < block.n) put(words, at + i * k, gap & ((1u << k) - 1), k);
      u32 total;
      const u32 zeros = i < block.n ? (gap >> k) + 1 : 0, place = high + warp_prefix(zeros, &total);
      if (i < block.n) put(words, place + zeros - 1, 1, 1);
      high += total;
    }
    __syncwarp();
    for (u32 i = lane; i < n_words; i += WARP) {
      u32 *const to = out + start / 32 + i;
      if (i == 0 || i == n_words - 1)
        atomicOr(to, words[i]);
      else
        *to = words[i];
    }
    __syncwarp();
  }
}

}  // namespace

void rice_plan(cudaStream_t stream, const Grid &grid, const Plan &plan, Tickets *tickets, u64 *states) {
  const u32 n_parts = plan.part.n_parts;
  const u64 n_blocks = rice_blocks_max(plan.found.capacity, n_parts),
            n_chunks = rice_chunks_max(plan.found.capacity, n_parts);
  ZPS_LAUNCH(stream, blocks_for(grid, n_blocks, WARPS), THREADS, rice_cost_kernel, plan);
  ZPS_LAUNCH(stream, blocks_for(grid, n_chunks, WARPS), THREADS, rice_tables_kernel, plan);
  ZPS_LAUNCH(stream, blocks_for(grid, n_parts, WARPS), THREADS, rice_chain_kernel, plan);
  ZPS_LAUNCH(stream, blocks_for(grid, n_chunks, WARPS), THREADS, rice_parameters_kernel, plan);
  scan_u32(stream, grid, plan.bits, plan.block_starts + n_parts, n_blocks, plan.bit_starts, tickets, states);
}

void rice_write(cudaStream_t stream, const Grid &grid, const Plan &plan, void *const *outs) {
  const u64 n_blocks = rice_blocks_max(plan.found.capacity, plan.part.n_parts);
  ZPS_LAUNCH(stream, blocks_for(grid, n_blocks, WARPS), THREADS, rice_write_kernel, plan, outs);
}

}  // namespace zps
