#include "worker/compute/compute.h"

#include <stdlib.h>
#include <string.h>

#include "worker/compute/compute_impl.h"

struct zps_compute_task zps_compute_task_of(const struct zps_program *program, uint32_t instr) {
  struct zps_compute_task task = {.instr = program->instrs[instr]};
  if (task.instr.out != ZPS_STREAM_NONE) task.out = program->streams[task.instr.out];
  if (task.instr.type == ZPS_INSTR_VECTOR) task.doubles = program->doubles + task.instr.from;
  return task;
}

zps_err_t zps_compute_scratch_create(struct zps_compute_scratch **scratch_p) {
  struct zps_compute_scratch *const scratch = calloc(1, sizeof *scratch);
  if (!scratch) return ZPS_ERR_NOMEM;
  zps_err_t code = zps_reduce_scratch_create(&scratch->reduce);
  if (code == ZPS_OK) code = zps_deliver_scratch_create(&scratch->deliver);
  if (code != ZPS_OK) {
    zps_compute_scratch_destroy(scratch);
    return code;
  }
  *scratch_p = scratch;
  return ZPS_OK;
}

void zps_compute_scratch_destroy(struct zps_compute_scratch *scratch) {
  if (!scratch) return;
  zps_reduce_scratch_destroy(scratch->reduce);
  zps_deliver_scratch_destroy(scratch->deliver);
  struct zps_buffer *const buffers[] = {&scratch->indices, &scratch->recode, &scratch->views, &scratch->cursors,
                                        &scratch->slots,   &scratch->bits,   &scratch->room,  &scratch->magnitudes};
  for (unsigned i = 0; i < sizeof buffers / sizeof buffers[0]; i++) zps_buffer_fini(buffers[i]);
  free(scratch);
}

/* The most rows that the output can have. */
static uint64_t rows_max(const struct zps_compute *compute, const struct zps_compute_task *task) {
  const struct zps_instr *const instr = &task->instr;
  const uint64_t m = zps_compute_range(&task->out);
  uint64_t z = 0;
  for (uint32_t i = 0; i < instr->n_in; i++) z += task->ins[i].view.z;
  switch (instr->type) {
    case ZPS_INSTR_OWN:
      if (instr->form == ZPS_FORM_ALL || !zps_own_is_scanned(compute->own)) /* for bits, no pass has looked for rows */
        z = m;
      else
        z = zps_own_count(compute->own, task->out.lo, task->out.hi);
      break;
    case ZPS_INSTR_TOP:
      if (z > instr->k) z = instr->k;
      break;
    case ZPS_INSTR_TAKE:
      if (z > instr->to) z = instr->to;
      z = z > instr->from ? z - instr->from : 0;
      break;
    case ZPS_INSTR_COMMON:
      z = task->ins[0].view.z;
      break;
    case ZPS_INSTR_CUT:
      if (zps_compute_is_full(&task->ins->view)) z = m;
      break;
    case ZPS_INSTR_SUM:
      if (zps_compute_sums_all(compute, task)) z = m;
      break;
    default:;
  }
  return z < m ? z : m;
}

/* Bytes of at most `rows` rows, in `codec` where they stay sparse. */
static uint64_t or_all(const struct zps_compute *compute, enum zps_value_codec values, uint32_t m, uint64_t rows,
                       enum zps_codec codec) {
  const uint64_t bytes = zps_codec_slice_bytes(codec, m, (uint32_t)rows, compute->width, compute->dtype, values);
  const uint64_t all = zps_codec_slice_bytes(ZPS_CODEC_HOLES, m, m, compute->width, compute->dtype, values);
  const uint64_t row_bytes = zps_values_row_bytes(values, compute->dtype, compute->width);
  return all > bytes && zps_compute_is_beyond(compute, row_bytes, m, rows) ? all : bytes;
}

uint64_t zps_compute_bound(const struct zps_compute *compute, const struct zps_compute_task *task) {
  const uint32_t m = zps_compute_range(&task->out);
  if (task->out.kind == ZPS_STREAM_VECTOR) return m * sizeof(double);
  if (task->instr.type == ZPS_INSTR_NARROW) {
    const struct zps_slice_view *const view = &task->ins->view;
    const bool all = task->instr.form == ZPS_FORM_ALL;
    const uint64_t n_values = (uint64_t)(all ? m : view->z) * compute->width;
    return zps_values_bytes((enum zps_value_codec)task->instr.values, compute->dtype, n_values) +
           (all ? 0 : view->index_bytes);
  }
  const uint32_t z = (uint32_t)rows_max(compute, task);
  const bool full = task->instr.type == ZPS_INSTR_SUM    ? zps_compute_sums_all(compute, task)
                    : task->instr.type == ZPS_INSTR_OWN  ? task->instr.form == ZPS_FORM_ALL
                    : task->instr.type == ZPS_INSTR_CUT  ? zps_compute_is_full(&task->ins->view)
                    : task->instr.type == ZPS_INSTR_JOIN ? zps_compute_joins_all(task)
                                                         : false;
  const enum zps_codec codec =
      full ? ZPS_CODEC_HOLES : zps_codec_plain(zps_compute_codecs(compute, &task->instr), m, z);
  return or_all(compute, zps_compute_value_codec(compute, task), m, z, codec);
}

