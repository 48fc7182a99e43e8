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
  u64 n;            /* rows; the most there can be, where `count` tells how many they are */
  const u64 *count; /* NULL: n */
  u32 k;
  u64 r1, r2;       /* slots of each partition's parallel memory and, behind it, of its serial memory; r1 0: the paper's
                       2 * rows / n_parts, and a tenth of that where r2 is 0, too */
  const u64 *extra; /* starts of further serial slots, of each partition one after the other; n_parts + 1 */
  u64 seed;
  u64 n_slots; /* the most that there can be */
  Index *slots;
  uint8_t *states; /* of each row */
  u64 *counters;   /* by partition: serial slots asked for */
  u64 *counts;     /* HASH_COUNTS */
  u32 *bits;       /* n_slots of them */
  u64 *list_space; /* list_space(n_slots) */
  Index *out;
  u64 *starts;
  const u64 *run_keys; /* of a list, sorted: those of all its entries; NULL: of a dense gradient */
  u64 n_run_keys;
};
/* What r1 and r2 come to with n rows. */
struct HashSlots {
  u64 r1, r2;
};
__host__ __device__ __forceinline__ HashSlots hash_slots(u64 r1, u64 r2, u64 n, u32 n_parts) {
  if (r1) return {r1, r2};
  const u64 twice = 2 * n / n_parts;
  r1 = twice ? twice : 1;
  return {r1, r2 ? r2 : r1 / 10};
}

enum { HASH_K = 3 }; /* hash functions, by default */
enum { HASH_PARALLEL = 0, HASH_LOST = 1, HASH_COLLECTED = 2, HASH_COUNTS = 3 };

/* Up to the collection; counters tell whether a serial memory was too small. */
template <typename Index>
void hash_insert(cudaStream_t stream, const Grid &grid, const Hashing<Index> &hashing);
/* Fills out and starts; the number of rows must be known. */
template <typename Index>
void hash_collect(cudaStream_t stream, const Grid &grid, const Hashing<Index> &hashing);
/* Lists the rows by partition, in the order of their slots, with their numbers as payload (of a list: the places of
 * their runs); or as keys, partition << 32 | index, and payloads. */
void hash_list(cudaStream_t stream, const Grid &grid, const Hashing<u32> &hashing, const Found &found);
void hash_keys(cudaStream_t stream, const Grid &grid, const Hashing<u32> &hashing, const Found &found, u64 *keys,
               u32 *payloads);
/* Lists keys and payloads that have been sorted. */
void hash_take(cudaStream_t stream, const Grid &grid, const u64 *keys, const u32 *payloads, const Found &found);

}  // namespace zps

#endif
