#include "worker/compute/compute.h"

#include <stdlib.h>
#include <string.h>

#include "worker/compute/compute_internal.h"

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
  struct zps_buffer *const buffers[] = {&scratch->ranks, &scratch->recode, &scratch->views, &scratch->cursors,
                                        &scratch->slots, &scratch->bits,   &scratch->room,  &scratch->magnitudes};
  for (unsigned i = 0; i < sizeof buffers / sizeof buffers[0]; i++) zps_buffer_fini(buffers[i]);
  free(scratch);
}

enum zps_dtype zps_compute_dtype(const struct zps_compute *compute, enum zps_stream_kind kind) {
  return kind == ZPS_STREAM_VECTOR ? ZPS_DTYPE_F64 : compute->dtype;
}

uint32_t zps_compute_width(const struct zps_compute *compute, enum zps_stream_kind kind) {
  return kind == ZPS_STREAM_VECTOR ? 1 : compute->width;
}

static uint32_t range_of(const struct zps_stream *stream) {
  return (uint32_t)(stream->hi - stream->lo);
}

struct zps_slice_view zps_compute_view(const struct zps_compute *compute, const struct zps_stream *stream,
                                       const struct zps_compute_out *out, const void *bytes) {
  struct zps_slice_view view = {.codec = out->codec,
                                .dtype = zps_compute_dtype(compute, stream->kind),
                                .value_codec = out->value_codec,
                                .m = range_of(stream),
                                .z = out->nnz,
                                .width = zps_compute_width(compute, stream->kind),
                                .values = bytes,
                                .index = bytes};
  const uint64_t values_bytes = zps_values_bytes(view.value_codec, view.dtype, (uint64_t)view.z * view.width);
  if (out->len_bytes > values_bytes) view.index = (const char *)bytes + values_bytes;
  view.index_bytes = out->len_bytes - values_bytes;
  return view;
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

bool zps_compute_sums_all(const struct zps_compute *compute, const struct zps_compute_task *task) {
  if (!zps_compute_adds(compute)) return false;
  if (task->instr.form == ZPS_FORM_ALL) return true;
  for (uint32_t i = 0; i < task->instr.n_in; i++) {
    if (zps_compute_is_full(&task->ins[i].view)) return true;
  }
  return task->instr.form == ZPS_FORM_BITS && sums_most(task);
}

unsigned zps_compute_codecs(const struct zps_compute *compute, const struct zps_instr *instr) {
  return instr->form == ZPS_FORM_BITS ? 1u << ZPS_CODEC_BITMAP : zps_codec_push_set(compute->policy);
}

/* The most rows that the output can have. */
static uint64_t rows_max(const struct zps_compute *compute, const struct zps_compute_task *task) {
  const struct zps_instr *const instr = &task->instr;
  const uint64_t m = range_of(&task->out);
  uint64_t z = 0;
  for (uint32_t i = 0; i < instr->n_in; i++) z += task->ins[i].view.z;
  switch (instr->type) {
    case ZPS_INSTR_OWN:
      if (instr->form == ZPS_FORM_ALL || !zps_own_is_scanned(compute->own)) /* of bits, nobody has looked for rows */
        z = m;
      else
        z = zps_own_count(compute->own, task->out.lo, task->out.hi);
      break;
    case ZPS_INSTR_TOP:
      if (z > instr->k) z = instr->k;
      break;
    case ZPS_INSTR_NORMAL:
      if (z / 2 > instr->k) z = 2 * instr->k;
      break;
    case ZPS_INSTR_TAKE:
      if (z > instr->to) z = instr->to;
      z = z > instr->from ? z - instr->from : 0;
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

uint64_t zps_compute_bound(const struct zps_compute *compute, const struct zps_compute_task *task) {
  const uint32_t m = range_of(&task->out);
  if (task->out.kind == ZPS_STREAM_VECTOR) return m * sizeof(double);
  if (task->instr.type == ZPS_INSTR_NARROW)
    return zps_values_bytes(zps_compute_levels(task->instr.values), compute->dtype, (uint64_t)m * compute->width);
  const uint32_t z = (uint32_t)rows_max(compute, task);
  const bool full = task->instr.type == ZPS_INSTR_SUM    ? zps_compute_sums_all(compute, task)
                    : task->instr.type == ZPS_INSTR_OWN  ? task->instr.form == ZPS_FORM_ALL
                    : task->instr.type == ZPS_INSTR_CUT  ? zps_compute_is_full(&task->ins->view)
                    : task->instr.type == ZPS_INSTR_JOIN ? z == m
                                                         : false;
  const enum zps_codec codec =
      full ? ZPS_CODEC_HOLES : zps_codec_plain(zps_compute_codecs(compute, &task->instr), m, z);
  return zps_codec_slice_bytes(codec, m, z, compute->width, compute->dtype, ZPS_VALUES_RAW);
}

bool zps_compute_alias(const struct zps_compute_task *task, struct zps_slice_view *view_p) {
  const struct zps_instr *const instr = &task->instr;
  const struct zps_compute_in *const in = task->ins;
  if (instr->type != ZPS_INSTR_CUT && instr->type != ZPS_INSTR_TAKE) return false;
  struct zps_slice_view view = in->view;
  if (instr->type == ZPS_INSTR_TAKE ? instr->from == 0 && instr->to >= view.z
                                    : task->out.lo == in->lo && task->out.hi == in->hi) {
    *view_p = view;
    return true;
  }
  if (instr->type == ZPS_INSTR_TAKE || !zps_compute_is_full(&view) || view.value_codec != ZPS_VALUES_RAW) return false;
  const uint64_t row_bytes = view.width * (uint64_t)zps_dtype_size(view.dtype);
  view.values = (const char *)view.values + (task->out.lo - in->lo) * row_bytes;
  view.m = view.z = range_of(&task->out);
  view.codec = ZPS_CODEC_HOLES;
  view.index = view.values;
  view.index_bytes = 0;
  *view_p = view;
  return true;
}

void zps_compute_doubles(const struct zps_slice_view *view, double *doubles) {
  if (view->z > 0) memcpy(doubles, view->values, view->z * sizeof *doubles);
}

zps_err_t zps_compute_need_ranks(struct zps_compute_job *job, uint64_t n) {
  const zps_err_t code = zps_buffer_need(&job->scratch->ranks, n + 1, sizeof *job->ranks);
  if (code == ZPS_OK) job->ranks = job->scratch->ranks.data;
  return code;
}

zps_err_t zps_compute_need_room(struct zps_compute_job *job) {
  return zps_buffer_need(&job->scratch->room, ZPS_COMPUTE_BATCH, job->row_bytes);
}

bool zps_compute_switches(const struct zps_compute_job *job) {
  return job->compute->policy == ZPS_CODEC_PAPER && zps_compute_adds(job->compute) &&
         job->m * job->row_bytes < job->z * (job->row_bytes + sizeof(uint32_t));
}

void zps_compute_finish_full(struct zps_compute_job *job) {
  job->z = job->m;
  *job->out_p = (struct zps_compute_out){
      .codec = ZPS_CODEC_HOLES, .value_codec = ZPS_VALUES_RAW, .nnz = job->m, .len_bytes = job->m * job->row_bytes};
}

void zps_compute_spread(struct zps_compute_job *job) {
  const uint64_t row_bytes = job->row_bytes;
  uint64_t end = job->m; /* of what is not yet in its place */
  for (uint32_t i = job->z; i > 0; i--) {
    const uint64_t rank = job->ranks[i - 1];
    if (rank != i - 1) memcpy(job->out + rank * row_bytes, job->out + (i - 1) * row_bytes, row_bytes);
    memset(job->out + (rank + 1) * row_bytes, 0, (end - rank - 1) * row_bytes);
    end = rank;
  }
  memset(job->out, 0, end * row_bytes);
}

void zps_compute_finish(struct zps_compute_job *job) {
  if (zps_compute_switches(job)) {
    zps_compute_spread(job);
    zps_compute_finish_full(job);
    return;
  }
  uint64_t index_bytes;
  const unsigned allowed = zps_codec_push_set(job->compute->policy);
  const enum zps_codec codec = zps_codec_choose(allowed, job->m, job->ranks, job->z, &index_bytes);
  const uint64_t values_bytes = job->z * job->row_bytes;
  zps_codec_index_encode(codec, job->m, job->ranks, job->z, job->out + values_bytes);
  *job->out_p = (struct zps_compute_out){
      .codec = codec, .value_codec = ZPS_VALUES_RAW, .nnz = job->z, .len_bytes = values_bytes + index_bytes};
}

uint64_t zps_compute_rows_bound(const struct zps_compute *compute, const struct zps_stream *stream, uint64_t n) {
  const uint32_t m = range_of(stream);
  const enum zps_codec codec = zps_codec_plain(zps_codec_push_set(compute->policy), m, (uint32_t)n);
  return zps_codec_slice_bytes(codec, m, (uint32_t)n, compute->width, compute->dtype, ZPS_VALUES_RAW);
}

zps_err_t zps_compute_rows(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                           const struct zps_stream *stream, const int64_t *rows, const void *values, uint64_t n,
                           void *out, struct zps_compute_out *out_p) {
  struct zps_compute_job job = {.compute = compute,
                                .scratch = scratch,
                                .row_bytes = compute->width * (uint64_t)zps_dtype_size(compute->dtype),
                                .m = range_of(stream),
                                .out = out,
                                .z = (uint32_t)n,
                                .out_p = out_p};
  const zps_err_t code = zps_compute_need_ranks(&job, n);
  if (code != ZPS_OK) return code;
  for (uint64_t i = 0; i < n; i++) job.ranks[i] = (uint32_t)((uint64_t)rows[i] - stream->lo);
  if (n > 0) memcpy(out, values, n * job.row_bytes);
  zps_compute_finish(&job);
  return ZPS_OK;
}

zps_err_t zps_compute_run(const struct zps_compute *compute, struct zps_compute_scratch *scratch,
                          const struct zps_compute_task *task, void *out, struct zps_compute_out *out_p) {
  struct zps_compute_job job = {.compute = compute,
                                .scratch = scratch,
                                .task = task,
                                .row_bytes = zps_compute_width(compute, task->out.kind) *
                                             (uint64_t)zps_dtype_size(zps_compute_dtype(compute, task->out.kind)),
                                .m = range_of(&task->out),
                                .out = out,
                                .out_p = out_p};
  switch (task->instr.type) {
    case ZPS_INSTR_OWN:
      return zps_compute_own(&job);
    case ZPS_INSTR_VECTOR:
      zps_compute_vector(&job);
      return ZPS_OK;
    case ZPS_INSTR_SUM:
      return zps_compute_sum(&job);
    case ZPS_INSTR_TOP:
      return zps_compute_top(&job);
    case ZPS_INSTR_NORMAL:
      return zps_compute_normal(&job);
    case ZPS_INSTR_THRESHOLD:
      return zps_compute_threshold(&job);
    case ZPS_INSTR_KTH:
      return zps_compute_kth(&job);
    case ZPS_INSTR_COUNTS:
      zps_compute_counts(&job);
      return ZPS_OK;
    case ZPS_INSTR_CUT:
      return zps_compute_cut(&job);
    case ZPS_INSTR_TAKE:
      return zps_compute_take(&job);
    case ZPS_INSTR_SPLITS:
      zps_compute_splits(&job);
      return ZPS_OK;
    case ZPS_INSTR_JOIN:
      return zps_compute_join(&job);
    case ZPS_INSTR_NARROW:
      return zps_compute_narrow(&job);
    case ZPS_INSTR_SEND:
    case ZPS_INSTR_RECV:
    case ZPS_INSTR_SERVE:
    case ZPS_INSTR_CALL:
    case ZPS_INSTR_RESULT:
      break;
  }
  return ZPS_ERR_INTERNAL;
}
