/* Selection by magnitude: worker/sparsify's, on a device. */
#ifndef ZPS_GPU_CUDA_SELECT_CUH
#define ZPS_GPU_CUDA_SELECT_CUH

#include "gpu/cuda/kernels.cuh"

namespace zps {

/* The magnitude (a value's bits without the sign) from which on entries are picked, and the number of those that equal
 * it. */
struct Cut {
  u64 magnitude, ties;
};
/* The progress of a radix select. */
struct Ranking {
  u64 prefix;  /* the digits that are known */
  u64 k, left; /* entries wanted, and of those with this prefix */
};
enum { SELECT_BITS = 8, SELECT_BINS = 1 << SELECT_BITS };
inline u32 select_passes(enum zps_dtype dtype) {
  return dtype == ZPS_DTYPE_F32 ? 4 : 8;
}
u64 pick_tiles(u64 n);

void feedback_add(cudaStream_t stream, const Grid &grid, const zps_device_feedback &feedback, const void *gradient,
                  double factor);
void feedback_clear(cudaStream_t stream, const Grid &grid, const zps_device_feedback &feedback, const int64_t *ids,
                    u64 n);
/* One value from each of n_sample equal stretches of the n. */
void sample_values(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, u64 key,
                   void *sample, u64 n_sample);
/* Samples the sums that feedback_add() is going to make of the residual. */
void sample_sums(cudaStream_t stream, const Grid &grid, const zps_device_feedback &feedback, const void *gradient,
                 double factor, u64 key, void *sample, u64 n_sample);
/* The cut that leaves the k greatest of n > k values; with is_exact no more, else all that equal the last. `counts` are
 * select_passes() * SELECT_BINS zeros. */
void find_cut(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, u64 k,
              bool is_exact, u64 *counts, Ranking *ranking, Cut *cut);
/* Entries from the cut on, in order; *count gets how many there are, also beyond the capacity. */
void pick(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, const Cut *cut,
          int64_t *ids, void *picked, u64 capacity, u64 *count, Tickets *tickets, u64 *states);
/* The k greatest of each `size` consecutive values, in order; `states`: one for each bucket. */
void pick_buckets(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u64 n, u64 size,
                  u64 k, int64_t *ids, void *picked, u64 capacity, u64 *count, Tickets *tickets, u64 *states);

}  // namespace zps

#endif
