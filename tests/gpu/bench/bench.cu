/* Checks the kernels against the CPU, then times them. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/bench/bench.cuh"

extern "C" {
#include "tests/gpu/bench/check.h"
#include "tests/support/device_cpu.h"
}

void bench_check(cudaError_t code, const char *what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "gpu-bench: %s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}

enum { REPEATS = 11, WARM_UPS = 2 };
static int repeats = REPEATS;

float bench_time(cudaStream_t stream, const std::function<void()> &work) {
  cudaEvent_t begin, end;
  bench_check(cudaEventCreate(&begin), "event");
  bench_check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < WARM_UPS + repeats; i++) {
    bench_check(cudaEventRecord(begin, stream), "event");
    work();
    bench_check(cudaGetLastError(), "launch");
    bench_check(cudaEventRecord(end, stream), "event");
    bench_check(cudaEventSynchronize(end), "work");
    float ms = 0;
    bench_check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= WARM_UPS) times.push_back(ms);
  }
  bench_check(cudaEventDestroy(begin), "event");
  bench_check(cudaEventDestroy(end), "event");
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

namespace {

using namespace zps;

enum { CODECS = (1u << ZPS_CODEC_COUNT) - 1, SLICE_ALIGNMENT = 256 };

struct Options {
  bool json = false, quick = false, skip_check = false, skip_times = false, stops = false;
  u32 n_parts = 64;
  u64 rows = 0;       /* 0: DeepFM's and LSTM's */
  double density = 0; /* 0: several */
  int repeats = REPEATS;
};

/* Values of a random gradient: row i is not zero when its hash says so. */
__global__ void __launch_bounds__(THREADS) fill_kernel(float *values, u64 rows, u64 threshold, u64 seed, u64 *nnz) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  u32 mine = 0;
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < rows; i += stride) {
    const u64 hash = zps_hash_mix64(i ^ seed);
    const bool is_there = (hash >> 32) < threshold;
    values[i] = is_there ? 1.0f + static_cast<float>(hash & 0xffff) : 0.0f;
    mine += is_there;
  }
  mine = warp_sum(mine);
  if (lane_of_thread() == 0) atomicAdd(nnz, static_cast<u64>(mine));
}

/* One look at the whole tensor: the least time of any kernel that reads it. */
__global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *values, u64 n, u32 *out) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  u32 any = 0;
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    const uint4 four = values[i];
    any |= four.x ^ four.y ^ four.z ^ four.w;
  }
  if (any == 0x12345678u) *out = any; /* so that nothing is left out */
}

void must(zps_err_t code, const zps_error &error, const char *what) {
  if (code == ZPS_OK) return;
  std::fprintf(stderr, "gpu-bench: %s: %s\n", what, error.text);
  std::exit(1);
}

struct Result {
  u64 rows, nnz, bytes; /* of all slices */
  double density;
  float read_ms, copy_ms, scan_ms, write_ms, encode_ms, decode_ms, paper_ms, stock_ms;
  BenchSelection selection;
};

/* zenps's own: the vtable's calls, as the worker makes them. */
class Coder {
 public:
  Coder(zps_device *device, const BenchJob &job) : device_(device), job_(job) {
    must(device->ops->encoder_create(device, &encoder_, &error_), error_, "encoder");
    must(device->ops->decoder_create(device, &decoder_, &error_), error_, "decoder");
    input_ = zps_encode_input();
    input_.part = &job_.part;
    input_.width = 1;
    input_.dtype = ZPS_DTYPE_F32;
    input_.value_codec = ZPS_VALUES_RAW;
    input_.values = job.values;
    while (!scan()) continue;
    u64 total = 0;
    for (u32 p = 0; p < job.part.n_parts; p++)
      total += (slices_[p].len_bytes + SLICE_ALIGNMENT - 1) / SLICE_ALIGNMENT * SLICE_ALIGNMENT;
    bench_check(cudaMalloc(&memory_, total + SLICE_ALIGNMENT), "slices");
    char *at = static_cast<char *>(memory_);
    for (u32 p = 0; p < job.part.n_parts; p++) {
      outs_.push_back(at);
      views_.push_back({slices_[p].codec, ZPS_VALUES_RAW, p, slices_[p].nnz, slices_[p].len_bytes, at});
      at += (slices_[p].len_bytes + SLICE_ALIGNMENT - 1) / SLICE_ALIGNMENT * SLICE_ALIGNMENT;
      bytes_ += slices_[p].len_bytes;
    }
  }
  ~Coder() {
    device_->ops->encoder_destroy(encoder_);
    device_->ops->decoder_destroy(decoder_);
    cudaFree(memory_);
  }
  Coder(const Coder &) = delete;
  Coder &operator=(const Coder &) = delete;

