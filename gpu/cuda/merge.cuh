#ifndef ZPS_GPU_CUDA_MERGE_CUH
#define ZPS_GPU_CUDA_MERGE_CUH

#include "gpu/cuda/kernels.cuh"

namespace zps {

struct Merge {
  const u64 *word_starts; /* of each partition's bits; n_parts + 1 */
  u64 n_words;
  u32 *bits;        /* zero at first */
  u32 *counts;      /* set in each word */
  u64 *word_counts; /* set before each word */
  void *sums;       /* of the rows found, in their order; zero at first */
};

/* Lists the rows that there are in `found`. One ticket; states for scan_tiles(n_words), list_space(32 * n_words). */
void merge_union(cudaStream_t stream, const Grid &grid, const Merge &merge, const Reading &reading, const Found &found,
                 Tickets *tickets, u64 *scan_states, u64 *space);
/* Adds the rows of n_ranks times n_parts views, rank by rank. */
void merge_add(cudaStream_t stream, const Grid &grid, const Merge &merge, const Reading &reading, u32 n_ranks);

}  // namespace zps

#endif
