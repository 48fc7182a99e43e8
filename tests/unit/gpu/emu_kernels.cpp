#include "tests/unit/gpu/emu_kernels.h"

#include "gpu/cuda/scan.cuh"

namespace {

using zps::THREADS;
using zps::u32;
using zps::u64;

/* One allocation of device memory, cleared, for a test's kernels; its contents are copied back after they have run. */
class Memory {
 public:
  explicit Memory(size_t len) {
    if (cudaMalloc(&at_, len) != cudaSuccess) at_ = nullptr;
    cudaMemsetAsync(at_, 0, len, nullptr);
  }
  ~Memory() { cudaFree(at_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  template <typename T>
  T *as() {
    return static_cast<T *>(at_);
  }
  template <typename T>
  T read(size_t i) {
    T value = T();
    cudaMemcpyAsync(&value, static_cast<T *>(at_) + i, sizeof value, cudaMemcpyDefault, nullptr);
    cudaStreamSynchronize(nullptr);
    return value;
  }

 private:
  void *at_ = nullptr;
};

__global__ void look_back_kernel(u64 n_tiles, u64 *result, zps::Tickets *tickets, u64 *states) {
  ZPS_SHARED(zps::BlockSums, sums);
  ZPS_SHARED(u64, ticket);
  for (u64 tile; (tile = zps::take_tile(tickets, &ticket)) < n_tiles;) {
    const u64 i = tile * THREADS + threadIdx.x + 1;
    u64 all;
    const u64 before = zps::grid_prefix(i, &sums, states, tile, &all);
    if (before != i * (i - 1) / 2) atomicAdd(&result[1], static_cast<u64>(1));
    if (tile == n_tiles - 1 && threadIdx.x == 0) result[0] = all;
  }
}

__global__ void count_kernel(bool is_atomic, u32 *counter) {
  if (is_atomic)
    atomicAdd(counter, 1u);
  else
    zps::racy_store(counter, zps::racy_load(counter) + 1);
}

struct Numbers {
  u32 of[THREADS];
};

__global__ void share_kernel(bool has_barrier, u32 *sum) {
  ZPS_SHARED(Numbers, numbers);
  numbers.of[threadIdx.x] = 0;
  __syncthreads();
  zps::racy_store(&numbers.of[threadIdx.x], threadIdx.x);
  if (has_barrier) __syncthreads();
  if (threadIdx.x == 0)
    for (u32 i = 0; i < THREADS; i++) *sum += numbers.of[i];
}

__global__ void mistake_kernel(int mistake, u32 *word) {
  const u32 lane = zps::lane_of_thread();
  switch (mistake) {
    case EMU_BARRIER_SKIPPED:
      if (threadIdx.x < THREADS / 2) return;
      __syncthreads();
      break;
    case EMU_BARRIERS_DIFFER:
      if (threadIdx.x < THREADS / 2)
        __syncthreads();
      else
        __syncthreads();
      break;
    case EMU_LANE_MISSING:
      if (lane != 7) *word = __ballot_sync(zps::ALL, 1);
      break;
    case EMU_LANE_OUTSIDE:
      *word = __ballot_sync(0x7fffffffu, 1);
      break;
    case EMU_COLLECTIVES_DIFFER:
      *word = lane == 3 ? __shfl_sync(zps::ALL, lane, 0) : __ballot_sync(zps::ALL, 1);
      break;
    case EMU_SOURCE_OUTSIDE:
      if (lane < 16) *word = __shfl_sync(0xffffu, lane, 20);
      break;
    default:
      while (zps::racy_load(word) == 0) continue;
  }
}

__global__ void read_kernel(const u32 *words, u32 at, u32 *out) {
  *out = words[at];
}

enum { EMPTY = 0xffffffffu };

__global__ void claim_kernel(int how, u32 n_rows, u32 n_slots, u32 *slots, u32 *wrote, u32 *claims) {
  const u32 row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= n_rows) return;
  u32 *const slot = &slots[row % n_slots];
  if (zps::racy_load(slot) != EMPTY) return;
  zps::racy_store(slot, row);
  wrote[row] = 1;
  if (how == EMU_CLAIM_BLINDLY || (how == EMU_CLAIM_AT_ONCE && zps::racy_load(slot) == row)) atomicAdd(claims, 1u);
}

__global__ void read_back_kernel(u32 n_rows, u32 n_slots, const u32 *slots, const u32 *wrote, u32 *claims) {
  const u32 row = blockIdx.x * THREADS + threadIdx.x;
  if (row < n_rows && wrote[row] && zps::racy_load(&slots[row % n_slots]) == row) atomicAdd(claims, 1u);
}

__global__ void taken_kernel(u32 n_slots, const u32 *slots, u32 *taken) {
  for (u32 i = threadIdx.x; i < n_slots; i += THREADS)
    if (slots[i] != EMPTY) atomicAdd(taken, 1u);
}

}  // namespace

uint64_t emu_look_back(uint32_t n_tiles) {
  Memory result(2 * sizeof(u64)), tickets(sizeof(zps::Tickets)), states(n_tiles * sizeof(u64));
  ZPS_LAUNCH(nullptr, 3, THREADS, look_back_kernel, n_tiles, result.as<u64>(), tickets.as<zps::Tickets>(),
             states.as<u64>());
  return result.read<u64>(1) ? 0 : result.read<u64>(0);
}

uint32_t emu_count(bool is_atomic, uint32_t n_threads) {
  Memory counter(sizeof(u32));
  ZPS_LAUNCH(nullptr, n_threads / THREADS, THREADS, count_kernel, is_atomic, counter.as<u32>());
  return counter.read<u32>(0);
}

uint32_t emu_share(bool has_barrier) {
  Memory sum(sizeof(u32));
  ZPS_LAUNCH(nullptr, 1, THREADS, share_kernel, has_barrier, sum.as<u32>());
  return sum.read<u32>(0);
}

void emu_mistake(enum emu_mistake mistake) {
  Memory word(sizeof(u32));
  ZPS_LAUNCH(nullptr, 1, mistake == EMU_GRID_TOO_LARGE ? 2048 : THREADS, mistake_kernel, static_cast<int>(mistake),
             word.as<u32>());
  (void)word.read<u32>(0);
}

void emu_read_device(uint32_t n, uint32_t at) {
  Memory words(n * sizeof(u32)), out(sizeof(u32));
  ZPS_LAUNCH(nullptr, 1, 1, read_kernel, words.as<u32>(), at, out.as<u32>());
  (void)out.read<u32>(0);
}

void *emu_device_memory(uint32_t n) {
  void *memory = nullptr;
  return cudaMalloc(&memory, n * sizeof(u32)) == cudaSuccess ? memory : nullptr;
}

void emu_device_free(void *memory) {
  cudaFree(memory);
}

uint32_t emu_claim(enum emu_claim how, uint32_t n_rows, uint32_t n_slots) {
  Memory slots(n_slots * sizeof(u32)), wrote(n_rows * sizeof(u32)), counts(2 * sizeof(u32));
  const u32 blocks = (n_rows + THREADS - 1) / THREADS;
  cudaMemsetAsync(slots.as<u32>(), 0xff, n_slots * sizeof(u32), nullptr);
  ZPS_LAUNCH(nullptr, blocks, THREADS, claim_kernel, static_cast<int>(how), n_rows, n_slots, slots.as<u32>(),
             wrote.as<u32>(), counts.as<u32>());
  if (how == EMU_CLAIM_AFTER_ALL)
    ZPS_LAUNCH(nullptr, blocks, THREADS, read_back_kernel, n_rows, n_slots, slots.as<u32>(), wrote.as<u32>(),
               counts.as<u32>());
  ZPS_LAUNCH(nullptr, 1, THREADS, taken_kernel, n_slots, slots.as<u32>(), counts.as<u32>() + 1);
  return counts.read<u32>(0) - counts.read<u32>(1);
}
