/* Which calls of CUDA wait for a stream that waits for a word, though they have nothing to do with it. */
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/gpu/bench/bench.cuh"

namespace {

using namespace zps;

enum { BIG = 1 << 20, SMALL = 1 << 10, PATIENCE_MS = 300 };

template <int number>
__global__ void probe_kernel(u32 *at) {
  if (at) *at = number;
}

struct Call {
  const char *name;
  std::function<void()> make;
};

}  // namespace

void bench_stops(zps_device *device) {
  cudaStream_t held, other, more = nullptr;
  cudaEvent_t event = nullptr;
  u32 *word = nullptr;
  void *at = nullptr, *pinned = nullptr, *there = nullptr;
  char *const pageable = static_cast<char *>(std::calloc(1, BIG));
  cudaIpcMemHandle_t handle;
  cudaFuncAttributes attributes;
  cudaPointerAttributes pointer;
  zps_error error = zps_error();
  bench_check(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking), "stream");
  bench_check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
  bench_check(cudaHostAlloc(reinterpret_cast<void **>(&word), sizeof *word, cudaHostAllocDefault), "word");
  bench_check(cudaHostAlloc(&pinned, BIG, cudaHostAllocDefault), "pinned memory");
  bench_check(cudaMalloc(&there, BIG), "memory");
  *word = 0;
  probe_kernel<1><<<1, 1, 0, other>>>(nullptr);
  bench_check(cudaStreamSynchronize(other), "a kernel");
  const auto pool = [&] { bench_check(cudaMallocAsync(&at, SMALL, other), "cudaMallocAsync"); };
  const auto pool_free = [&] { bench_check(cudaFreeAsync(at, other), "cudaFreeAsync"); };
  const auto copy = [&](void *to, const void *from, size_t len, cudaStream_t stream) {
    return [=] { bench_check(cudaMemcpyAsync(to, from, len, cudaMemcpyDefault, stream), "cudaMemcpyAsync"); };
  };
  const std::vector<Call> calls = {
      {"launch of a kernel that is loaded", [&] { probe_kernel<1><<<1, 1, 0, other>>>(nullptr); }},
      {"first launch of a kernel", [&] { probe_kernel<2><<<1, 1, 0, other>>>(nullptr); }},
      {"cudaFuncGetAttributes of a kernel that is not loaded",
       [&] { bench_check(cudaFuncGetAttributes(&attributes, probe_kernel<3>), "attributes"); }},
      {"cudaStreamSynchronize of another stream", [&] { bench_check(cudaStreamSynchronize(other), "sync"); }},
      {"cudaMallocAsync on another stream, the first", pool},
      {"cudaFreeAsync on another stream", pool_free},
      {"cudaMallocAsync on another stream", pool},
      {"cudaFree of stream-ordered memory", [&] { bench_check(cudaFree(at), "cudaFree"); }},
      {"cudaMalloc", [&] { bench_check(cudaMalloc(&at, BIG), "cudaMalloc"); }},
      {"cudaFree", [&] { bench_check(cudaFree(at), "cudaFree"); }},
      {"cudaHostAlloc", [&] { bench_check(cudaHostAlloc(&at, BIG, cudaHostAllocDefault), "cudaHostAlloc"); }},
      {"cudaFreeHost", [&] { bench_check(cudaFreeHost(at), "cudaFreeHost"); }},
      {"cudaHostRegister", [&] { bench_check(cudaHostRegister(pageable, BIG, 0), "cudaHostRegister"); }},
      {"cudaHostUnregister", [&] { bench_check(cudaHostUnregister(pageable), "cudaHostUnregister"); }},
      {"cudaStreamCreateWithFlags",
       [&] { bench_check(cudaStreamCreateWithFlags(&more, cudaStreamNonBlocking), "stream"); }},
      {"cudaStreamDestroy", [&] { bench_check(cudaStreamDestroy(more), "stream"); }},
      {"cudaEventCreateWithFlags",
       [&] { bench_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"); }},
      {"cudaEventRecord and cudaEventSynchronize, another stream",
       [&] {
         bench_check(cudaEventRecord(event, other), "event");
         bench_check(cudaEventSynchronize(event), "event");
       }},
      {"cudaEventDestroy", [&] { bench_check(cudaEventDestroy(event), "event"); }},
      {"cudaPointerGetAttributes", [&] { bench_check(cudaPointerGetAttributes(&pointer, there), "pointer"); }},
      {"cudaIpcGetMemHandle", [&] { (void)cudaIpcGetMemHandle(&handle, there), (void)cudaGetLastError(); }},
      {"cudaMemsetAsync on another stream",
       [&] { bench_check(cudaMemsetAsync(there, 0, BIG, other), "cudaMemsetAsync"); }},
      {"copy of 1 MiB of pinned memory, another stream", copy(there, pinned, BIG, other)},
      {"copy of 1 KiB of other memory, another stream", copy(there, pageable, SMALL, other)},
      {"copy of 1 MiB of other memory, another stream", copy(there, pageable, BIG, other)},
      {"copy of 1 KiB into other memory, another stream", copy(pageable, there, SMALL, other)},
      {"copy of 1 MiB of pinned memory, the same stream", copy(there, pinned, BIG, held)},
      {"copy of 1 KiB of other memory, the same stream", copy(there, pageable, SMALL, held)},
      {"copy of 1 MiB of other memory, the same stream", copy(there, pageable, BIG, held)},
      {"copy of 1 KiB into other memory, the same stream", copy(pageable, there, SMALL, held)},
  };
  std::printf("| call | waits for a stream that waits for a word |\n|---|---|\n");
  u32 value = 0;
  for (const Call &call : calls) {
    value++;
    if (device->ops->stream_wait_word(device, held, word, value, &error) != ZPS_OK) {
      std::fprintf(stderr, "gpu-bench: %s\n", error.text);
      std::exit(1);
    }
    std::atomic<bool> is_back(false);
    std::thread thread([&] {
      call.make();
      is_back = true;
    });
    for (int ms = 0; ms < PATIENCE_MS && !is_back; ms++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const bool waits = !is_back;
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    thread.join();
    bench_check(cudaDeviceSynchronize(), call.name);
    std::printf("| %s | %s |\n", call.name, waits ? "**yes**" : "no");
  }
  bench_check(cudaStreamDestroy(held), "stream");
  bench_check(cudaStreamDestroy(other), "stream");
  bench_check(cudaFreeHost(word), "word");
  bench_check(cudaFreeHost(pinned), "pinned memory");
  bench_check(cudaFree(there), "memory");
  std::free(pageable);
}
