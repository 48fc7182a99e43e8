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

/* A thread lists a word's bits. */
enum { LIST_TILE_BITS = THREADS * WARP };

/* Calls emit(found, place, bit) for every bit that is set, in order. */
template <typename Emit>
__global__ void __launch_bounds__(THREADS)
    list_kernel(const u32 *bits, u64 n_bits, Emit emit, Found found, Tickets *tickets, u64 *states) {
  ZPS_SHARED(BlockSums, sums);
  ZPS_SHARED(u64, ticket);
  const u64 n_words = (n_bits + WARP - 1) / WARP, n_tiles = (n_words + THREADS - 1) / THREADS;
  for (u64 tile; (tile = take_tile(tickets, &ticket)) < n_tiles;) {
    const u64 word = tile * THREADS + threadIdx.x;
    u32 marks = word < n_words ? bits[word] : 0;
    u64 all;
    u64 at = grid_prefix(static_cast<u64>(__popc(marks)), &sums, states, tile, &all);
    for (; marks; marks &= marks - 1)
      emit(found, at++, word * WARP + static_cast<u32>(__ffs(static_cast<int>(marks))) - 1);
    if (tile == n_tiles - 1 && threadIdx.x == 0) *found.count = all;
  }
}

}  // namespace zps

#endif
