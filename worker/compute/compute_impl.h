/* The parts of compute.h: compute.c tells sizes and hands an instruction to its function. compute_rows.c picks rows of
 * streams, compute_sum.c adds, compute_order.c knows magnitudes and counts, compute_result.c writes the trainer's
 * result; compute_impl.c has what they share. */
#ifndef ZPS_WORKER_COMPUTE_COMPUTE_IMPL_H
#define ZPS_WORKER_COMPUTE_COMPUTE_IMPL_H

#include "common/codec/buffer.h"
#include "common/codec/reduce.h"
#include "worker/compute/compute.h"

struct zps_compute_scratch {
  struct zps_reduce_scratch *reduce;
  struct zps_deliver_scratch *deliver;
  struct zps_buffer indices;    /* of the output */
  struct zps_buffer recode;     /* zps_slice_recode() */
  struct zps_buffer views;      /* SUM: the inputs' */
  struct zps_buffer cursors;    /* SUM of all rows: of sparse inputs */
  struct zps_buffer slots;      /* SUM of all rows: 0, 1, 2, ... */
  struct zps_buffer bits;       /* OWN: of its rows */
  struct zps_buffer room;       /* some rows of values that travel narrow; of a result that becomes halves */
  struct zps_buffer magnitudes; /* elements of the dtype */
};

/* One output in the making. */
struct zps_compute_work {
  const struct zps_compute *compute;
  struct zps_compute_scratch *scratch;
  const struct zps_compute_task *task;
  enum zps_value_codec value_codec; /* of the output: coded one by one */
  uint64_t row_bytes;               /* in it */
  uint32_t m;
  char *out;
  uint32_t z;        /* rows written */
  uint32_t *indices; /* theirs */
  struct zps_compute_out *out_p;
};

enum { ZPS_COMPUTE_BATCH = ZPS_INDEX_CURSOR_ROOM };

static inline uint32_t zps_compute_range(const struct zps_stream *stream) {
  return (uint32_t)(stream->hi - stream->lo);
}

static inline bool zps_compute_is_full(const struct zps_slice_view *view) {
  return view->z == view->m;
}

/* A row that is not there is as good as zero: rows of zeros may come and go. */
static inline bool zps_compute_may_fill(const struct zps_compute *compute) {
  return (compute->op == ZPS_OP_SUM || compute->op == ZPS_OP_MEAN) && !compute->keeps_zero_rows;
}

/* Rows [first, first + n) of an input as the output has them: where they lie, or decoded to `room`. */
static inline const void *zps_compute_take_rows(const struct zps_compute_work *work, const struct zps_slice_view *view,
                                                uint32_t first, uint32_t n, void *room) {
  if (work->value_codec != ZPS_VALUES_RAW) return (const char *)view->values + first * work->row_bytes;
  return zps_slice_values(view, first, n, room);
}

/* Room for `n` indices at work->indices. */
zps_err_t zps_compute_need_indices(struct zps_compute_work *work, uint64_t n) ZPS_MUSTCHECK;
/* Room for a batch of rows that are decoded, at scratch->room. */
zps_err_t zps_compute_need_room(struct zps_compute_work *work) ZPS_MUSTCHECK;
/* Makes a list of the values that were written; its bytes. */
uint64_t zps_compute_pad_values(const struct zps_compute_work *work);
/* Codes the index set of the rows that were written, as the policy says. */
void zps_compute_finish(struct zps_compute_work *work);
/* The output has all its rows. */
void zps_compute_finish_full(struct zps_compute_work *work);
/* A stream of so many rows of m is to be dense: SparCML's switch. Only where a row that is not there is as good as
 * zero.
 */
bool zps_compute_is_beyond(const struct zps_compute *compute, uint64_t row_bytes, uint32_t m, uint64_t rows);

zps_err_t zps_compute_own(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_cut(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_take(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_join(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_common(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_narrow(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_sum(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_top(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_normal(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_threshold(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_kth(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_counts(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_splits(struct zps_compute_work *work) ZPS_MUSTCHECK;
zps_err_t zps_compute_vector(struct zps_compute_work *work) ZPS_MUSTCHECK;
/* The sum of a SUM has all rows: it says so, or one of its inputs has, or most are in it and it has bits, or it is of
 * two streams that are beyond delta together. Never a max or min, where an absent row is not zero. */
bool zps_compute_sums_all(const struct zps_compute *compute, const struct zps_compute_task *task);
/* The sum may turn out to be of all rows: of several streams that are beyond delta together. */
bool zps_compute_may_sum_all(const struct zps_compute *compute, const struct zps_compute_task *task);
/* The inputs of a JOIN have all their rows, each from where the one before ends, and together all of the output's. */
bool zps_compute_joins_all(const struct zps_compute_task *task);
/* Codecs that the output's rows may travel in, where they are not all. */
unsigned zps_compute_codecs(const struct zps_compute *compute, const struct zps_instr *instr);
/* The coding of the output's values: halves stay halves as long as nothing is added to them. */
enum zps_value_codec zps_compute_value_codec(const struct zps_compute *compute, const struct zps_compute_task *task);

#endif
