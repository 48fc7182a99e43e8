/*
 * Rice codes of several views. Where a block begins shows only when the one before it was looked at: a warp for each
 * view walks along them, counting ones. Then all blocks are taken apart at once.
 *
 * The bytes are a peer's: nothing is read beyond a view's end, nothing written beyond its indices, with any bytes.
 */
#include "gpu/cuda/rice.cuh"

namespace zps {

namespace {

struct RiceView {
  const u32 *words; /* of the whole slice */
  u64 start, end;   /* bits of the index */
  u32 m, n;         /* numbers: n below m */
};

__device__ __forceinline__ RiceView view_of(const Reading &reading, u32 v) {
  const zps_device_view view = reading.views[v];
  RiceView rice;
  rice.words = static_cast<const u32 *>(view.payload_on_device);
  rice.start = 8 * index_offset(reading, view);
  rice.end = 8 * view.len_bytes;
  rice.m = zps_partition_size(&reading.part, view.partition);
  rice.n = view.codec == ZPS_CODEC_HOLES ? rice.m - view.nnz : view.nnz;
  return rice;
}

/* 32 bits from `bit` on (of the slice); zeros beyond the end. */
__device__ __forceinline__ u32 window(const RiceView &view, u64 bit) {
  if (bit >= view.end) return 0;
  const u64 at = bit / 32;
  u64 bits = view.words[at];
  if ((at + 1) * 32 < view.end) bits |= static_cast<u64>(view.words[at + 1]) << 32;
  bits >>= bit % 32;
  const u64 left = view.end - bit;
  return static_cast<u32>(left < 32 ? bits & ((1ull << left) - 1) : bits);
}

/* A stretch of a view's words in shared memory, which a block looks ahead in. */
enum { STAGED_WORDS = 4096, STAGED_MARGIN = 256 };
struct Staged {
  u32 words[STAGED_WORDS + 1]; /* zeros beyond the view's end, as window() has them */
  u32 ones[STAGED_WORDS];      /* in the words before */
  BlockSums sums;
  u64 block, bit; /* where the walk is */
};

/* The place after one `nth` (from 0) in the word, which has so many. By a whole warp, each lane of which looks whether
 * its bit is the one. */
__device__ __forceinline__ u32 behind_one(u32 word, u32 nth) {
  const bool is_it = (word >> lane_of_thread() & 1) != 0 && static_cast<u32>(__popc(word & lanes_below())) == nth;
  return static_cast<u32>(__ffs(static_cast<int>(__ballot_sync(ALL, is_it))));
}

/* The place after the n-th one (n > 0) from `bit` on, or ~0 when the view ends before it. By a whole warp. */
__device__ __forceinline__ u64 skip_ones(const RiceView &view, u64 bit, u32 n) {
  for (; bit < view.end; bit += WARP * 32) {
    const u32 bits = window(view, bit + lane_of_thread() * 32);
    const u32 count = static_cast<u32>(__popc(bits));
    u32 total;
    const u32 before = warp_prefix(count, &total);
    if (n > total) {
      n -= total;
      continue;
    }
    const int lane = __ffs(static_cast<int>(__ballot_sync(ALL, n <= before + count))) - 1;
    return bit + static_cast<u32>(lane) * 32 +
           behind_one(__shfl_sync(ALL, bits, lane), n - 1 - __shfl_sync(ALL, before, lane));
  }
  return ~0ull;
}

/* Skips n codes in the staged stretch of `size` words, whose prefix sums are known. 0: the stretch ends before. */
__device__ __forceinline__ u32 skip_staged(const Staged &staged, u32 size, u32 at, u32 n) {
  const u32 first = at / 32;
  if (first >= size) return 0;
  const u32 target = staged.ones[first] + static_cast<u32>(__popc(staged.words[first] & ((1u << at % 32) - 1))) + n;
  for (u32 from = first; from < size; from += WARP) {
    /* The last word with fewer ones before it. */
    const u32 mine = from + lane_of_thread();
    const u32 fewer = __ballot_sync(ALL, mine < size && staged.ones[mine] < target);
    const u32 here = from + 31u - static_cast<u32>(__clz(static_cast<int>(fewer)));
    const u32 word = staged.words[here], nth = target - staged.ones[here] - 1;
    if (nth < static_cast<u32>(__popc(word))) return here * 32 + behind_one(word, nth);
  }
  return 0;
}

/* Walks from block to block, which is what takes the time: where one begins follows from all before it. As long as one
 * begins within the first `limit` bits of the stretch, it is looked at there. Returns the parameter; staged->block and
 * ->bit say where it has come to, ~0 where the view ends before its blocks do. By a whole warp. */
__device__ __forceinline__ u32 walk_stretch(const Reading &reading, const RiceView &view, Staged *staged, u64 first,
                                            u64 end, u64 first_word, u32 size, u32 limit, u32 k) {
  const u64 begin = staged->block, base = first_word * 32;
  const u32 n_blocks = static_cast<u32>(end - begin);
  u32 left = view.n - static_cast<u32>(begin - first) * ZPS_RICE_BLOCK, i = 0;
  u64 bit = staged->bit;
  while (i < n_blocks && bit - base < limit) {
    u32 at = static_cast<u32>(bit - base);
    const u32 n = left < ZPS_RICE_BLOCK ? left : ZPS_RICE_BLOCK, word = at / 32;
    const u64 two = static_cast<u64>(staged->words[word + 1]) << 32 | staged->words[word];
    const u32 header = static_cast<u32>(two >> at % 32);
    if (header & 1) k = header >> 1 & 31;
    at += header & 1 ? +HEADER_BITS : 1;
    if (lane_of_thread() == 0) {
      reading.parameters[begin + i] = static_cast<uint8_t>(k);
      reading.bits[begin + i] = base + at;
    }
    const u32 behind = skip_staged(*staged, size, at + n * k, n);
    bit = behind ? base + behind : skip_ones(view, base + at + n * k, n);
    left -= n;
    i++;
  }
  __syncwarp();
  if (lane_of_thread() == 0) {
    staged->block = begin + i;
    staged->bit = bit;
  }
  return k;
}

/* Fills staged->words and ->ones. By all threads, each of which counts in some consecutive words. */
__device__ __forceinline__ void stage(const RiceView &view, Staged *staged, u64 first_word, u32 size) {
  enum { PER_THREAD = STAGED_WORDS / THREADS };
  for (u32 i = threadIdx.x; i <= STAGED_WORDS; i += THREADS)
    staged->words[i] = i < size ? window(view, (first_word + i) * 32) : 0;
  __syncthreads();
  const u32 first = threadIdx.x * PER_THREAD;
  u32 mine = 0;
  for (u32 j = 0; j < PER_THREAD; j++) mine += static_cast<u32>(__popc(staged->words[first + j]));
  u64 total;
  u32 before = static_cast<u32>(block_prefix(static_cast<u64>(mine), &staged->sums, &total));
  for (u32 j = 0; j < PER_THREAD; j++) {
    staged->ones[first + j] = before;
    before += static_cast<u32>(__popc(staged->words[first + j]));
  }
  __syncthreads();
}

/* A block of threads for each view: where its blocks of numbers begin, and that the last one ends where the view does.
 * A single warp walks; all load what it walks along. */
__global__ void __launch_bounds__(THREADS) rice_walk_kernel(Reading reading) {
  ZPS_SHARED(Staged, staged);
  for (u32 v = blockIdx.x; v < reading.n_views; v += gridDim.x) {
    const u64 first = reading.block_starts[v], end = reading.block_starts[v + 1];
    if (first == end) continue;
    const RiceView view = view_of(reading, v);
    const u64 n_words = (view.end + 31) / 32;
    u32 k = zps_rice_parameter(view.m, view.n);
    __syncthreads(); /* all are through with the view before */
    if (threadIdx.x == 0) {
      staged.block = first;
      staged.bit = view.start;
    }
    u64 block, bit;
    for (;;) {
      __syncthreads();
      block = staged.block;
      bit = staged.bit;
      if (block == end || bit >= view.end) break;
      const u64 first_word = bit / 32, words = n_words - first_word;
      const u32 size = words < STAGED_WORDS ? static_cast<u32>(words) : +STAGED_WORDS,
                limit = words > STAGED_WORDS ? (STAGED_WORDS - STAGED_MARGIN) * 32 : size * 32;
      stage(view, &staged, first_word, size);
      if (warp_of_thread() == 0) k = walk_stretch(reading, view, &staged, first, end, first_word, size, limit, k);
    }
    /* Up to seven bits of padding, all zero; and no block has begun at the end. */
    const bool ends_here = block == end && bit != ~0ull && (bit + 7) / 8 == view.end / 8 && window(view, bit) == 0;
    for (; block < end; block += THREADS)
      if (block + threadIdx.x < end) reading.bits[block + threadIdx.x] = ~0ull;
    if (!ends_here && threadIdx.x == 0) atomicMax(reading.bad, v + 1);
  }
}

struct Places {
  u32 of_warp[WARPS][ZPS_RICE_BLOCK];
};

/* Reads a block's numbers: number lane * PER_LANE + j is gaps[j] over the one before it. Returns their count. */
__device__ __forceinline__ u32 take_apart(const Reading &reading, u64 b, u32 v, const RiceView &view, u32 *places,
                                          u32 *gaps) {
  const u32 lane = lane_of_thread(), k = reading.parameters[b];
  const u32 left = view.n - static_cast<u32>(b - reading.block_starts[v]) * ZPS_RICE_BLOCK;
  const u32 n = left < ZPS_RICE_BLOCK ? left : ZPS_RICE_BLOCK;
  const u64 low = reading.bits[b], high = low + static_cast<u64>(n) * k;
  for (u32 j = 0; j < PER_LANE; j++) gaps[j] = places[lane + j * WARP] = 0;
  __syncwarp();
  if (low == ~0ull) return 0;
  u32 found = 0;
  for (u64 bit = high; found < n && bit < view.end; bit += WARP * 32) {
    u32 bits = window(view, bit + lane * 32), total;
    u32 at = found + warp_prefix(static_cast<u32>(__popc(bits)), &total);
    for (; bits && at < n; bits &= bits - 1)
      places[at++] = static_cast<u32>(bit - high) + lane * 32 + static_cast<u32>(__ffs(static_cast<int>(bits))) - 1;
    found += total;
  }
  __syncwarp();
  if (found < n) return 0;
  for (u32 j = 0; j < PER_LANE; j++) {
    const u32 i = lane * PER_LANE + j;
    if (i >= n) break;
    const u32 zeros = places[i] - (i ? places[i - 1] + 1 : 0);
    const u64 gap = static_cast<u64>(zeros) << k | (window(view, low + static_cast<u64>(i) * k) & ((1u << k) - 1));
    gaps[j] = gap < view.m ? static_cast<u32>(gap) : view.m; /* any gap of m or more is out of range */
  }
  return n;
}

/* The sum of a block's gaps and of one for each; a code that says more than there is room for is cut off, and bad. */
__global__ void __launch_bounds__(THREADS) rice_sums_kernel(Reading reading) {
  ZPS_SHARED(Places, places);
  for (u64 b = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); b < reading.n_blocks;
       b += gridDim.x * static_cast<u64>(WARPS)) {
    const u32 v = find_start(reading.block_starts, reading.n_views, static_cast<u64>(b));
    const RiceView view = view_of(reading, v);
    u32 gaps[PER_LANE];
    const u32 n = take_apart(reading, b, v, view, places.of_warp[warp_of_thread()], gaps);
    u64 sum = 0;
    for (u32 j = 0; j < PER_LANE; j++) sum += gaps[j];
    sum = warp_sum(sum) + n;
    if (lane_of_thread() == 0) {
      reading.sums[b] = sum <= view.m ? sum : view.m + 1ull;
      if (sum > view.m) atomicMax(reading.bad, v + 1);
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(THREADS) rice_numbers_kernel(Reading reading) {
  ZPS_SHARED(Places, places);
  for (u64 b = blockIdx.x * static_cast<u64>(WARPS) + warp_of_thread(); b < reading.n_blocks;
       b += gridDim.x * static_cast<u64>(WARPS)) {
    const u32 v = find_start(reading.block_starts, reading.n_views, static_cast<u64>(b));
    const RiceView view = view_of(reading, v);
    u32 gaps[PER_LANE];
    const u32 n = take_apart(reading, b, v, view, places.of_warp[warp_of_thread()], gaps);
    u64 mine = 0, total;
    for (u32 j = 0; j < PER_LANE; j++) mine += gaps[j] + (lane_of_thread() * PER_LANE + j < n);
    u64 next = reading.sum_starts[b] - reading.sum_starts[reading.block_starts[v]] + warp_prefix(mine, &total);
    const u32 i = static_cast<u32>(b - reading.block_starts[v]) * ZPS_RICE_BLOCK + lane_of_thread() * PER_LANE;
    const bool holes = reading.views[v].codec == ZPS_CODEC_HOLES;
    u32 *const numbers = holes ? reading.holes + reading.hole_starts[v] : reading.indices + reading.starts[v];
    for (u32 j = 0; j < PER_LANE && lane_of_thread() * PER_LANE + j < n; j++) {
      next += gaps[j];
      const bool fits = next < view.m;
      if (!fits) atomicMax(reading.bad, v + 1);
      numbers[i + j] = fits ? static_cast<u32>(next) : 0;
      next++;
    }
    __syncwarp();
  }
}

}  // namespace

void rice_read(cudaStream_t stream, const Grid &grid, const Reading &reading, Tickets *tickets, u64 *states) {
  if (reading.n_blocks == 0) return;
  const u32 blocks = blocks_for(grid, reading.n_blocks, WARPS);
  ZPS_LAUNCH(stream, blocks_for(grid, reading.n_views, 1), THREADS, rice_walk_kernel, reading);
  ZPS_LAUNCH(stream, blocks, THREADS, rice_sums_kernel, reading);
  scan_u64(stream, grid, reading.sums, nullptr, reading.n_blocks, reading.sum_starts, tickets, states);
  ZPS_LAUNCH(stream, blocks, THREADS, rice_numbers_kernel, reading);
}

}  // namespace zps