  void submit_scan() {
    must(device_->ops->encoder_scan(encoder_, &input_, CODECS, job_.stream, &error_), error_, "scan");
  }
  /* False: its memory has grown, and it must be called again. */
  bool scan() {
    submit_scan();
    bench_check(cudaStreamSynchronize(job_.stream), "scan");
    const zps_err_t code = device_->ops->encoder_finish(encoder_, &slices_, &error_);
    if (code != ZPS_ERR_AGAIN) must(code, error_, "scan");
    return code == ZPS_OK;
  }
  void write() { must(device_->ops->encoder_write(encoder_, outs_.data(), job_.stream, &error_), error_, "write"); }
  void decode(float *dense) {
    must(device_->ops->clear(device_, dense, job_.part.rows * sizeof *dense, job_.stream, &error_), error_, "clear");
    must(device_->ops->decoder_dense(decoder_, &job_.part, 1, ZPS_DTYPE_F32, views_.data(), job_.part.n_parts, dense,
                                     job_.stream, &error_),
         error_, "decode");
  }
  void finish_decoding() { must(device_->ops->decoder_finish(decoder_, &error_), error_, "decode"); }
  u64 bytes() const { return bytes_; }

 private:
  zps_device *device_;
  BenchJob job_;
  zps_encode_input input_;
  zps_device_encoder *encoder_ = nullptr;
  zps_device_decoder *decoder_ = nullptr;
  zps_error error_ = zps_error();
  const zps_device_slice *slices_ = nullptr;
  std::vector<void *> outs_;
  std::vector<zps_device_view> views_;
  void *memory_ = nullptr;
  u64 bytes_ = 0;
};

float time_rival(const BenchJob &job, BenchRival *rival) {
  const float ms = bench_time(job.stream, [=] { rival->run(); });
  delete rival;
  return ms;
}

Result measure(zps_device *device, const Grid &grid, u64 rows, double density, u32 n_parts) {
  Result result = Result();
  BenchMemory values(rows * sizeof(float)), dense(rows * sizeof(float)), nnz(sizeof(u64));
  BenchJob job = BenchJob();
  zps_error error = zps_error();
  must(zps_partition_init(&job.part, rows, n_parts, 0, 1, &error), error, "partition");
  bench_check(cudaStreamCreateWithFlags(&job.stream, cudaStreamNonBlocking), "stream");
  job.values = values.as<float>();
  job.grid = grid;
  bench_check(cudaMemset(nnz.as<u64>(), 0, sizeof(u64)), "clear");
  bench_check(cudaDeviceSynchronize(), "clear");
  ZPS_LAUNCH(job.stream, grid.blocks_max, THREADS, fill_kernel, values.as<float>(), rows,
             static_cast<u64>(density / 100 * 4294967296.0), 7ull, nnz.as<u64>());
  bench_check(cudaStreamSynchronize(job.stream), "fill");
  bench_check(cudaMemcpy(&job.nnz, nnz.as<u64>(), sizeof(u64), cudaMemcpyDefault), "count");
  result.rows = rows;
  result.density = density;
  result.nnz = job.nnz;
  result.copy_ms = bench_time(job.stream, [&] {
    bench_check(cudaMemcpyAsync(dense.as<void>(), values.as<void>(), rows * sizeof(float), cudaMemcpyDeviceToDevice,
                                job.stream),
                "copy");
  });
  result.read_ms = bench_time(job.stream, [&] {
    ZPS_LAUNCH(job.stream, grid.blocks_max, THREADS, read_kernel, values.as<uint4>(), rows / 4, dense.as<u32>());
  });
  {
    Coder coder(device, job);
    result.bytes = coder.bytes();
    result.scan_ms = bench_time(job.stream, [&] { coder.submit_scan(); });
    result.write_ms = bench_time(job.stream, [&] { coder.write(); });
    /* with the host's look at the sizes in between */
    result.encode_ms = bench_time(job.stream, [&] {
      (void)coder.scan();
      coder.write();
    });
    result.decode_ms = bench_time(job.stream, [&] { coder.decode(dense.as<float>()); });
    coder.finish_decoding();
  }
  result.paper_ms = time_rival(job, bench_paper(job));
  result.stock_ms = time_rival(job, bench_stock(job));
  result.selection = bench_selection(device, job, dense.as<float>(), job.nnz);
  bench_check(cudaStreamDestroy(job.stream), "stream");
  return result;
}

