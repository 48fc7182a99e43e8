/* The encoder's parts: encode.c owns the object and writes slices; encode_dense.c and encode_coo.c find the rows, and
 * encode_all.c takes all. */
#ifndef ZPS_CODEC_ENCODE_INTERNAL_H
#define ZPS_CODEC_ENCODE_INTERNAL_H

#include <stdatomic.h>

#include "common/codec/buffer.h"
#include "common/codec/encode.h"
#include "common/codec/sort.h"

/* Rows of fewer bytes are copied while the scan has them in cache: gathered later, one by one from the whole array,
 * each would cost a cache line. */
#define ZPS_ENCODE_STAGE_BELOW_BYTES 64u
/* A source with this bit is a place in `sums`; without, an entry of the input (dense: a row). */
#define ZPS_ENCODE_SUM_BIT (1ull << 63)

/* What one scan found: partition p's rows are at places starts[p] to starts[p] + nnz[p], ascending. Either `staged`
 * holds their values or `sources` says where these are. */
struct zps_encode_lists {
  struct zps_buffer ranks;   /* uint32_t[places] */
  struct zps_buffer sources; /* uint64_t[places] */
  struct zps_buffer staged;  /* row_bytes x places */
};

/* Dense: what one range found, in order of rows. An item is the row's bytes, or its number where rows stay where they
 * are until they are written. */
struct zps_encode_found {
  uint64_t n;
  zps_err_t code;
  struct zps_buffer parts; /* uint16_t */
  struct zps_buffer ranks; /* uint32_t */
  struct zps_buffer items; /* item_bytes each */
};

struct zps_encoder {
  enum zps_partitioner partitioner;
  struct zps_encode_input input;
  uint64_t row_bytes;

  /* What was found. Slices are written of what earlier scans found while a later one is at work, which changes nothing
   * that is theirs. */
  uint64_t total_nnz;
  uint32_t n_parts;
  uint32_t n_scans, scan_parts; /* each for so many partitions */
  bool is_staged;
  const char *whole;        /* all rows are sent, and lie here one after the other; starts are 0 then */
  struct zps_buffer starts; /* uint64_t[n_parts + 1] */
  struct zps_buffer nnz;    /* uint32_t[n_parts] */
  struct zps_encode_lists lists[ZPS_PARTITION_STRIPES_MAX]; /* the first n_scans used */
  struct zps_buffer sums; /* row_bytes x repeated rows; all rows, where COO is made whole; the last row, where apart */

  /* While scanning: the input is cut into ranges, whatever the number of threads. */
  struct zps_workpool *pool;
  uint32_t scan, first_part;      /* this one, and its first partition */
  struct zps_partition scan_part; /* its stripe; or all rows */
  unsigned n_ranges;
  uint64_t range_len;             /* rows (dense) or entries (COO) */
  struct zps_buffer counts;       /* uint64_t[n_ranges][scan_parts, padded]: how many, then where the next one goes */
  struct zps_encode_found *found; /* dense: [n_found], the first n_ranges used */
  unsigned n_found;
  uint64_t item_bytes;
  struct zps_buffer pairs;        /* COO, hierarchical: zps_sort_pair[entries] */
  struct zps_buffer scratch;      /* as many */
  struct zps_buffer bad;          /* COO: uint64_t[n_ranges], the first bad entry */
  struct zps_buffer repeats;      /* COO: uint64_t[n_parts + 1], places in `sums`; single floats: next blocks */
  struct zps_buffer buckets;      /* single floats: chains of blocks, [n_ranges][n_parts][n_chunks] */
  struct zps_buffer accumulators; /* single floats: [n_slots], a chunk's sums and marks; zero between scans */
  uint32_t n_chunks;              /* of 2^chunk_bits ranks, in a partition */
  unsigned chunk_bits, n_slots;
  bool ascends; /* single floats: each row is greater than the one before */
  atomic_uint next_part;
  struct zps_buffer indices, partitioned; /* hierarchical: uint64_t[entries] */
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
 * places starts[p] on, with ascending keys. */
zps_err_t zps_encoder_hierarchical(struct zps_encoder *encoder, const uint64_t *indices, uint64_t n) ZPS_MUSTCHECK;

zps_err_t zps_encoder_scan_all(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
/* Where `whole` has rows [first, first + *n_rows_p) of partition `p`, of `n` that are wanted: those of one block. */
const char *zps_encoder_run(const struct zps_encoder *encoder, uint32_t p, uint32_t first, uint32_t n,
                            uint32_t *n_rows_p);
/* Before the first scan, and each of them. */
zps_err_t zps_encoder_begin_dense(struct zps_encoder *encoder) ZPS_MUSTCHECK;
zps_err_t zps_encoder_scan_dense(struct zps_encoder *encoder) ZPS_MUSTCHECK;
/* Whether entries of COO gradients are single floats and enough of them for zps_encoder_scan_singles(); prepares it. */
bool zps_encoder_is_singles(struct zps_encoder *encoder);
/* Whether each row of a COO gradient is greater than the one before. */
bool zps_encoder_ascends(const struct zps_encode_input *input);
/* In how many ranges for each thread their entries are dealt out. */
unsigned zps_encoder_singles_ranges(const struct zps_encoder *encoder);
/* Names the first bad row number that the ranges noted. */
zps_err_t zps_encoder_check_rows(const struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
/* Expects the cut and `bad`. */
zps_err_t zps_encoder_scan_singles(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
/* The same of floats that ascend as they are, or are few, of one partition (encode_few.c). */
bool zps_encoder_is_few(const struct zps_encoder *encoder);
zps_err_t zps_encoder_scan_few(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_encoder_scan_coo(struct zps_encoder *encoder, struct zps_error *error) ZPS_MUSTCHECK;

#endif
