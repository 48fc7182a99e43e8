/* The encoder's parts: encode.c owns the object and writes slices; encode_way.c chooses one of five files to find the
 * rows; encode_impl.c has the functions that these share. */
#ifndef ZPS_CODEC_ENCODE_IMPL_H
#define ZPS_CODEC_ENCODE_IMPL_H

#include <stdatomic.h>
#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/buffer.h"
#include "common/codec/encode.h"
#include "common/codec/sort.h"

/* Rows of fewer bytes are copied while the scan has them in cache: gathered later, one by one from the whole array,
 * each would cost a cache line. */
#define ZPS_ENCODE_STAGE_BELOW_BYTES 64u
/* A source with this bit is a place in `sums`; without, the address of a row; hierarchical: an entry of the input
 * (dense: a row). */
#define ZPS_ENCODE_SUM_BIT (1ull << 63)

/* The findings of one scan: partition p's rows are at places starts[p] to starts[p] + nnz[p], ascending. Either
 * `staged` holds their values or `sources` says where these are. */
struct zps_encode_lists {
  struct zps_buffer indices; /* uint32_t[places] */
  struct zps_buffer sources; /* uint64_t[places] */
  struct zps_buffer staged;  /* row_bytes x places */
};

/* Dense: the findings of one range, in order of rows. An item is the row's bytes, or its source where rows stay where
 * they are until they are written. */
struct zps_encode_found {
  uint64_t n;
  zps_err_t code;
  struct zps_buffer parts;   /* uint16_t */
  struct zps_buffer indices; /* uint32_t */
  struct zps_buffer items;   /* item_bytes each */
};

/* The five ways in which rows are found. */
enum zps_encode_method {
  ZPS_ENCODE_ALL,     /* all rows, without a look at them (encode_all.c) */
  ZPS_ENCODE_DENSE,   /* those of a dense gradient that are not zero (encode_dense.c) */
  ZPS_ENCODE_FEW,     /* COO, single floats of one partition that ascend or are few (encode_few.c) */
  ZPS_ENCODE_SINGLES, /* COO, single floats (encode_singles.c) */
  ZPS_ENCODE_COO,     /* COO, any rows (encode_coo.c) */
};
struct zps_encode_way {
  enum zps_encode_method method;
  bool ascends;        /* FEW, SINGLES: each row is greater than the one before */
  unsigned chunk_bits; /* SINGLES: a chunk of a partition has 2^chunk_bits rows */
  uint32_t n_chunks;   /* SINGLES: of them in a partition */
};

struct zps_encoder {
  enum zps_partitioner partitioner;
  struct zps_encode_input input;
  uint64_t row_bytes;
  uint64_t sum_bytes;           /* of a row of sums, which of halves are floats */
  struct zps_sections sections; /* the input's, or `one`: the one array as a section */
  struct zps_section one;
  uint64_t source_at, source_bytes; /* a source is source_at + source * source_bytes */

  /* The findings of all scans. Slices are written of earlier scans' findings while a later scan is at work, which
   * leaves these alone. */
  uint64_t total_nnz;
  uint32_t n_parts;
  uint32_t n_scans, scan_parts; /* each for so many partitions */
  bool is_staged;
  bool is_whole;            /* all rows are sent; starts are 0 then */
  bool is_whole_sum;        /* all rows are sent, and lie in `sums` one after the other */
  struct zps_buffer wide;   /* halves: uint8_t[n_parts], a row of the partition is no halves */
  struct zps_buffer starts; /* uint64_t[n_parts + 1] */
  struct zps_buffer nnz;    /* uint32_t[n_parts] */
  struct zps_encode_lists lists[ZPS_PARTITION_STRIPES_MAX]; /* the first n_scans used */
  struct zps_buffer sums; /* sum_bytes x repeated rows; all rows, where COO is made whole; the last row, where apart */

  /* While scanning: the input is cut into ranges, with any number of threads. */
  struct zps_workpool *pool;
  struct zps_encode_way way;
  uint32_t scan, first_part;      /* this one, and its first partition */
  struct zps_partition scan_part; /* its stripe; or all rows */
  unsigned n_ranges;
  uint64_t range_len;             /* rows (dense) or entries (COO) */
  struct zps_buffer counts;       /* uint64_t[n_ranges][scan_parts, padded]: how many, then where the next one goes */
  struct zps_encode_found *found; /* dense: [n_found], the first n_ranges used */
  unsigned n_found;
  uint64_t item_bytes;
  struct zps_buffer pairs;        /* COO, hierarchical: zps_sort_pair[entries] */
  struct zps_buffer scratch;      /* zps_sort_pair[entries] */
  struct zps_buffer bad;          /* COO: uint64_t[n_ranges], the first bad entry */
  struct zps_buffer repeats;      /* COO: uint64_t[n_parts + 1], places in `sums`; single floats: next blocks */
  struct zps_buffer buckets;      /* single floats: chains of blocks, [n_ranges][n_parts][n_chunks] */
  struct zps_buffer accumulators; /* single floats: [n_slots], a chunk's sums and marks; zero between scans */
  unsigned n_slots;
  atomic_uint next_part;
  struct zps_buffer indices, partitioned; /* hierarchical: uint64_t[entries] */
  struct zps_buffer marks;                /* COO, in any order: a bit for each row of the partitions; zero between */
  struct zps_hier_stats hashed;
};