void print_json(const Result &result, bool is_first) {
  const double gb = static_cast<double>(result.rows) * sizeof(float) / 1e6; /* per ms: GB/s */
  std::printf(
      "%s\n    {\"rows\": %llu, \"density_percent\": %g, \"nnz\": %llu, \"slice_bytes\": %llu,\n"
      "     \"copy_ms\": %.4f, \"copy_gb_s\": %.1f, \"read_ms\": %.4f, \"scan_ms\": %.4f, \"write_ms\": %.4f,\n"
      "     \"encode_ms\": %.4f, \"encode_reads\": %.3f, \"encode_share_of_copy\": %.3f, \"decode_ms\": %.4f,\n"
      "     \"paper_ms\": %.4f, \"stock_ms\": %.4f, \"paper_over_encode\": %.2f, \"stock_over_encode\": %.2f,\n"
      "     \"topk_ms\": %.4f, \"stock_topk_ms\": %.4f, \"threshold_ms\": %.4f, \"stock_threshold_ms\": %.4f}",
      is_first ? "" : ",", result.rows, result.density, result.nnz, result.bytes, result.copy_ms,
      2 * gb / result.copy_ms, result.read_ms, result.scan_ms, result.write_ms, result.encode_ms,
      result.encode_ms / result.read_ms, gb / result.encode_ms / (2 * gb / result.copy_ms), result.decode_ms,
      result.paper_ms, result.stock_ms, result.paper_ms / result.encode_ms, result.stock_ms / result.encode_ms,
      result.selection.topk_ms, result.selection.stock_topk_ms, result.selection.threshold_ms,
      result.selection.stock_threshold_ms);
}

/* Milliseconds, and how many device copies take as long. */
void print_copies(const Result &result, float ms) {
  std::printf(" %.3f (%.2f) |", ms, ms / result.copy_ms);
}

void print_row(const Result &result) {
  const double gb = static_cast<double>(result.rows) * sizeof(float) / 1e6;
  std::printf("| %.0fM | %g%% | %.3f | %.3f | %.3f (%.2f reads, %.0f%% of copy) | %.3f | %.3f (%.1fx) | %.3f (%.1fx) |",
              static_cast<double>(result.rows) / 1e6, result.density, result.copy_ms, result.read_ms, result.encode_ms,
              result.encode_ms / result.read_ms, 100 * (gb / result.encode_ms) / (2 * gb / result.copy_ms),
              result.decode_ms, result.paper_ms, result.paper_ms / result.encode_ms, result.stock_ms,
              result.stock_ms / result.encode_ms);
  print_copies(result, result.selection.topk_ms);
  print_copies(result, result.selection.stock_topk_ms);
  print_copies(result, result.selection.threshold_ms);
  print_copies(result, result.selection.stock_threshold_ms);
  std::printf("\n");
}

