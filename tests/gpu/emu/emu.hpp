/*
 * Runs device kernels on the host: a .cu file that is compiled as C++ sees this header in place of the CUDA toolkit.
 *
 * Every thread of a block is a fiber, several blocks are resident at a time, and one fiber runs at a time. It runs
 * until a switch point (a barrier, a warp collective, an atomic, a marked load or store), where a seeded generator
 * chooses the next among all threads of all resident blocks. So orders that a GPU would show once in a million runs
 * turn up within a few seeds, and the same seed gives the same order. Lanes of a warp are as independent as other
 * threads.
 *
 * Errors, with the kernel's name and the thread's: a barrier that not all threads of a block reach, or not the
 * same one; a collective that a lane of its mask never joins, joins with another operation, or has left; a shuffle from
 * a lane outside the mask; no progress. After an error nothing runs until zps_emu_take_error() was called.
 *
 * What is not emulated: the weak order of memory (a store is seen by all at once), and speed.
 *
 * Streams are queues: a kernel or copy runs when a call waits for it. Device memory cannot be touched by the host at
 * any other time (runtime.hpp).
 */
#ifndef ZPS_GPU_EMU_EMU_HPP
#define ZPS_GPU_EMU_EMU_HPP

#include <cstdint>
#include <cstring>
#include <utility>

#include "tests/gpu/emu/control.h"
#include "tests/gpu/emu/runtime.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __restrict__ __restrict

namespace zps_emu {

struct Index {
  unsigned x, y, z;
};

/* The thread that runs. */
const Index &thread_index();
const Index &block_index();
const Index &block_size();
const Index &grid_size();

/* A switch point. */
void pause();
void sync_threads(const char *file, int line);

enum Collective { SYNC_WARP, SHUFFLE, BALLOT, MATCH };
const char *collective_name(Collective kind);
uint64_t collective(Collective kind, uint32_t mask, uint64_t value, unsigned source);
unsigned lane_id();

/* Memory of the block, the same for each of its threads that asks with the same id; filled with garbage at first. */
void *shared_memory(int id, size_t len_bytes);

void launch(const char *name, dim3 grid, dim3 block, cudaStream_t stream, std::function<void()> body);

template <typename T>
uint64_t to_word(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "collectives move up to 8 bytes");
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}

template <typename T>
T from_word(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

}  // namespace zps_emu

#define threadIdx (zps_emu::thread_index())
#define blockIdx (zps_emu::block_index())
#define blockDim (zps_emu::block_size())
#define gridDim (zps_emu::grid_size())
#define __syncthreads() zps_emu::sync_threads(__FILE__, __LINE__)

#define ZPS_SHARED(type, name) type &name = *static_cast<type *>(zps_emu::shared_memory(__COUNTER__, sizeof(type)))
#define ZPS_LAUNCH(stream, grid, block, kernel, ...) \
  zps_emu::launch(#kernel, grid, block, stream, zps_emu::bind(kernel, __VA_ARGS__))

namespace zps_emu {

/* The arguments are copied when the kernel is launched, as on a device. */
template <typename... Parameters, typename... Arguments>
std::function<void()> bind(void (*kernel)(Parameters...), Arguments... arguments) {
  return [=] { kernel(static_cast<Parameters>(arguments)...); };
}

template <typename T>
T atomic(T *at, T (*change)(T, T), T operand) {
  pause();
  const T old = *at;
  *at = change(old, operand);
  pause();
  return old;
}

}  // namespace zps_emu

static inline void __syncwarp(unsigned mask = 0xffffffffu) {
  zps_emu::collective(zps_emu::SYNC_WARP, mask, 0, 0);
}
static inline void __threadfence() {}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane) {
  return zps_emu::from_word<T>(
      zps_emu::collective(zps_emu::SHUFFLE, mask, zps_emu::to_word(value), static_cast<unsigned>(lane) % 32));
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = zps_emu::lane_id();
  return zps_emu::from_word<T>(
      zps_emu::collective(zps_emu::SHUFFLE, mask, zps_emu::to_word(value), lane < delta ? lane : lane - delta));
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = zps_emu::lane_id();
  return zps_emu::from_word<T>(
      zps_emu::collective(zps_emu::SHUFFLE, mask, zps_emu::to_word(value), lane + delta > 31 ? lane : lane + delta));
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return zps_emu::from_word<T>(zps_emu::collective(zps_emu::SHUFFLE, mask, zps_emu::to_word(value),
                                                   (zps_emu::lane_id() ^ static_cast<unsigned>(lanes)) % 32));
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(zps_emu::collective(zps_emu::BALLOT, mask, predicate != 0, 0));
}
static inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

template <typename T>
static inline unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(zps_emu::collective(zps_emu::MATCH, mask, zps_emu::to_word(value), 0));
}

static inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
static inline int __clz(int x) {
  return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
static inline int __ffs(int x) {
  return __builtin_ffs(x);
}
static inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}

template <typename T>
static inline T atomicAdd(T *at, T operand) {
  return zps_emu::atomic<T>(
      at, [](T a, T b) { return static_cast<T>(a + b); }, operand);
}
template <typename T>
static inline T atomicOr(T *at, T operand) {
  return zps_emu::atomic<T>(
      at, [](T a, T b) { return static_cast<T>(a | b); }, operand);
}
template <typename T>
static inline T atomicMin(T *at, T operand) {
  return zps_emu::atomic<T>(
      at, [](T a, T b) { return a < b ? a : b; }, operand);
}
template <typename T>
static inline T atomicMax(T *at, T operand) {
  return zps_emu::atomic<T>(
      at, [](T a, T b) { return a > b ? a : b; }, operand);
}

#endif
