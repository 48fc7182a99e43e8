/* The same job out of CUB: select the rows, sort them by partition (stable: rows stay in order), gather the values. */
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

#include "tests/gpu/bench/bench.cuh"

namespace {

using namespace zps;

struct IsNotZero {
  const float *values;
  __device__ bool operator()(u32 row) const { return values[row] != 0; }
};

__global__ void __launch_bounds__(THREADS) parts_kernel(zps_partition part, const u32 *rows, u64 n, u32 *parts) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  u32 index;
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride)
    parts[i] = zps_partition_of(&part, rows[i], &index);
}

__global__ void __launch_bounds__(THREADS) gather_kernel(const float *values, const u32 *rows, u64 n, float *out) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) out[i] = values[rows[i]];
}

int bits_for(u32 n_parts) {
  int bits = 0;
  while (bits < 32 && (n_parts - 1) >> bits != 0) bits++;
  return bits ? bits : 1;
}

class Stock : public BenchRival {
 public:
  explicit Stock(const BenchJob &job)
      : job_(job),
        rows_(job.nnz * 4),
        sorted_rows_(job.nnz * 4),
        parts_(job.nnz * 4),
        sorted_parts_(job.nnz * 4),
        values_(job.nnz * 4),
        count_(8),
        select_bytes_(0),
        sort_bytes_(0) {
    select(nullptr, &select_bytes_);
    sort(nullptr, &sort_bytes_);
    scratch_ = new BenchMemory(select_bytes_ > sort_bytes_ ? select_bytes_ : sort_bytes_);
  }
  ~Stock() override { delete scratch_; }

  void run() override {
    const u32 blocks = blocks_for(job_.grid, job_.nnz, THREADS);
    select(scratch_->as<void>(), &select_bytes_);
    ZPS_LAUNCH(job_.stream, blocks, THREADS, parts_kernel, job_.part, rows_.as<u32>(), job_.nnz, parts_.as<u32>());
    sort(scratch_->as<void>(), &sort_bytes_);
    ZPS_LAUNCH(job_.stream, blocks, THREADS, gather_kernel, job_.values, sorted_rows_.as<u32>(), job_.nnz,
               values_.as<float>());
  }

 private:
  /* With no memory these two only say how much they want. */
  void select(void *memory, size_t *len_bytes) {
    bench_check(
        cub::DeviceSelect::If(memory, *len_bytes, thrust::counting_iterator<u32>(0), rows_.as<u32>(), count_.as<u32>(),
                              static_cast<int>(job_.part.rows), IsNotZero{job_.values}, job_.stream),
        "select");
  }
  void sort(void *memory, size_t *len_bytes) {
    bench_check(cub::DeviceRadixSort::SortPairs(memory, *len_bytes, parts_.as<u32>(), sorted_parts_.as<u32>(),
                                                rows_.as<u32>(), sorted_rows_.as<u32>(), static_cast<int>(job_.nnz), 0,
                                                bits_for(job_.part.n_parts), job_.stream),
                "sort");
  }

  BenchJob job_;
  BenchMemory rows_, sorted_rows_, parts_, sorted_parts_, values_, count_;
  size_t select_bytes_, sort_bytes_;
  BenchMemory *scratch_ = nullptr;
};

}  // namespace

BenchRival *bench_stock(const BenchJob &job) {
  return new Stock(job);
}