/* Streams of all rows that lie side by side are one. */
static bool alias_join(const struct zps_compute_task *task, struct zps_slice_view *view_p) {
  const char *end = task->ins->view.values;
  if (task->instr.form != ZPS_FORM_ALL || !zps_compute_joins_all(task)) return false;
  for (uint32_t i = 0; i < task->instr.n_in; i++) {
    const struct zps_slice_view *const view = &task->ins[i].view;
    if (view->values != end || view->value_codec != ZPS_VALUES_RAW) return false;
    end += view->m * zps_row_bytes(view->width, view->dtype);
  }
  *view_p = task->ins->view;
  view_p->m = view_p->z = zps_compute_range(&task->out);
  view_p->codec = ZPS_CODEC_HOLES;
  view_p->index = view_p->values;
  view_p->index_bytes = 0;
  return true;
}

bool zps_compute_alias(const struct zps_compute_task *task, struct zps_slice_view *view_p) {
  const struct zps_instr *const instr = &task->instr;
  const struct zps_compute_in *const in = task->ins;
  if (instr->type == ZPS_INSTR_JOIN) return alias_join(task, view_p);
  if (instr->type != ZPS_INSTR_CUT && instr->type != ZPS_INSTR_TAKE) return false;
  struct zps_slice_view view = in->view;
  if (instr->type == ZPS_INSTR_TAKE ? instr->from == 0 && instr->to >= view.z
                                    : task->out.lo == in->lo && task->out.hi == in->hi) {
    *view_p = view;
    return true;
  }
  if (instr->type == ZPS_INSTR_TAKE || !zps_compute_is_full(&view) || view.value_codec != ZPS_VALUES_RAW) return false;
  const uint64_t row_bytes = zps_row_bytes(view.width, view.dtype);
  view.values = (const char *)view.values + (task->out.lo - in->lo) * row_bytes;
  view.m = view.z = zps_compute_range(&task->out);
  view.codec = ZPS_CODEC_HOLES;
  view.index = view.values;
  view.index_bytes = 0;
  *view_p = view;
  return true;
}

uint64_t zps_compute_rows_bound(const struct zps_compute *compute, const struct zps_stream *stream, uint64_t n) {
  const uint32_t m = zps_compute_range(stream);
  const enum zps_codec codec = zps_codec_plain(zps_codec_push_set(compute->policy), m, (uint32_t)n);
  return or_all(compute, ZPS_VALUES_RAW, m, n, codec);
}

zps_err_t zps_compute_rows(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                           const struct zps_stream *stream, const int64_t *rows, const void *values, uint64_t n,
                           void *out, struct zps_compute_out *out_p) {
  struct zps_compute_work work = {.compute = compute,
                                  .scratch = scratch,
                                  .value_codec = ZPS_VALUES_RAW,
                                  .row_bytes = zps_row_bytes(compute->width, compute->dtype),
                                  .m = zps_compute_range(stream),
                                  .out = out,
                                  .z = (uint32_t)n,
                                  .out_p = out_p};
  const zps_err_t code = zps_compute_need_indices(&work, n);
  if (code != ZPS_OK) return code;
  for (uint64_t i = 0; i < n; i++) work.indices[i] = (uint32_t)((uint64_t)rows[i] - stream->lo);
  if (n > 0) memcpy(out, values, n * work.row_bytes);
  zps_compute_finish(&work);
  return ZPS_OK;
}

/* Instructions that compute; the others are the round's. */
static zps_err_t (*const runs[ZPS_INSTR_RESULT + 1])(struct zps_compute_work *work) = {
    [ZPS_INSTR_OWN] = zps_compute_own,       [ZPS_INSTR_VECTOR] = zps_compute_vector,
    [ZPS_INSTR_SUM] = zps_compute_sum,       [ZPS_INSTR_TOP] = zps_compute_top,
    [ZPS_INSTR_NORMAL] = zps_compute_normal, [ZPS_INSTR_THRESHOLD] = zps_compute_threshold,
    [ZPS_INSTR_KTH] = zps_compute_kth,       [ZPS_INSTR_COUNTS] = zps_compute_counts,
    [ZPS_INSTR_CUT] = zps_compute_cut,       [ZPS_INSTR_TAKE] = zps_compute_take,
    [ZPS_INSTR_SPLITS] = zps_compute_splits, [ZPS_INSTR_JOIN] = zps_compute_join,
    [ZPS_INSTR_COMMON] = zps_compute_common, [ZPS_INSTR_NARROW] = zps_compute_narrow};

zps_err_t zps_compute_run(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                          const struct zps_compute_task *task, void *out, struct zps_compute_out *out_p) {
  struct zps_compute_work work = {.compute = compute,
                                  .scratch = scratch,
                                  .task = task,
                                  .value_codec = zps_compute_value_codec(compute, task),
                                  .m = zps_compute_range(&task->out),
                                  .out = out,
                                  .out_p = out_p};
  work.row_bytes = zps_values_row_bytes(work.value_codec, zps_compute_dtype(compute, task->out.kind),
                                        zps_compute_width(compute, task->out.kind));
  return runs[task->instr.type] ? runs[task->instr.type](&work) : ZPS_ERR_INTERNAL;
}
