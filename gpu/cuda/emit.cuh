/* From marks to lists. */
#ifndef ZPS_GPU_CUDA_EMIT_CUH
#define ZPS_GPU_CUDA_EMIT_CUH

#include "gpu/cuda/kernels.cuh"

namespace zps {

__device__ __forceinline__ void emit(const Found &found, u64 at, u32 p, u32 index, u32 payload) {
  if (at >= found.capacity) return;
  found.parts[at] = static_cast<uint16_t>(p);
  found.indices[at] = index;
  if (found.payloads) found.payloads[at] = payload;
}

__device__ __forceinline__ void emit_row(const Found &found, u64 at, const zps_partition &part, u64 row, u32 payload) {
  u32 index;
  const u32 p = zps_partition_of(&part, row, &index);
  emit(found, at, p, index, payload);
}

/* Finds those of WARP items, `lanes` lanes for each, of which a lane says yes: predicate(item, lane of its lanes). All
 * lanes of the warp get the answers. */
template <typename Predicate>
__device__ __forceinline__ u32 mark_word(u32 lanes, Predicate predicate) {
  const u32 at_once = WARP / lanes, lane = lane_of_thread();
  const u32 of_item = lanes == WARP ? ALL : (1u << lanes) - 1;
  u32 marks = 0;
  for (u32 first = 0; first < WARP; first += at_once) {
    const u32 yes = __ballot_sync(ALL, predicate(first + lane / lanes, lane % lanes));
    marks |= __ballot_sync(ALL, lane < at_once && (yes >> lane * lanes & of_item) != 0) << first;
  }
  return marks;
}

/* A thread takes a word's bits. */
enum { LIST_TILE_BITS = THREADS * WARP };

struct ListTile {
  BlockSums sums;
  uint16_t bits[LIST_TILE_BITS]; /* those that are set, within the tile */
};

/* Calls emit(found, place, bit) for every bit that is set, in order. `starts`: places of the tiles, and of all. */
template <typename Emit>
__global__ void __launch_bounds__(THREADS)
    list_kernel(const u32 *bits, u64 n_bits, Emit emit, Found found, const u64 *starts) {
  ZPS_SHARED(ListTile, shared);
  const u64 n_words = (n_bits + WARP - 1) / WARP, n_tiles = (n_words + THREADS - 1) / THREADS;
  if (blockIdx.x == 0 && threadIdx.x == 0) *found.count = starts[n_tiles];
  for (u64 tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
    const u64 word = tile * THREADS + threadIdx.x, start = starts[tile];
    u32 marks = word < n_words ? bits[word] : 0;
    u64 n;
    u32 place = static_cast<u32>(block_prefix(static_cast<u64>(__popc(marks)), &shared.sums, &n));
    for (; marks; marks &= marks - 1)
      shared.bits[place++] =
          static_cast<uint16_t>(threadIdx.x * WARP + static_cast<u32>(__ffs(static_cast<int>(marks))) - 1);
    __syncthreads();
    /* Neighbours write to neighbouring places. */
    for (u32 i = threadIdx.x; i < n; i += THREADS) emit(found, start + i, tile * LIST_TILE_BITS + shared.bits[i]);
    __syncthreads();
  }
}

/* The bits that are set in each tile; a warp takes a tile. */
void count_bits(cudaStream_t stream, const Grid &grid, const u32 *bits, u64 n_bits, u64 *counts);

template <typename Emit>
void list_bits(cudaStream_t stream, const Grid &grid, const u32 *bits, u64 n_bits, const Emit &emit, const Found &found,
               u64 *space) {
  count_bits(stream, grid, bits, n_bits, space);
  scan_in_place(stream, grid, space, (n_bits + LIST_TILE_BITS - 1) / LIST_TILE_BITS);
  ZPS_LAUNCH(stream, blocks_for(grid, n_bits, LIST_TILE_BITS), THREADS, list_kernel<Emit>, bits, n_bits, emit, found,
             space);
}

}  // namespace zps

#endif
