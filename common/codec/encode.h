/*
 * From a trainer's gradient to one slice per partition.
 *
 * Two passes, because registered memory is handed out by the progress thread between them: scan() finds the non-zero
 * rows and counts them per partition; write() gathers values and codes indices into the buffer of one partition. Both
 * run on pool threads; write() of different partitions may run at once. The object is reused from round to round and
 * keeps its memory.
 *
 * A dense gradient of a tensor of several stripes (partition.h) is scanned stripe by stripe: the rows found in one can
 * be written while the next ones are scanned.
 *
 * Dense: a row counts as zero when all its values are +0.0 or -0.0. COO rows may come unsorted and repeated: repeats
 * are added in order of appearance, starting from +0.0, and rows that end up all zero are left out, unless they are
 * asked for. NaN and Inf are
 * values. Where all rows are asked for, none is looked at: `values` are read when slices are written.
 *
 * Sections (sections.h) are read where they are. The bytes are those of one array: of a dense one, where all sections
 * are dense; else of the list that their entries, and their rows that are not zero, make together.
 *
 * Halves (dtype.h) travel as they are, in their own codec, 16 bits each. Repeats are added as floats. Where a sum of
 * them is none of the dtype's values, the partition's slice is wide: its values are raw floats, so nothing is rounded.
 */
#ifndef ZPS_CODEC_ENCODE_H
#define ZPS_CODEC_ENCODE_H

#include "common/base/workpool.h"
#include "common/codec/codec.h"
#include "common/codec/codec_choice.h"
#include "common/codec/hierarchical.h"
#include "common/codec/partition_murmur.h"
#include "common/codec/sections.h"

struct zps_encode_input {
  const struct zps_partition *part;
  uint32_t width;
  enum zps_dtype dtype;
  enum zps_value_codec value_codec; /* the coding of the slices' values, which are of type zps_dtype_sum(dtype) */
  struct zps_values_origin origin;
  const void *values;                  /* dense: rows * width; COO: n_entries * width */
  const int64_t *rows;                 /* COO: n_entries row numbers; NULL: dense */
  uint64_t n_entries;                  /* COO */
  const struct zps_sections *sections; /* the gradient is these, of which the list is borrowed, too; NULL: one array, as
                                      above. Not for hierarchical */
  const void *last_row;            /* dense, rows of 64 bytes or more: where the last row is; NULL: behind the others */
  bool all_rows;                   /* send zero rows, too: receivers take a row that COO leaves out for +0.0 */
  bool zero_rows;                  /* COO: also send rows given with all zeros: for max and min they matter */
  bool any_order;                  /* hierarchical: a partition's rows may stay in the order that Algorithm 1 leaves */
  struct zps_hier_options hashing; /* hierarchical */
};

/* A list of rows, or such sections among others. */
static inline bool zps_encode_input_is_list(const struct zps_encode_input *input) {
  return input->sections ? !input->sections->are_dense : input->rows != NULL;
}

struct zps_encoder;

/* Hierarchical: Algorithm 1 deals the rows out, whatever h0 `part` has, and a sort of each partition makes the same
 * bytes of them (but with any_order). Otherwise rows are walked in order. */
zps_err_t zps_encoder_create(enum zps_partitioner partitioner, struct zps_encoder **encoder_p) ZPS_MUSTCHECK;
void zps_encoder_destroy(struct zps_encoder *encoder);
/* Finds the rows to send. `input` and the arrays in it are borrowed until the last write(). `pool` (may be NULL)
 * spreads the scan over threads. ZPS_ERR_INVALID names the first bad row number. */
zps_err_t zps_encoder_scan(struct zps_encoder *encoder, const struct zps_encode_input *input, struct zps_workpool *pool,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* Scans in steps (1, or one for each stripe). Each step finds the rows of n_parts / steps partitions, in ascending
 * order. After scan_next(i) any thread may ask for and write those of step i, while another one goes on with i + 1. */
uint32_t zps_encoder_scans(const struct zps_encode_input *input);
zps_err_t zps_encoder_begin(struct zps_encoder *encoder, const struct zps_encode_input *input,
                            struct zps_workpool *pool, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_encoder_scan_next(struct zps_encoder *encoder, uint32_t scan, struct zps_error *error) ZPS_MUSTCHECK;
uint32_t zps_encoder_nnz(const struct zps_encoder *encoder, uint32_t p);
uint64_t zps_encoder_total_nnz(const struct zps_encoder *encoder); /* after the last step */
/* After the scan: the coding of the values of partition `p`'s slice: the input's; raw where it is wide. */
enum zps_value_codec zps_encoder_value_codec(const struct zps_encoder *encoder, uint32_t p);
/* Hierarchical, after the last step: how the rows, or entries of a list, found their places. */
struct zps_hier_stats zps_encoder_hashed(const struct zps_encoder *encoder);
/* After the scan: the indices of partition `p`'s rows, ascending (but with any_order), valid until the next scan (NULL
 * when there are none); and the values of rows [first, first + n) of them, in the dtype, or where the slice is wide as
 * floats. For callers that cut partitions further. */
const uint32_t *zps_encoder_indices(const struct zps_encoder *encoder, uint32_t p);
void zps_encoder_values(const struct zps_encoder *encoder, uint32_t p, uint32_t first, uint32_t n, void *out);
/* After the scan: the codec out of `allowed` that codes partition `p` in the fewest bytes, and the slice's bytes.
 * Different partitions may be asked for at once. */
enum zps_codec zps_encoder_choose(const struct zps_encoder *encoder, uint32_t p, unsigned allowed,
                                  uint64_t *slice_bytes_p);
/* Writes partition `p` as `codec` at `out` (8-byte aligned): its coded values and zps_codec_index_exact() bytes. */
void zps_encoder_write(const struct zps_encoder *encoder, uint32_t p, enum zps_codec codec, void *out);

#endif
