/*
 * Each hash function is a kernel that writes and a kernel that reads back: a thread that read its slot at once could be
 * overwritten afterwards by one that had seen the slot empty before, and both would believe they own it. Between two
 * kernels no thread is left that saw the slot empty.
 */
#include "gpu/cuda/hierarchical.cuh"

#include "gpu/cuda/emit.cuh"

namespace zps {

namespace {

enum State : uint8_t { PENDING = 0, WRITTEN = 1, PLACED = 2 };

template <typename Index>
__device__ __forceinline__ u64 rows_hashed(const Hashing<Index> &hashing) {
  return hashing.count && *hashing.count < hashing.n ? *hashing.count : hashing.n;
}

template <typename Index>
__device__ __forceinline__ HashSlots slots_of(const Hashing<Index> &hashing, u64 n) {
  return hash_slots(hashing.r1, hashing.r2, n, hashing.part.n_parts);
}

/* Where partition p's memory begins. */
template <typename Index>
__device__ __forceinline__ u64 slots_begin(const Hashing<Index> &hashing, HashSlots slots, u32 p) {
  return p * (slots.r1 + slots.r2) + hashing.extra[p];
}

template <typename Index>
__device__ __forceinline__ Index *slot_of(const Hashing<Index> &hashing, HashSlots slots, u64 row, u64 pass_seed) {
  u32 index;
  const u32 p = zps_partition_of(&hashing.part, row, &index);
  return hashing.slots + slots_begin(hashing, slots, p) + mul_high(zps_hash_mix64(row ^ pass_seed), slots.r1);
}

template <typename Index>
__global__ void __launch_bounds__(THREADS) hash_write_kernel(Hashing<Index> hashing, u64 pass_seed) {
  const Index empty = static_cast<Index>(~static_cast<Index>(0));
  const u64 n = rows_hashed(hashing), stride = gridDim.x * static_cast<u64>(THREADS);
  const HashSlots slots = slots_of(hashing, n);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    if (hashing.states[i] != PENDING) continue;
    Index *const slot = slot_of(hashing, slots, hashing.rows[i], pass_seed);
    if (racy_load(slot) != empty) continue;
    racy_store(slot, hashing.rows[i]);
    hashing.states[i] = WRITTEN;
  }
}

template <typename Index>
__global__ void __launch_bounds__(THREADS) hash_read_back_kernel(Hashing<Index> hashing, u64 pass_seed) {
  const u64 n = rows_hashed(hashing), stride = gridDim.x * static_cast<u64>(THREADS);
  const HashSlots slots = slots_of(hashing, n);
  u32 placed = 0, lost = 0;
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    if (hashing.states[i] != WRITTEN) continue;
    const bool won = racy_load(slot_of(hashing, slots, hashing.rows[i], pass_seed)) == hashing.rows[i];
    hashing.states[i] = won ? PLACED : PENDING;
    placed += won;
    lost += !won;
  }
  placed = warp_sum(placed);
  lost = warp_sum(lost);
  if (lane_of_thread() != 0) return;
  if (placed) atomicAdd(&hashing.counts[HASH_PARALLEL], static_cast<u64>(placed));
  if (lost) atomicAdd(&hashing.counts[HASH_LOST], static_cast<u64>(lost));
}

/* Counts on when a serial memory is full: how much would have been enough. */
template <typename Index>
__global__ void __launch_bounds__(THREADS) hash_serial_kernel(Hashing<Index> hashing) {
  const u64 n = rows_hashed(hashing), stride = gridDim.x * static_cast<u64>(THREADS);
  const HashSlots slots = slots_of(hashing, n);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride) {
    if (hashing.states[i] != PENDING) continue;
    u32 index;
    const u32 p = zps_partition_of(&hashing.part, hashing.rows[i], &index);
    const u64 serial = slots_begin(hashing, slots, p) + slots.r1;
    const u64 place = serial + atomicAdd(&hashing.counters[p], static_cast<u64>(1));
    if (place < slots_begin(hashing, slots, p + 1)) hashing.slots[place] = hashing.rows[i];
  }
}

template <typename Index>
__global__ void __launch_bounds__(THREADS) hash_mark_kernel(Hashing<Index> hashing) {
  const Index empty = static_cast<Index>(~static_cast<Index>(0));
  const u64 n_words = (hashing.n_slots + WARP - 1) / WARP;
  for (u64 word = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); word < n_words;
       word += gridDim.x * static_cast<u64>(WARPS)) {
    const u64 slot = word * WARP + lane_of_thread();
    const u32 marks = __ballot_sync(ALL, slot < hashing.n_slots && hashing.slots[slot] != empty);
    if (lane_of_thread() == 0) hashing.bits[word] = marks;
  }
}

/* The rows in slots, and where their values are found. */
struct Slots {
  const u32 *rows;
  zps_partition part;
  const u64 *run_keys;
  u64 n_run_keys;
  __device__ u64 key(u64 slot) const {
    u32 index;
    const u64 p = zps_partition_of(&part, rows[slot], &index);
    return p << 32 | index;
  }
  __device__ u32 payload(u64 slot, u64 key) const {
    if (!run_keys) return rows[slot];
    u64 low = 0, high = n_run_keys; /* the first place with this key */
    while (low < high) {
      const u64 middle = low + (high - low) / 2;
      if (run_keys[middle] < key)
        low = middle + 1;
      else
        high = middle;
    }
    return static_cast<u32>(low);
  }
};

