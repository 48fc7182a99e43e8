/*
 * The functions that the files of kernels offer to those that string them together. All functions submit to `stream`
 * and return nothing: a launch that fails shows in cudaGetLastError(). Pointers are to device memory.
 *
 * Kernels take the amount of work from device memory, because the host does not know it yet: their grids are as large
 * as the device wants, and loop.
 */
#ifndef ZPS_GPU_CUDA_KERNELS_CUH
#define ZPS_GPU_CUDA_KERNELS_CUH

#include "gpu/cuda/scan.cuh"
#include "gpu/cuda/values.cuh"

namespace zps {

/* The most blocks of THREADS threads that a grid has. */
struct Grid {
  u32 blocks_max;
};

inline u32 blocks_for(const Grid &grid, u64 n, u64 per_block) {
  const u64 blocks = (n + per_block - 1) / per_block;
  return blocks < 1 ? 1 : blocks < grid.blocks_max ? static_cast<u32>(blocks) : grid.blocks_max;
}

/* Lanes that share a row of `width` elements: a power of two, up to a warp. */
inline u32 lanes_per_row(u32 width) {
  u32 lanes = 1;
  while (lanes < WARP && lanes < width) lanes *= 2;
  return lanes;
}

/* Rows found, in order: partition, local index, and their value or place where they came with one. */
struct Found {
  uint16_t *parts;
  u32 *indices;
  u32 *payloads; /* may be NULL */
  u64 capacity;
  u64 *count; /* all that there are, also beyond the capacity */
};
__device__ __forceinline__ u64 rows_listed(const Found &found) {
  return *found.count < found.capacity ? *found.count : found.capacity;
}

/* ------------------------------------------------------------ extract.cu */

/* Rows of one element are found several at a time, and their bits go along as payload. */
inline bool is_single(enum zps_dtype dtype, u32 width) {
  return width == 1 && (dtype == ZPS_DTYPE_F32 || zps_dtype_is_half(dtype));
}
/* Sets bit r of `bits` where row r is not zero. */
void mark_rows(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u32 width, u64 rows,
               u32 *bits);
/* Memory for listing so many bits; its content does not matter. */
u64 list_space(u64 n_bits);
/* Marked rows of single floats or halves, with their bits as payload. */
void list_singles(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const u32 *bits, const void *values,
                  const zps_partition &part, const Found &found, u64 *space);
/* The numbers of marked rows as payload. */
void list_rows(cudaStream_t stream, const Grid &grid, const u32 *bits, const zps_partition &part, const Found &found,
               u64 *space);
/* These alone, below 2^32: `found` has their count and the room for them. */
void list_numbers(cudaStream_t stream, const Grid &grid, const u32 *bits, u64 rows, u32 *numbers, const Found &found,
                  u64 *space);

/* ------------------------------------------------------------ radix.cu */

enum { RADIX_BITS = 8, RADIX_BINS = 1 << RADIX_BITS, RADIX_PASSES_MAX = 8 };

/* The entries that a pass reads, or those that it writes. */
template <typename Key>
struct Columns {
  Key *keys;
  u32 *a, *b; /* b may be NULL */
};
struct RadixDigits {
  u32 n;
  u32 shifts[RADIX_PASSES_MAX];
  u32 bins[RADIX_PASSES_MAX]; /* values that the digit may have: 0 to bins - 1 */
};
/* Those of numbers up to `greatest`, which begin at a bit of the key. */
inline void add_digits(RadixDigits *digits, u64 greatest, u32 first_bit) {
  for (u32 shift = 0; greatest >> shift != 0; shift += RADIX_BITS) {
    const u64 rest = greatest >> shift;
    digits->bins[digits->n] = rest < RADIX_BINS ? static_cast<u32>(rest) + 1 : +RADIX_BINS;
    digits->shifts[digits->n++] = first_bit + shift;
  }
}
/* Memory for sorting so many entries; its content does not matter. */
u64 radix_space(u64 capacity);
/* Sorts min(*count, capacity) entries by the digits, the first one last in importance; stable. Returns whether the
 * result is in `to` instead of `from`. */
template <typename Key>
bool radix_sort(cudaStream_t stream, const Grid &grid, const Columns<Key> &from, const Columns<Key> &to,
                const u64 *count, u64 capacity, const RadixDigits &digits, u64 *space);

/* ------------------------------------------------------------ coo.cu */

struct CooRuns {   /* entries in order of partition, index and appearance */
  const u64 *keys; /* partition << 32 | index */
  const u32 *entries;
  u64 n;
};
/* Keys of the entries; the first that is no row of the tensor goes to *bad (UINT64_MAX: none). */
void coo_keys(cudaStream_t stream, const Grid &grid, const int64_t *rows, u64 n, const zps_partition &part, u64 *keys,
              u32 *entries, u64 *bad);
/* Sets bit i where a run begins at place i whose sum is not zero; and `wide` (NULL: not asked for) of partitions where
 * a sum of halves is no half. */
void coo_mark(cudaStream_t stream, const Grid &grid, enum zps_dtype dtype, const void *values, u32 width,
              const CooRuns &runs, u32 *bits, u32 *wide);
/* Lists the runs: payload is the place. */
void coo_list(cudaStream_t stream, const Grid &grid, const u32 *bits, const CooRuns &runs, const Found &found,
              u64 *space);

/* The runs' rows alone, of a tensor of n_rows below 2^32: `found` has their count and the room for them. */
void coo_numbers(cudaStream_t stream, const Grid &grid, const u32 *bits, const int64_t *rows, u64 n_rows,
                 const CooRuns &runs, u32 *numbers, const Found &found, u64 *space);

/* ------------------------------------------------------------ plan.cu, rice.cu, write.cu */

/* The plan of the slices before they are written; arrays by partition have n_parts + 1 entries, which start with 0 and
 * end with the total. */
struct Plan {
  zps_partition part;
  u32 allowed;
  u32 width;
  ValueFormat format;
  u32 *wide; /* by partition: 1: values travel as raw floats, since sums of halves are no halves; NULL: none do */
  zps_values_origin origin;
  Found found;                                                    /* in order of partitions, then indices (but any) */
  u64 *starts;                                                    /* of each partition in `found` */
  u64 *hole_starts, *block_starts, *chunk_starts, *bucket_starts; /* buckets of QSGD values */
  u32 *holes; /* the absent indices of partitions of which most rows are present */
  /* Indexed by rice block. */
  u32 *functions;      /* from the parameter before it to its own */
  uint16_t *costs;     /* of each parameter, WARP of them; capped */
  uint8_t *parameters; /* its own */
  u32 *bits;
  u64 *bit_starts; /* since the first of all */
  /* Indexed by chunk of rice blocks. */
  uint8_t *tables;           /* the functions of all of them one after the other, WARP entries */
  uint8_t *chunk_parameters; /* before the first */
  zps_device_slice *slices;
};
__device__ __forceinline__ u32 value_codec_of(const Plan &plan, u32 p) {
  return plan.wide && plan.wide[p] ? +ZPS_VALUES_RAW : plan.format.codec;
}
/* Bytes of the slice's values. */
__host__ __device__ __forceinline__ u64 values_bytes(const Plan &plan, const zps_device_slice &slice) {
  return list_bytes({slice.value_codec, plan.format.size}, static_cast<u64>(slice.nnz) * plan.width);
}
enum { CHUNK_BLOCKS = 64 };
inline u64 rice_blocks_max(u64 capacity, u32 n_parts) {
  return capacity / ZPS_RICE_BLOCK + n_parts;
}
inline u64 rice_chunks_max(u64 capacity, u32 n_parts) {
  return capacity / ZPS_RICE_BLOCK / CHUNK_BLOCKS + n_parts;
}
u64 scan_tiles(u64 n);
/* starts of all kinds, from the sorted parts, and the holes. */
void plan_parts(cudaStream_t stream, const Grid &grid, const Plan &plan);
/* Parameters, sizes and places of all rice blocks. */
void rice_plan(cudaStream_t stream, const Grid &grid, const Plan &plan, Tickets *tickets, u64 *states);
/* The smallest codec for every partition. */
void plan_choose(cudaStream_t stream, const Grid &grid, const Plan &plan);

/* The place of a row's values. */
enum SourceKind { SOURCE_PAYLOADS, SOURCE_DENSE, SOURCE_NUMBERS, SOURCE_RUNS, SOURCE_LIST };
struct Source {
  SourceKind kind;
  enum zps_dtype dtype;
  u32 width;
  const void *values;
  CooRuns runs;
};
void write_values(cudaStream_t stream, const Grid &grid, const Plan &plan, const Source &source, void *const *outs);
/* QSGD: all values one after the other, in the type of their sums, and from there. */
void stage_values(cudaStream_t stream, const Grid &grid, const Plan &plan, const Source &source, void *staged);
void quantise_values(cudaStream_t stream, const Grid &grid, const Plan &plan, enum zps_dtype dtype, const void *staged,
                     void *const *outs);
/* After write_values(). */
void write_index(cudaStream_t stream, const Grid &grid, const Plan &plan, void *const *outs);
void rice_write(cudaStream_t stream, const Grid &grid, const Plan &plan, void *const *outs);

/* ------------------------------------------------------------ decode.cu, rice_read.cu */

/* Several slices to be read. Arrays by view have n_views + 1 entries where they are starts. */
struct Reading {
  zps_partition part;
  u32 width;
  enum zps_dtype dtype;
  u64 value_bytes; /* of a raw value */
  u32 n_views;
  const zps_device_view *views;
  const u64 *starts;       /* of each view's indices */
  const u64 *word_starts;  /* of bitmaps */
  const u64 *bit_starts;   /* indices announced by the bitmaps before */
  const u64 *block_starts; /* of rice blocks */
  const u64 *hole_starts;
  u64 n_rows, n_words, n_blocks, n_holes;
  bool is_raw; /* all views' values */
  u32 codecs;  /* a bit for each that a view with rows has */
  u32 *indices;
  u32 *holes;
  /* Indexed by rice block. */
  uint8_t *parameters;
  u64 *bits; /* where its low bits begin, since the beginning of the index */
  u64 *sums; /* of its gaps, and one for each */
  u64 *sum_starts;
  u32 *bad; /* number of a bad view, plus 1; 0: none so far */
};
/* All indices of all views; the number of a bad view goes to *bad. tickets[2], and states for scan_tiles() of each. */
void read_indices(cudaStream_t stream, const Grid &grid, const Reading &reading, Tickets *tickets, u64 *word_states,
                  u64 *block_states);
void rice_read(cudaStream_t stream, const Grid &grid, const Reading &reading, Tickets *tickets, u64 *states);
/* Checks that coded values are as values.h describes them. */
void check_values(cudaStream_t stream, const Grid &grid, const Reading &reading);
void scatter_rows(cudaStream_t stream, const Grid &grid, const Reading &reading, void *dense);
/* The begin of a view's index. */
__host__ __device__ __forceinline__ u64 index_offset(const Reading &reading, const zps_device_view &view) {
  return list_bytes({view.value_codec, static_cast<u32>(reading.value_bytes)},
                    static_cast<u64>(view.nnz) * reading.width);
}
/* Element c of row `place` of a view. */
template <typename T>
__device__ __forceinline__ T view_value(const Reading &reading, const zps_device_view &view, u64 place, u32 c) {
  return value_at<T>(view.value_codec, view.payload_on_device, static_cast<u64>(view.nnz) * reading.width,
                     place * reading.width + c);
}
/* Keys and places for sorting rows, and the rows once they are sorted. */
void list_keys(cudaStream_t stream, const Grid &grid, const Reading &reading, u64 *keys, u32 *places);
void gather_rows(cudaStream_t stream, const Grid &grid, const Reading &reading, const u64 *keys, const u32 *places,
                 int64_t *rows, void *values);

/* ------------------------------------------------------------ sums.cu */

/* Memory for scan_in_place(). */
u64 scan_space(u64 n);
/* Of `space` the first n values become the sums of those before them, and the next one that of all. */
void scan_in_place(cudaStream_t stream, const Grid &grid, u64 *space, u64 n);

/* out[i] is the sum of the values before i, as far as *count (or n where that is NULL) goes; out has one more. */
void scan_u32(cudaStream_t stream, const Grid &grid, const u32 *in, const u64 *count, u64 n, u64 *out, Tickets *tickets,
              u64 *states);
void scan_u64(cudaStream_t stream, const Grid &grid, const u64 *in, const u64 *count, u64 n, u64 *out, Tickets *tickets,
              u64 *states);

}  // namespace zps

#endif
