/* Selecting of a dense gradient: the k greatest magnitudes, and all from a magnitude on, beside the same out of CUB. */
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/gpu/bench/bench.cuh"

namespace {

using namespace zps;

enum { SIGN = 0x80000000u };

/* Magnitudes spread evenly, of both signs. */
__global__ void __launch_bounds__(THREADS) fill_kernel(float *values, u64 n, u64 seed) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride)
    values[i] = static_cast<float>(static_cast<int>(zps_hash_mix64(i ^ seed) >> 32)) * 0x1p-31f;
}

__global__ void __launch_bounds__(THREADS) magnitudes_kernel(const u32 *values, u64 n, u32 *magnitudes, u32 *rows) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    magnitudes[i] = values[i] & ~SIGN;
    rows[i] = static_cast<u32>(i);
  }
}

__global__ void __launch_bounds__(THREADS) gather_kernel(const float *values, const u32 *rows, u64 n, float *out) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) out[i] = values[rows[i]];
}

struct IsFrom {
  const u32 *values;
  u32 magnitude;
  __device__ bool operator()(u32 row) const { return (values[row] & ~SIGN) >= magnitude; }
};

/* zenps's own, by the vtable's calls. */
class Selector {
 public:
  Selector(zps_device *device, const BenchJob &job, u64 capacity)
      : device_(device), job_(job), ids_(capacity * 8), values_(capacity * 4), capacity_(capacity) {
    feedback_ = zps_device_feedback();
    feedback_.dtype = ZPS_DTYPE_F32;
    feedback_.n = job.part.rows;
    feedback_.decay = 1;
    feedback_.residual_on_device = const_cast<float *>(job.values);
    must(device->ops->selector_create(device, &selector_, &error_));
  }
  ~Selector() { device_->ops->selector_destroy(selector_); }
  Selector(const Selector &) = delete;
  Selector &operator=(const Selector &) = delete;

  float time(const zps_device_cut &cut) {
    return bench_time(job_.stream, [&] {
      must(device_->ops->selector_pick(selector_, &feedback_, &cut, ids_.as<int64_t>(), values_.as<void>(), capacity_,
                                       job_.stream, &error_));
    });
  }
  zps_device_selected selected() {
    zps_device_selected selected;
    bench_check(cudaStreamSynchronize(job_.stream), "selection");
    must(device_->ops->selector_finish(selector_, &selected, &error_));
    return selected;
  }

 private:
  void must(zps_err_t code) const {
    if (code == ZPS_OK) return;
    std::fprintf(stderr, "gpu-bench: selection: %s\n", error_.text);
    std::exit(1);
  }

  zps_device *device_;
  BenchJob job_;
  BenchMemory ids_, values_;
  u64 capacity_;
  zps_device_feedback feedback_;
  zps_device_selector *selector_ = nullptr;
  zps_error error_ = zps_error();
};

/* A sort of all magnitudes with their rows; the first k rows in order; their values. */
float time_stock_topk(const BenchJob &job, u64 k) {
  const u64 n = job.part.rows;
  const int n_sorted = static_cast<int>(n), n_kept = static_cast<int>(k);
  BenchMemory keys(n * 4), sorted_keys(n * 4), rows(n * 4), sorted_rows(n * 4), out(k * 4), count(8);
  size_t sort_bytes = 0, order_bytes = 0;
  const auto sort = [&](void *memory, size_t *len_bytes) {
    bench_check(
        cub::DeviceRadixSort::SortPairsDescending(memory, *len_bytes, keys.as<u32>(), sorted_keys.as<u32>(),
                                                  rows.as<u32>(), sorted_rows.as<u32>(), n_sorted, 0, 31, job.stream),
        "sort of magnitudes");
  };
  const auto order = [&](void *memory, size_t *len_bytes) {
    bench_check(cub::DeviceRadixSort::SortKeys(memory, *len_bytes, sorted_rows.as<u32>(), rows.as<u32>(), n_kept, 0, 32,
                                               job.stream),
                "sort of rows");
  };
  sort(nullptr, &sort_bytes);
  order(nullptr, &order_bytes);
  BenchMemory scratch(std::max(sort_bytes, order_bytes));
  return bench_time(job.stream, [&] {
    ZPS_LAUNCH(job.stream, blocks_for(job.grid, n, THREADS), THREADS, magnitudes_kernel,
               reinterpret_cast<const u32 *>(job.values), n, keys.as<u32>(), rows.as<u32>());
    sort(scratch.as<void>(), &sort_bytes);
    order(scratch.as<void>(), &order_bytes);
    ZPS_LAUNCH(job.stream, blocks_for(job.grid, k, THREADS), THREADS, gather_kernel, job.values, rows.as<u32>(), k,
               out.as<float>());
  });
}

float time_stock_threshold(const BenchJob &job, u32 magnitude, u64 n_selected) {
  BenchMemory rows(n_selected * 4), out(n_selected * 4), count(8);
  size_t select_bytes = 0;
  const IsFrom is_from = {reinterpret_cast<const u32 *>(job.values), magnitude};
  const auto select = [&](void *memory, size_t *len_bytes) {
    bench_check(cub::DeviceSelect::If(memory, *len_bytes, thrust::counting_iterator<u32>(0), rows.as<u32>(),
                                      count.as<u32>(), static_cast<int>(job.part.rows), is_from, job.stream),
                "select");
  };
  select(nullptr, &select_bytes);
  BenchMemory scratch(select_bytes);
  return bench_time(job.stream, [&] {
    select(scratch.as<void>(), &select_bytes);
    ZPS_LAUNCH(job.stream, blocks_for(job.grid, n_selected, THREADS), THREADS, gather_kernel, job.values,
               rows.as<u32>(), n_selected, out.as<float>());
  });
}

}  // namespace

BenchSelection bench_selection(zps_device *device, BenchJob job, float *values, u64 k) {
  BenchSelection result = BenchSelection();
  ZPS_LAUNCH(job.stream, blocks_for(job.grid, job.part.rows, THREADS), THREADS, fill_kernel, values, job.part.rows,
             11ull);
  job.values = values;
  zps_device_selected selected;
  {
    Selector selector(device, job, k + k / 8 + 4096); /* a threshold also takes those that equal the last one */
    zps_device_cut cut = zps_device_cut();
    cut.kind = ZPS_CUT_TOPK;
    cut.k = k;
    result.topk_ms = selector.time(cut);
    cut.kind = ZPS_CUT_THRESHOLD;
    cut.magnitude = selector.selected().magnitude;
    result.threshold_ms = selector.time(cut);
    selected = selector.selected();
  }
  result.stock_topk_ms = time_stock_topk(job, k);
  result.stock_threshold_ms = time_stock_threshold(job, static_cast<u32>(selected.magnitude), selected.n);
  return result;
}