/* Cuts `len` items of `item_bytes` into ranges of a multiple of 64 items (fewer than 2^32), where there are several
 * threads up to `per_thread` for each, and clears the counts. */
zps_err_t zps_encoder_cut(struct zps_encoder *encoder, uint64_t len, uint64_t item_bytes,
                          unsigned per_thread) ZPS_MUSTCHECK;
static inline uint64_t zps_encoder_counts_stride(const struct zps_encoder *encoder) {
  enum { LINE_COUNTS = 64 / sizeof(uint64_t) }; /* ranges are counted side by side: no line is two ranges' */
  return encoder->scan_parts + LINE_COUNTS - 1;
}
static inline uint64_t *zps_encoder_counts(const struct zps_encoder *encoder, unsigned range) {
  return (uint64_t *)encoder->counts.data + range * zps_encoder_counts_stride(encoder);
}
static inline struct zps_encode_lists *zps_encoder_lists(struct zps_encoder *encoder) {
  return &encoder->lists[encoder->scan];
}
/* Turns the ranges' counts into places, partition by partition with `gap` unused places between, and within a partition
 * range by range; fills `starts` and `nnz` of this scan's, returns the number of places. */
uint64_t zps_encoder_place(struct zps_encoder *encoder, uint64_t gap);
/* Partitions the entries (COO) or non-zero rows (dense) of this scan by Algorithm 1 into `pairs`: partition p's at
 * places starts[p] on, with ascending keys, or in any order. */
zps_err_t zps_encoder_hierarchical(struct zps_encoder *encoder, const uint64_t *indices, uint64_t n) ZPS_MUSTCHECK;

/* Where a row is that is no sum. */
static inline const char *zps_encoder_source(const struct zps_encoder *encoder, uint64_t source) {
  return (const char *)(uintptr_t)(encoder->source_at + source * encoder->source_bytes);
}

/* Chooses the way that suits the input best; looks at the numbers of COO rows where it matters whether these ascend. */
struct zps_encode_way zps_encoder_way(const struct zps_encode_input *input, enum zps_partitioner partitioner);
zps_err_t zps_encoder_scan_all(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
/* Rows of the input as rows of sums. */
static inline void zps_encoder_widen(const struct zps_encoder *encoder, const void *rows, uint64_t n_rows, void *out) {
  if (zps_dtype_is_half(encoder->input.dtype))
    zps_values_widen(encoder->input.dtype, rows, n_rows * encoder->input.width, out);
  else
    memcpy(out, rows, n_rows * encoder->row_bytes);
}
/* Adds a row of the input to a row of sums. */
static inline void zps_encoder_add(const struct zps_encoder *encoder, void *sum, const void *row) {
  zps_accumulate(encoder->input.dtype, sum, row, encoder->input.width);
}
/* Notes that these rows of sums are to be sent for partition `p`. */
void zps_encoder_note_sums(struct zps_encoder *encoder, uint32_t p, const void *sums, uint64_t n_rows);
/* All rows are sent: where rows [first, first + *n_rows_p) of partition `p` lie, of `n` that are wanted: those of one
 * block, as far as they lie together. */
const char *zps_encoder_run(const struct zps_encoder *encoder, uint32_t p, uint32_t first, uint32_t n,
                            uint32_t *n_rows_p);
/* Before the first scan, and each of them. */
zps_err_t zps_encoder_begin_dense(struct zps_encoder *encoder) ZPS_MUSTCHECK;
zps_err_t zps_encoder_scan_dense(struct zps_encoder *encoder) ZPS_MUSTCHECK;
/* A list for each range; those that are there keep their memory. */
zps_err_t zps_encoder_need_found(struct zps_encoder *encoder) ZPS_MUSTCHECK;
/* Names the first bad row number that the ranges noted. */
zps_err_t zps_encoder_check_rows(const struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_encoder_scan_singles(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_encoder_scan_few(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_encoder_scan_coo(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;

#endif