Options parse(int argc, char **argv) {
  Options options;
  for (int i = 1; i < argc; i++) {
    if (std::strcmp(argv[i], "--json") == 0) {
      options.json = true;
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      options.quick = true;
    } else if (std::strcmp(argv[i], "--no-check") == 0) {
      options.skip_check = true;
    } else if (std::strcmp(argv[i], "--no-times") == 0) {
      options.skip_times = true;
    } else if (std::strcmp(argv[i], "--stops") == 0) {
      options.stops = true;
    } else if (std::strncmp(argv[i], "--parts=", 8) == 0 && std::atoi(argv[i] + 8) > 0) {
      options.n_parts = static_cast<u32>(std::atoi(argv[i] + 8));
    } else if (std::strncmp(argv[i], "--rows=", 7) == 0 && std::atoi(argv[i] + 7) > 0) {
      options.rows = static_cast<u64>(std::atoi(argv[i] + 7));
    } else if (std::strncmp(argv[i], "--density=", 10) == 0 && std::atof(argv[i] + 10) > 0) {
      options.density = std::atof(argv[i] + 10);
    } else if (std::strncmp(argv[i], "--repeats=", 10) == 0 && std::atoi(argv[i] + 10) > 0) {
      options.repeats = std::atoi(argv[i] + 10);
    } else {
      std::fprintf(
          stderr,
          "usage: gpu-bench [--stops] [--json] [--quick] [--no-check] [--no-times] [--parts=N] [--rows=N] "
          "[--density=PERCENT]\n"
          "                 [--repeats=N]\n"
          "  --stops: only which calls of CUDA wait for unrelated work; --quick: a tenth of the rows; --no-check: only "
          "times; --no-times: only the comparison with the "
          "cpu; --parts: partitions (64); --rows, --density: of one tensor alone; --repeats: of which a time is the "
          "median (11)\n");
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char **argv) {
  const Options options = parse(argc, argv);
  zps_device *cpu, *device;
  zps_error error = zps_error();
  must(zps_device_cpu_open(nullptr, &cpu, &error), error, "cpu");
  must(zps_cuda_device_open(ZPS_DEVICE_ABI, 0, &device, &error), error, "cuda");
  if (options.stops) {
    bench_stops(device);
    return 0;
  }
  cudaDeviceProp properties;
  int driver = 0;
  bench_check(cudaGetDeviceProperties(&properties, 0), "device");
  bench_check(cudaDriverGetVersion(&driver), "driver");
  unsigned n_checks = 0;
  if (!options.skip_check && !zps_bench_check(cpu, device, options.quick ? 20000 : 400000, ZPS_BENCH_SHAPES, &n_checks))
    return 1;
  std::fprintf(stderr, "%u comparisons with the cpu: all the same\n", n_checks);

  if (options.skip_times) return 0;

  const Grid grid = {static_cast<u32>(properties.multiProcessorCount) * 8};
  const u64 sizes[] = {214000000, 406000000}; /* DeepFM's and LSTM's */
  const double densities[] = {0.1, 1.13, 2.8, 5, 20};
  if (options.json)
    std::printf(
        "{\"device\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, \"cuda_driver\": %d,\n"
        "  \"partitions\": %u, \"checks\": %u, \"results\": [",
        properties.name, properties.major, properties.minor, properties.multiProcessorCount, driver, options.n_parts,
        n_checks);
  else
    std::printf(
        "%s, CUDA driver %d.%d, %u partitions; milliseconds\n\n| rows | density | copy | read | encode | decode | "
        "Algorithm 1 | stock | top-k (copies) | stock top-k | threshold | stock threshold |\n"
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        properties.name, driver / 1000, driver % 1000 / 10, options.n_parts);
  bool is_first = true;
  repeats = options.repeats;
  for (const u64 named : sizes) {
    if (options.rows && named != sizes[0]) break;
    const u64 size = options.rows ? options.rows : named;
    for (const double each : densities) {
      if (options.density > 0 && each != densities[0]) break;
      const double density = options.density > 0 ? options.density : each;
      const Result result = measure(device, grid, options.quick ? size / 10 : size, density, options.n_parts);
      if (options.json)
        print_json(result, is_first);
      else
        print_row(result);
      is_first = false;
    }
  }
  if (options.json) std::printf("]}\n");
  cpu->ops->close(cpu);
  device->ops->close(device);
  return 0;
}
