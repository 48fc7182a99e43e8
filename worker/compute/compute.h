/*
 * The work of each instruction of a program (program.h) on bytes.
 *
 * A stream's bytes are a slice (common/codec/codec.h) over m = hi - lo indices, index = row - lo, in any codec; with
 * all its rows it is HOLES without a hole. A vector is a slice of f64, width 1, with all `hi` rows. Outputs are written
 * to memory that the caller provides, at most zps_compute_bound() bytes of it; zps_compute_out says what a message has
 * to announce of them: codec, value codec, rows and bytes.
 *
 * OWN, VECTOR, SUM, TOP, NORMAL, THRESHOLD, KTH, COUNTS, CUT, TAKE, SPLITS, JOIN, COMMON and NARROW are carried out
 * here; RESULT and CONTRIBUTED have functions of their own; SEND, RECV and CALL are the driver's. Each instruction is
 * independent of all others, so they may run on as many threads as there are, each with its own scratch.
 *
 * Magnitudes: a row counts with its greatest absolute value, NaN above all (worker/select/magnitude.h).
 */
#ifndef ZPS_WORKER_COMPUTE_COMPUTE_H
#define ZPS_WORKER_COMPUTE_COMPUTE_H

#include "common/codec/codec.h"
#include "common/codec/codec_choice.h"
#include "common/codec/deliver.h"
#include "worker/compute/gradient.h"
#include "worker/schemes/program.h"

/* Shared by all instructions of a round; read-only while they run. */
struct zps_compute {
  enum zps_dtype dtype;       /* of streams: the one that sums are made in */
  enum zps_dtype array_dtype; /* of the trainer's arrays: the same, or halves */
  unsigned divisor;           /* a sum that is rounded to halves is multiplied by 1/divisor before */
  uint32_t width;
  enum zps_op op; /* of a mean, RESULT divides, but for halves. Vectors are always added. Max and min: never all rows in
                     place of few, since an absent row is not zero */
  bool keeps_zero_rows;         /* for max and min: a row of zeros differs from an absent one */
  enum zps_codec_policy policy; /* auto: the smallest codec. paper: COO, or all rows beyond `delta` */
  double delta; /* share of a stream's rows beyond which it becomes dense [SparCML section 5.1]: 0: under
                   paper, where COO takes more than all rows; otherwise never. A SUM of two streams is
                   dense where they have more rows together, whether or not these are the same: rows
                   are then added without being merged. Of more than two, as if one was added after
                   another */
  struct zps_values_origin origin; /* NARROW: the origin of its random draws */
  const struct zps_own *own;       /* OWN: after zps_own_begin() */
};

/* An input stream, and where its bytes are. */
struct zps_compute_in {
  uint64_t lo, hi;
  struct zps_slice_view view;
};

/* One instruction: copied out of its program, which may grow (and move) while a thread carries it out. `doubles`, which
 * only VECTOR reads, stay the program's: carry VECTOR out before it grows. */
struct zps_compute_task {
  struct zps_instr instr;
  struct zps_stream out;
  const double *doubles;
  const struct zps_compute_in *ins; /* instr.n_in of them; set by the caller */
  bool is_final; /* SUM: of all ranks, for the result. Of halves it is rounded here, once, so that half the bytes go
                    out; set by the caller */
};
struct zps_compute_task zps_compute_task_of(const struct zps_program *program, uint32_t instr);

struct zps_compute_out {
  enum zps_codec codec;
  enum zps_value_codec value_codec;
  uint32_t nnz;
  uint64_t len_bytes;
};

struct zps_compute_scratch; /* of one thread, reused */
zps_err_t zps_compute_scratch_create(struct zps_compute_scratch **scratch_p) ZPS_MUSTCHECK;
void zps_compute_scratch_destroy(struct zps_compute_scratch *scratch); /* NULL is allowed */

/* Bytes that the output takes at most; UINT64_MAX when 64 bits cannot hold it. */
uint64_t zps_compute_bound(const struct zps_compute *compute, const struct zps_compute_task *task);
/* Writes the output to `out` (8-byte aligned, the bound's bytes; no input lies there). ZPS_ERR_NOMEM, or
 * ZPS_ERR_PROTOCOL: JOIN of rows that do not ascend, which only a peer can have brought about. */
zps_err_t zps_compute_run(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                          const struct zps_compute_task *task, void *out, struct zps_compute_out *out_p) ZPS_MUSTCHECK;
/* Whether the output lies in the memory of its inputs as it is (a range of a dense stream, all of any, or dense streams
 * that lie side by side): then it needs no memory and no thread, only that the inputs' memory stays as long as the
 * output's would. For callers that want to save the copy. */
bool zps_compute_alias(const struct zps_compute_task *task, struct zps_slice_view *view_p);

/* The view of a stream over [lo, hi) that this process wrote itself; a peer's stream takes zps_slice_view_init(). */
struct zps_slice_view zps_compute_view(const struct zps_compute *compute, const struct zps_stream *stream,
                                       const struct zps_compute_out *out, const void *bytes);
/* dtype and width of a stream's slice, for zps_slice_view_init(). */
enum zps_dtype zps_compute_dtype(const struct zps_compute *compute, enum zps_stream_kind kind);
uint32_t zps_compute_width(const struct zps_compute *compute, enum zps_stream_kind kind);
/* The doubles of a vector: n of them, aligned or not, to `doubles`. */
void zps_compute_doubles(const struct zps_slice_view *view, double *doubles);

/* SERVE's output: `n` rows that ascend, within the stream's range, and their values; at most that many bytes. */
uint64_t zps_compute_rows_bound(const struct zps_compute *compute, const struct zps_stream *stream, uint64_t n);
zps_err_t zps_compute_rows(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                           const struct zps_stream *stream, const int64_t *rows, const void *values, uint64_t n,
                           void *out, struct zps_compute_out *out_p) ZPS_MUSTCHECK;

/* RESULT. Each value is multiplied by 1/divisor in the dtype when `divisor` is not 1: by how many ranks a mean is of.
 */
struct zps_compute_result {
  enum zps_dtype dtype; /* of the array: the streams' own, or halves, which sums become here */
  void *dense;          /* the whole tensor's array */
  uint64_t dense_bytes;
  uint64_t lo, hi; /* rows of it to write; `lo` is the streams', or a multiple of ZPS_DELIVER_ALIGN beyond it */
  unsigned divisor;
  bool is_rounded; /* the one stream is a final sum that was rounded to the array's halves */
};
/* Dense: the stream's rows, and zeros between. Several streams over the same rows are added in their order: a SUM that
 * no other instruction reads need not be coded to be delivered. `n_rows_p`: how many of these rows any of them has.
 * ZPS_ERR_NOMEM. */
zps_err_t zps_compute_result_dense(struct zps_compute_scratch *scratch, const struct zps_compute_in *ins, unsigned n_in,
                                   const struct zps_compute_result *result, uint64_t *n_rows_p) ZPS_MUSTCHECK;
/* COO: writes the stream's rows and values (of `dtype`, as above), ascending, and returns how many; room for view.z of
 * both. `skip_zeros`: leaves rows out that are all zero, as all-rows streams of a sparse tensor mostly are. */
uint32_t zps_compute_result_rows(const struct zps_compute_in *in, enum zps_dtype dtype, unsigned divisor,
                                 bool skip_zeros, int64_t *rows, void *values);
/* CONTRIBUTED: the stream's rows that are not zero, ascending; room for view.z. Returns how many. */
uint32_t zps_compute_contributed(const struct zps_compute_in *in, int64_t *rows);

#endif
