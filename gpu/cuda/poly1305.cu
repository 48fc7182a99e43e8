/*
 * Poly1305 of many pieces of memory at once. Of a piece of the blocks b_1 .. b_n it is the sum of all b_i r^(n+1-i)
 * mod 2^130 - 5, plus the key's other half mod 2^128.
 *
 * A piece is cut into tiles, the last of which is full: what the first one lacks counts as blocks of zero ahead of it.
 * Each thread adds up every THREADS-th block of a tile by Horner's rule in r^THREADS, and then numbers of neighbours
 * are joined, two by two, by r, r^2, r^4 and so on: the tile's sum. A second kernel joins a piece's tiles the same way,
 * by the power of r that a tile is long. Bytes are read once.
 */
#include "gpu/cuda/device.cuh"

namespace zps {

namespace {

/* A number mod 2^130 - 5, in limbs of 26 bits. Those of a product are below 2^26 + 2^13; as a factor it may have limbs
 * below 2^31, so sums of up to 30 products need no carry. */
enum { LIMBS = 5, LIMB_BITS = 26 };
static constexpr u32 LIMB = (1u << LIMB_BITS) - 1;
struct Number {
  u32 limbs[LIMBS];
};

enum {
  BLOCK_BYTES = 16,
  WARP_LEVELS = 5,
  LEVELS = 8, /* of neighbours: 2^LEVELS threads */
  STEPS_BITS = 4,
  TILE_BITS = LEVELS + STEPS_BITS,
  STEPS = 1 << STEPS_BITS, /* blocks of a thread in a tile */
  TILE_BLOCKS = 1 << TILE_BITS,
  SQUARES = TILE_BITS + LEVELS + 1,
};
static_assert(1 << WARP_LEVELS == WARP && 1 << LEVELS == THREADS, "neighbours are joined two by two");

struct Key {
  Number squares[SQUARES]; /* r^(2^i) */
  u64 low, high;           /* the other half */
};

struct WarpNumbers {
  Number of[WARPS];
};

__host__ __device__ __forceinline__ Number number_of(u64 low, u64 high, u64 top) {
  return {{static_cast<u32>(low) & LIMB, static_cast<u32>(low >> 26) & LIMB,
           static_cast<u32>(low >> 52 | high << 12) & LIMB, static_cast<u32>(high >> 14) & LIMB,
           static_cast<u32>(high >> 40 | top << 24)}};
}

__host__ __device__ __forceinline__ u64 wide(u32 a, u32 b) {
  return static_cast<u64>(a) * b;
}

/* a * b + c: `b` is a product, and so is the result where there is no `c`, which is a sum of few. */
__host__ __device__ __forceinline__ Number mul_add(const Number &a, const Number &b, const Number &c) {
  const u32 *const x = a.limbs, *const y = b.limbs;
  const u32 z1 = 5 * y[1], z2 = 5 * y[2], z3 = 5 * y[3], z4 = 5 * y[4]; /* 2^130 is 5 */
  const u64 d0 = wide(x[0], y[0]) + wide(x[1], z4) + wide(x[2], z3) + wide(x[3], z2) + wide(x[4], z1);
  u64 d1 = wide(x[0], y[1]) + wide(x[1], y[0]) + wide(x[2], z4) + wide(x[3], z3) + wide(x[4], z2);
  u64 d2 = wide(x[0], y[2]) + wide(x[1], y[1]) + wide(x[2], y[0]) + wide(x[3], z4) + wide(x[4], z3);
  u64 d3 = wide(x[0], y[3]) + wide(x[1], y[2]) + wide(x[2], y[1]) + wide(x[3], y[0]) + wide(x[4], z4);
  u64 d4 = wide(x[0], y[4]) + wide(x[1], y[3]) + wide(x[2], y[2]) + wide(x[3], y[1]) + wide(x[4], y[0]);
  d1 += d0 >> LIMB_BITS;
  d2 += d1 >> LIMB_BITS;
  d3 += d2 >> LIMB_BITS;
  d4 += d3 >> LIMB_BITS;
  const u64 around = (d0 & LIMB) + (d4 >> LIMB_BITS) * 5;
  return {{(static_cast<u32>(around) & LIMB) + c.limbs[0],
           (static_cast<u32>(d1) & LIMB) + static_cast<u32>(around >> LIMB_BITS) + c.limbs[1],
           (static_cast<u32>(d2) & LIMB) + c.limbs[2], (static_cast<u32>(d3) & LIMB) + c.limbs[3],
           (static_cast<u32>(d4) & LIMB) + c.limbs[4]}};
}

__host__ __device__ __forceinline__ Number mul(const Number &a, const Number &b) {
  return mul_add(a, b, Number{});
}

/* The number, and the key's other half, as 16 bytes. */
__device__ __forceinline__ void write_tag(const Number &sum, const Key &key, unsigned char *tag) {
  u32 h[LIMBS];
  u32 carry = 0;
  for (u32 i = 0; i < LIMBS; i++) h[i] = sum.limbs[i];
  for (u32 pass = 0; pass < 3; pass++) { /* limbs of 26 bits, and a number below 2^130 */
    for (u32 i = 0; i < LIMBS; i++) {
      h[i] += carry;
      carry = h[i] >> LIMB_BITS;
      h[i] &= LIMB;
    }
    carry *= 5;
  }
  u32 g[LIMBS]; /* h - (2^130 - 5), used when not negative */
  carry = 5;
  for (u32 i = 0; i < LIMBS; i++) {
    g[i] = h[i] + carry;
    carry = g[i] >> LIMB_BITS;
    g[i] &= LIMB;
  }
  for (u32 i = 0; i < LIMBS; i++) h[i] = carry ? g[i] : h[i];
  const u64 low = h[0] | static_cast<u64>(h[1]) << 26 | static_cast<u64>(h[2]) << 52;
  const u64 high = h[2] >> 12 | static_cast<u64>(h[3]) << 14 | static_cast<u64>(h[4]) << 40;
  const u64 first = low + key.low, second = high + key.high + (first < low);
  for (u32 i = 0; i < 8; i++) {
    tag[i] = static_cast<unsigned char>(first >> 8 * i);
    tag[8 + i] = static_cast<unsigned char>(second >> 8 * i);
  }
}

__host__ __device__ __forceinline__ u64 blocks_of(const zps_device_tag &piece) {
  return (piece.len_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
}
__host__ __device__ __forceinline__ u64 tiles_of(const zps_device_tag &piece) {
  return (blocks_of(piece) + TILE_BLOCKS - 1) / TILE_BLOCKS;
}

/* The piece that a tile is of: the last one that begins there or before. */
__device__ __forceinline__ u32 piece_of(const zps_device_tag *pieces, u32 n, u64 tile) {
  u32 low = 0;
  while (n > 1) {
    const u32 half = n / 2;
    if (pieces[low + half].first_tile <= tile) low += half;
    n -= half;
  }
  return low;
}

__device__ __forceinline__ Number read_block(const zps_device_tag &piece, u64 i) {
  const u64 *const words = static_cast<const u64 *>(piece.at_on_device) + 2 * i;
  const u64 left = piece.len_bytes - i * BLOCK_BYTES;
  if (left >= BLOCK_BYTES) return number_of(words[0], words[1], 1);
  /* The last one: a 1 follows its bytes. */
  const u64 end = 1ull << 8 * (left % 8);
  if (left < 8) return number_of((words[0] & (end - 1)) | end, 0, 0);
  return number_of(words[0], left == 8 ? end : (words[1] & (end - 1)) | end, 0);
}

__device__ __forceinline__ Number number_behind(const Number &number, u32 lanes) {
  Number other;
  ZPS_UNROLL
  for (u32 i = 0; i < LIMBS; i++) other.limbs[i] = __shfl_down_sync(ALL, number.limbs[i], lanes);
  return other;
}

/* The sum of the numbers of a block's threads, each times r^(power * threads behind it), where squares[0] is r^power:
 * thread 0 has it. All threads call it. */
__device__ __forceinline__ Number join(Number sum, const Number *squares, WarpNumbers *warps) {
  ZPS_UNROLL
  for (u32 level = 0; level < WARP_LEVELS; level++) sum = mul_add(sum, squares[level], number_behind(sum, 1u << level));
  __syncthreads(); /* all are through with what was there before */
  if (lane_of_thread() == 0) warps->of[warp_of_thread()] = sum;
  __syncthreads();
  if (warp_of_thread() > 0) return sum;
  sum = lane_of_thread() < WARPS ? warps->of[lane_of_thread()] : Number{};
  ZPS_UNROLL
  for (u32 level = WARP_LEVELS; level < LEVELS; level++)
    sum = mul_add(sum, squares[level], number_behind(sum, 1u << (level - WARP_LEVELS)));
  return sum;
}

__global__ void __launch_bounds__(THREADS)
    poly1305_tiles_kernel(Key key, const zps_device_tag *pieces, u32 n, u64 n_tiles, Number *tiles) {
  ZPS_SHARED(WarpNumbers, warps);
  for (u64 tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
    const zps_device_tag piece = pieces[piece_of(pieces, n, tile)];
    const u64 missing = tiles_of(piece) * TILE_BLOCKS - blocks_of(piece);
    const bool is_first = tile == piece.first_tile;
    u64 at = (tile - piece.first_tile) * TILE_BLOCKS + threadIdx.x;
    u32 step = is_first ? static_cast<u32>(missing / THREADS) : 0;
    Number sum = {};
    if (is_first) {
      at += step * THREADS;
      if (at >= missing) sum = read_block(piece, at - missing);
      at += THREADS;
      step++;
    }
    for (; step < STEPS; step++, at += THREADS)
      sum = mul_add(sum, key.squares[LEVELS], read_block(piece, at - missing));
    sum = join(sum, key.squares, &warps);
    if (threadIdx.x == 0) tiles[tile] = sum;
  }
}

__global__ void __launch_bounds__(THREADS)
    poly1305_tags_kernel(Key key, zps_device_tag *pieces, u32 n, const Number *tiles) {
  ZPS_SHARED(WarpNumbers, warps);
  for (u32 i = blockIdx.x; i < n; i += gridDim.x) {
    const zps_device_tag piece = pieces[i];
    const u64 n_tiles = tiles_of(piece), rounds = (n_tiles + THREADS - 1) / THREADS;
    const u64 missing = rounds * THREADS - n_tiles;
    Number sum = {};
    for (u64 at = threadIdx.x; at < rounds * THREADS; at += THREADS)
      if (at >= missing) sum = mul_add(sum, key.squares[TILE_BITS + LEVELS], tiles[piece.first_tile + at - missing]);
    sum = join(sum, key.squares + TILE_BITS, &warps);
    if (threadIdx.x == 0) write_tag(mul(sum, key.squares[0]), key, pieces[i].tag);
  }
}

u64 little_endian(const unsigned char *bytes) {
  u64 value = 0;
  for (u32 i = 0; i < 8; i++) value |= static_cast<u64>(bytes[i]) << 8 * i;
  return value;
}

Key key_of(const unsigned char *bytes) {
  Key key;
  key.squares[0] =
      number_of(little_endian(bytes) & 0x0ffffffc0fffffffull, little_endian(bytes + 8) & 0x0ffffffc0ffffffcull, 0);
  for (u32 i = 1; i < SQUARES; i++) key.squares[i] = mul(key.squares[i - 1], key.squares[i - 1]);
  key.low = little_endian(bytes + 16);
  key.high = little_endian(bytes + 24);
  return key;
}

}  // namespace

zps_err_t poly1305(zps_device *device, const unsigned char *key_bytes, zps_device_tag *tags, uint32_t n,
                   zps_stream_t stream_, zps_error *error) {
  const Current current(device_of(device));
  cudaStream_t const stream = static_cast<cudaStream_t>(stream_);
  const Grid &grid = device_of(device)->grid;
  u64 n_tiles = 0;
  if (n == 0) return ZPS_OK;
  for (u32 i = 0; i < n; i++) {
    tags[i].first_tile = n_tiles;
    n_tiles += tiles_of(tags[i]);
  }
  Scratch scratch;
  zps_device_tag *pieces = nullptr;
  Number *tiles = nullptr;
  const zps_err_t code = scratch_lay_out(&scratch, stream, error, [&](Pieces *, Pieces *rest) {
    pieces = rest->take<zps_device_tag>(n);
    tiles = rest->take<Number>(n_tiles);
  });
  if (code != ZPS_OK) return code;
  const Key key = key_of(key_bytes);
  (void)cudaMemcpyAsync(pieces, tags, n * sizeof *tags, cudaMemcpyDefault, stream);
  if (n_tiles > 0)
    ZPS_LAUNCH(stream, blocks_for(grid, n_tiles, 1), THREADS, poly1305_tiles_kernel, key, pieces, n, n_tiles, tiles);
  ZPS_LAUNCH(stream, blocks_for(grid, n, 1), THREADS, poly1305_tags_kernel, key, pieces, n, tiles);
  (void)cudaMemcpyAsync(tags, pieces, n * sizeof *tags, cudaMemcpyDefault, stream);
  (void)cudaFreeAsync(scratch.memory, stream);
  return check_launches(error, "checksums");
}

}  // namespace zps
