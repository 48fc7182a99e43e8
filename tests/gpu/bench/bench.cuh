/* The rivals of zenps's own kernels: the paper's Algorithm 1, and the same job out of stock library calls. Both make,
 * for every partition, its rows and their values, in any order (the paper) or in that of rows (stock), and code
 * nothing. */
#ifndef ZPS_GPU_BENCH_BENCH_CUH
#define ZPS_GPU_BENCH_BENCH_CUH

#include <functional>

#include "gpu/cuda/kernels.cuh"

/* Prints the place and the error, and ends the program, which has nothing to save. */
void bench_check(cudaError_t code, const char *what);

/* A job over `rows` single floats on the device, of which `nnz` are not zero. */
struct BenchJob {
  const float *values;
  zps_partition part;
  zps::u64 nnz;
  zps::Grid grid;
  cudaStream_t stream;
};

/* The median time of `work` on the stream, in milliseconds. */
float bench_time(cudaStream_t stream, const std::function<void()> &work);

struct BenchRival {
  virtual ~BenchRival() {}
  virtual void run() = 0;
};
/* Memory is allocated here, and freed with the rival; r1 = 2 * nnz / n_parts and r2 = r1 / 10, as in the paper. */
BenchRival *bench_paper(const BenchJob &job);
BenchRival *bench_stock(const BenchJob &job);

/* Device memory that goes with its owner. */
class BenchMemory {
 public:
  explicit BenchMemory(size_t len_bytes) { bench_check(cudaMalloc(&at_, len_bytes ? len_bytes : 1), "memory"); }
  ~BenchMemory() { cudaFree(at_); }
  BenchMemory(const BenchMemory &) = delete;
  BenchMemory &operator=(const BenchMemory &) = delete;
  template <typename T>
  T *as() const {
    return static_cast<T *>(at_);
  }

 private:
  void *at_ = nullptr;
};

/* Milliseconds to select k of the job's values, in order, and all from the magnitude of the last one on. `values` is
 * room for them: they are drawn there. */
struct BenchSelection {
  float topk_ms, stock_topk_ms, threshold_ms, stock_threshold_ms;
};
BenchSelection bench_selection(zps_device *device, BenchJob job, float *values, zps::u64 k);

/* Prints which calls of CUDA wait for work that they have nothing to do with. */
void bench_stops(zps_device *device);

#endif
