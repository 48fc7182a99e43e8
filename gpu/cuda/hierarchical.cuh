/* Zen's Algorithm 1 on a device; common/codec/hierarchical.h describes it. */
#ifndef ZPS_GPU_CUDA_HIERARCHICAL_CUH
#define ZPS_GPU_CUDA_HIERARCHICAL_CUH

#include "gpu/cuda/kernels.cuh"

namespace zps {

/* One run. Index is as wide as the slots: u32 where rows fit, as in the paper. All ones mark an empty slot. */
template <typename Index>
struct Hashing {
  zps_partition part; /* h0 */
  const Index *rows;
  u64 n;
  u32 k;
  u64 r1;
  u64 seed;
  const u64 *slot_starts; /* of each partition's memory, r1 parallel slots and then the serial ones; n_parts + 1 */
  u64 n_slots;
  Index *slots;
  uint8_t *states;  /* of each row */
  u64 *counters;    /* by partition: serial slots asked for */
  u64 *counts;      /* HASH_COUNTS */
  u32 *bits;        /* n_slots of them */
  Tickets *tickets; /* zero */
  u64 *tile_states; /* list_tiles(n_slots), zero */
  Index *out;
  u64 *starts;
};
enum { HASH_PARALLEL = 0, HASH_LOST = 1, HASH_COLLECTED = 2, HASH_COUNTS = 3 };

/* Up to the collection; counters tell whether a serial memory was too small. */
template <typename Index>
void hash_insert(cudaStream_t stream, const Grid &grid, const Hashing<Index> &hashing);
/* Fills out and starts. */
template <typename Index>
void hash_collect(cudaStream_t stream, const Grid &grid, const Hashing<Index> &hashing);

}  // namespace zps

#endif
