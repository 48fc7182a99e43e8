/* Shared by the instructions: shapes of streams, scratch memory, and the end of an output. */
#include <string.h>

#include "worker/compute/compute_impl.h"

enum zps_dtype zps_compute_dtype(const struct zps_compute *compute, enum zps_stream_kind kind) {
  return kind == ZPS_STREAM_VECTOR ? ZPS_DTYPE_F64 : compute->dtype;
}

uint32_t zps_compute_width(const struct zps_compute *compute, enum zps_stream_kind kind) {
  return kind == ZPS_STREAM_VECTOR ? 1 : compute->width;
}

struct zps_slice_view zps_compute_view(const struct zps_compute *compute, const struct zps_stream *stream,
                                       const struct zps_compute_out *out, const void *bytes) {
  return zps_slice_view_own(out->codec, zps_compute_range(stream), out->nnz, zps_compute_width(compute, stream->kind),
                            zps_compute_dtype(compute, stream->kind), out->value_codec, bytes, out->len_bytes);
}

/* As if the inputs' rows fell independently. */
static bool sums_most(const struct zps_compute_task *task) {
  double empty = 1;
  for (uint32_t i = 0; i < task->instr.n_in; i++) {
    const struct zps_slice_view *const view = &task->ins[i].view;
    if (view->m > 0) empty *= 1 - (double)view->z / view->m;
  }
  return 1 - empty > ZPS_CODEC_MOST;
}

bool zps_compute_is_beyond(const struct zps_compute *compute, uint64_t row_bytes, uint32_t m, uint64_t rows) {
  if (!zps_compute_may_fill(compute)) return false;
  if (compute->delta > 0) return (double)rows > compute->delta * m;
  return compute->policy == ZPS_CODEC_PAPER && m * row_bytes < rows * (row_bytes + sizeof(uint32_t));
}

bool zps_compute_may_sum_all(const struct zps_compute *compute, const struct zps_compute_task *task) {
  uint64_t rows = 0;
  const bool sparse = task->instr.form == ZPS_FORM_SPARSE && task->out.kind == ZPS_STREAM_ROWS;
  if (task->instr.type != ZPS_INSTR_SUM || !sparse) return false;
  for (uint32_t i = 0; i < task->instr.n_in; i++) rows += task->ins[i].view.z;
  return zps_compute_is_beyond(compute, zps_row_bytes(compute->width, compute->dtype), zps_compute_range(&task->out),
                               rows);
}

bool zps_compute_sums_all(const struct zps_compute *compute, const struct zps_compute_task *task) {
  if (!zps_compute_may_fill(compute)) return false;
  if (task->instr.form == ZPS_FORM_ALL) return true;
  for (uint32_t i = 0; i < task->instr.n_in; i++) {
    if (zps_compute_is_full(&task->ins[i].view)) return true;
  }
  if (task->instr.n_in <= 2 && zps_compute_may_sum_all(compute, task)) return true;
  return task->instr.form == ZPS_FORM_BITS && sums_most(task);
}

unsigned zps_compute_codecs(const struct zps_compute *compute, const struct zps_instr *instr) {
  return instr->form == ZPS_FORM_BITS ? 1u << ZPS_CODEC_BITMAP : zps_codec_push_set(compute->policy);
}

void zps_compute_doubles(const struct zps_slice_view *view, double *doubles) {
  if (view->z > 0) memcpy(doubles, view->values, view->z * sizeof *doubles);
}

zps_err_t zps_compute_need_indices(struct zps_compute_work *work, uint64_t n) {
  const zps_err_t code = zps_buffer_need(&work->scratch->indices, n + 1, sizeof *work->indices);
  if (code == ZPS_OK) work->indices = work->scratch->indices.data;
  return code;
}

zps_err_t zps_compute_need_room(struct zps_compute_work *work) {
  return zps_buffer_need(&work->scratch->room, ZPS_COMPUTE_BATCH,
                         zps_row_bytes(work->compute->width, work->compute->dtype));
}

enum zps_value_codec zps_compute_value_codec(const struct zps_compute *compute, const struct zps_compute_task *task) {
  enum zps_value_codec codec = ZPS_VALUES_RAW;
  switch (task->instr.type) {
    case ZPS_INSTR_OWN:
      return zps_own_value_codec(compute->own);
    case ZPS_INSTR_CUT:
    case ZPS_INSTR_TAKE:
    case ZPS_INSTR_JOIN:
    case ZPS_INSTR_TOP:
    case ZPS_INSTR_NORMAL:
    case ZPS_INSTR_THRESHOLD:
      if (task->instr.n_in > 0) codec = task->ins->view.value_codec;
      for (uint32_t i = 1; i < task->instr.n_in; i++)
        if (task->ins[i].view.value_codec != codec) return ZPS_VALUES_RAW;
      return zps_values_level_bits(codec) ? ZPS_VALUES_RAW : codec;
    case ZPS_INSTR_COMMON: /* the second input only has rows */
      codec = task->ins->view.value_codec;
      return zps_values_level_bits(codec) ? ZPS_VALUES_RAW : codec;
    default:
      return codec;
  }
}

uint64_t zps_compute_pad_values(const struct zps_compute_work *work) {
  if (work->value_codec == ZPS_VALUES_RAW) return work->z * work->row_bytes;
  const uint64_t n = (uint64_t)work->z * work->compute->width;
  zps_values_pad(work->value_codec, n, work->out);
  return zps_values_bytes(work->value_codec, work->compute->dtype, n);
}

void zps_compute_finish_full(struct zps_compute_work *work) {
  work->z = work->m;
  *work->out_p = (struct zps_compute_out){.codec = ZPS_CODEC_HOLES,
                                          .value_codec = work->value_codec,
                                          .nnz = work->m,
                                          .len_bytes = zps_compute_pad_values(work)};
}

/* Spreads the rows that were written to their places among all, with zeros between. */
static void spread(struct zps_compute_work *work) {
  const uint64_t row_bytes = work->row_bytes;
  uint64_t end = work->m; /* of the rows that are not yet in their place */
  for (uint32_t i = work->z; i > 0; i--) {
    const uint64_t index = work->indices[i - 1];
    if (index != i - 1) memcpy(work->out + index * row_bytes, work->out + (i - 1) * row_bytes, row_bytes);
    memset(work->out + (index + 1) * row_bytes, 0, (end - index - 1) * row_bytes);
    end = index;
  }
  memset(work->out, 0, end * row_bytes);
}

void zps_compute_finish(struct zps_compute_work *work) {
  if (zps_compute_is_beyond(work->compute, work->row_bytes, work->m, work->z)) {
    spread(work);
    zps_compute_finish_full(work);
    return;
  }
  uint64_t index_bytes;
  const unsigned allowed = zps_codec_push_set(work->compute->policy);
  const enum zps_codec codec = zps_codec_choose(allowed, work->m, work->indices, work->z, &index_bytes);
  const uint64_t values_bytes = zps_compute_pad_values(work);
  zps_codec_index_encode(codec, work->m, work->indices, work->z, work->out + values_bytes);
  *work->out_p = (struct zps_compute_out){
      .codec = codec, .value_codec = work->value_codec, .nnz = work->z, .len_bytes = values_bytes + index_bytes};
}