Slots slots_listed(const Hashing<u32> &hashing) {
  return {hashing.slots, hashing.part, hashing.run_keys, hashing.n_run_keys};
}

struct RowOfSlot {
  Slots slots;
  __device__ void operator()(const Found &found, u64 at, u64 bit) const {
    const u64 key = slots.key(bit);
    emit(found, at, static_cast<u32>(key >> 32), static_cast<u32>(key), slots.payload(bit, key));
  }
};

struct KeyOfSlot {
  Slots slots;
  u64 *keys;
  u32 *payloads;
  __device__ void operator()(const Found &found, u64 at, u64 bit) const {
    if (at >= found.capacity) return;
    keys[at] = slots.key(bit);
    payloads[at] = slots.payload(bit, keys[at]);
  }
};

__global__ void __launch_bounds__(THREADS) hash_take_kernel(const u64 *keys, const u32 *payloads, Found found) {
  const u64 n = rows_listed(found), stride = gridDim.x * static_cast<u64>(THREADS);
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i < n; i += stride)
    emit(found, i, static_cast<u32>(keys[i] >> 32), static_cast<u32>(keys[i]), payloads[i]);
}

template <typename Index>
struct SlotOfBit {
  const Index *slots;
  Index *out;
  __device__ void operator()(const Found &, u64 at, u64 bit) const { out[at] = slots[bit]; }
};

template <typename Index>
__global__ void __launch_bounds__(THREADS) hash_starts_kernel(Hashing<Index> hashing) {
  const u64 stride = gridDim.x * static_cast<u64>(THREADS);
  u32 index;
  for (u64 i = blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i <= hashing.n; i += stride) {
    const u32 from = i == 0 ? 0 : zps_partition_of(&hashing.part, hashing.out[i - 1], &index) + 1;
    const u32 to = i == hashing.n ? hashing.part.n_parts : zps_partition_of(&hashing.part, hashing.out[i], &index);
    for (u32 p = from; p <= to; p++) hashing.starts[p] = i;
  }
}

}  // namespace

template <typename Index>
void hash_insert(cudaStream_t stream, const Grid &grid, const Hashing<Index> &hashing) {
  const u32 blocks = blocks_for(grid, hashing.n, THREADS);
  (void)cudaMemsetAsync(hashing.slots, 0xff, hashing.n_slots * sizeof(Index), stream);
  (void)cudaMemsetAsync(hashing.states, PENDING, hashing.n, stream);
  (void)cudaMemsetAsync(hashing.counters, 0, hashing.part.n_parts * sizeof(u64), stream);
  (void)cudaMemsetAsync(hashing.counts, 0, HASH_COUNTS * sizeof(u64), stream);
  for (u32 i = 1; i <= hashing.k; i++) {
    const u64 pass_seed = zps_hash_mix64(hashing.seed + i * 0x9e3779b97f4a7c15ull);
    ZPS_LAUNCH(stream, blocks, THREADS, hash_write_kernel<Index>, hashing, pass_seed);
    ZPS_LAUNCH(stream, blocks, THREADS, hash_read_back_kernel<Index>, hashing, pass_seed);
  }
  ZPS_LAUNCH(stream, blocks, THREADS, hash_serial_kernel<Index>, hashing);
}

/* Calls emit(found, place, slot) for each slot that is taken, in order. */
template <typename Index, typename Emit>
static void list_slots(cudaStream_t stream, const Grid &grid, const Hashing<Index> &hashing, const Emit &emit,
                       const Found &found) {
  ZPS_LAUNCH(stream, blocks_for(grid, hashing.n_slots, THREADS), THREADS, hash_mark_kernel<Index>, hashing);
  list_bits(stream, grid, hashing.bits, hashing.n_slots, emit, found, hashing.list_space);
}

void hash_list(cudaStream_t stream, const Grid &grid, const Hashing<u32> &hashing, const Found &found) {
  const RowOfSlot emit = {slots_listed(hashing)};
  list_slots(stream, grid, hashing, emit, found);
}

void hash_keys(cudaStream_t stream, const Grid &grid, const Hashing<u32> &hashing, const Found &found, u64 *keys,
               u32 *payloads) {
  const KeyOfSlot emit = {slots_listed(hashing), keys, payloads};
  list_slots(stream, grid, hashing, emit, found);
}

void hash_take(cudaStream_t stream, const Grid &grid, const u64 *keys, const u32 *payloads, const Found &found) {
  ZPS_LAUNCH(stream, blocks_for(grid, found.capacity, THREADS), THREADS, hash_take_kernel, keys, payloads, found);
}

template <typename Index>
void hash_collect(cudaStream_t stream, const Grid &grid, const Hashing<Index> &hashing) {
  const SlotOfBit<Index> emit = {hashing.slots, hashing.out};
  Found found = {};
  found.count = &hashing.counts[HASH_COLLECTED];
  list_slots(stream, grid, hashing, emit, found);
  ZPS_LAUNCH(stream, blocks_for(grid, hashing.n + 1, THREADS), THREADS, hash_starts_kernel<Index>, hashing);
}

template void hash_insert<u32>(cudaStream_t, const Grid &, const Hashing<u32> &);
template void hash_insert<u64>(cudaStream_t, const Grid &, const Hashing<u64> &);
template void hash_collect<u32>(cudaStream_t, const Grid &, const Hashing<u32> &);
template void hash_collect<u64>(cudaStream_t, const Grid &, const Hashing<u64> &);

}  // namespace zps
