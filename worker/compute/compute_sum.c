/* SUM: sparse streams by zps_reduce(); where the result has all rows, chunk by chunk in the cache. */
#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/singles.h"
#include "worker/compute/compute_internal.h"

enum { CHUNK_BYTES = 16 << 10, CHUNK_ROWS_MAX = ZPS_COMPUTE_BATCH };

/* Rows at a time: as many as fit, at least one. */
static uint32_t chunk_rows_of(const struct zps_compute_job *job) {
  const uint64_t rows = CHUNK_BYTES / job->row_bytes;
  return rows == 0 ? 1 : rows < CHUNK_ROWS_MAX ? (uint32_t)rows : CHUNK_ROWS_MAX;
}

static zps_err_t need_slots(struct zps_compute_scratch *scratch) {
  if (scratch->slots.data) return ZPS_OK;
  const zps_err_t code = zps_buffer_need(&scratch->slots, CHUNK_ROWS_MAX, sizeof(uint32_t));
  if (code != ZPS_OK) return code;
  for (uint32_t i = 0; i < CHUNK_ROWS_MAX; i++) ((uint32_t *)scratch->slots.data)[i] = i;
  return ZPS_OK;
}

/* Adds a sparse input's rows below `end` to the sums of rows `base` on. */
static void add_sparse(const struct zps_compute_job *job, struct zps_index_cursor *cursor, uint32_t base, uint32_t end,
                       char *sums) {
  const struct zps_slice_view *const view = cursor->view;
  uint32_t room[ZPS_RANK_CURSOR_ROOM];
  const zps_lent_rank *ranks;
  for (uint32_t n; (n = zps_index_cursor_lend(cursor, end, room, &ranks)) > 0;)
    zps_accumulate_rows(view->dtype, sums, job->scratch->slots.data, base, ranks, n, view->width,
                        zps_slice_values(view, cursor->next - n, n, job->scratch->room.data));
}

/* Adds rows [base, end) of all inputs to `sums`, with room for whole words of 64 rows. */
static void add_singles(const struct zps_compute_job *job, struct zps_index_cursor *cursors, uint32_t base,
                        uint32_t end, float *sums) {
  for (uint32_t i = 0; i < job->task->instr.n_in; i++) {
    const struct zps_slice_view *const view = &job->task->ins[i].view;
    if (zps_compute_is_full(view))
      zps_accumulate(view->dtype, sums, zps_slice_values(view, base, end - base, job->scratch->room.data), end - base);
    else
      zps_singles_add(&cursors[i], base, end, sums, job->scratch->room.data);
  }
}

/* Single floats: bits are added as they are, without listing ranks. */
static zps_err_t sum_all_singles(struct zps_compute_job *job, struct zps_index_cursor *cursors) {
  enum { CHUNK = CHUNK_BYTES / sizeof(float) };
  const zps_err_t code = zps_buffer_need(&job->scratch->room, CHUNK, sizeof(float));
  if (code != ZPS_OK) return code;
  float last[CHUNK];
  for (uint32_t base = 0, end; base < job->m; base = end) {
    end = job->m - base > CHUNK ? base + CHUNK : job->m;
    float *const out = (float *)(void *)job->out + base, *const sums = end % 64 == 0 ? out : last;
    memset(sums, 0, (end - base) * sizeof *sums);
    add_singles(job, cursors, base, end, sums);
    if (sums != out) memcpy(out, sums, (end - base) * sizeof *sums);
  }
  zps_compute_finish_full(job);
  return ZPS_OK;
}

static zps_err_t sum_all(struct zps_compute_job *job) {
  const struct zps_compute_in *const ins = job->task->ins;
  const uint32_t n_in = job->task->instr.n_in, chunk_rows = chunk_rows_of(job);
  zps_err_t code = need_slots(job->scratch);
  if (code == ZPS_OK) code = zps_compute_need_room(job);
  if (code == ZPS_OK) code = zps_buffer_need(&job->scratch->cursors, n_in, sizeof(struct zps_index_cursor));
  if (code != ZPS_OK) return code;
  struct zps_index_cursor *const cursors = job->scratch->cursors.data;
  for (uint32_t i = 0; i < n_in; i++) zps_index_cursor_init(&cursors[i], &ins[i].view);
  if (job->compute->dtype == ZPS_DTYPE_F32 && job->compute->width == 1) return sum_all_singles(job, cursors);
  for (uint32_t base = 0, end; base < job->m; base = end) {
    end = job->m - base > chunk_rows ? base + chunk_rows : job->m;
    char *const sums = job->out + base * job->row_bytes;
    memset(sums, 0, (end - base) * job->row_bytes);
    for (uint32_t i = 0; i < n_in; i++) {
      const struct zps_slice_view *const view = &ins[i].view;
      if (zps_compute_is_full(view))
        zps_accumulate(view->dtype, sums, zps_slice_values(view, base, end - base, job->scratch->room.data),
                       (uint64_t)(end - base) * view->width);
      else
        add_sparse(job, &cursors[i], base, end, sums);
    }
  }
  zps_compute_finish_full(job);
  return ZPS_OK;
}

static zps_err_t sum_sparse(struct zps_compute_job *job) {
  const uint32_t n_in = job->task->instr.n_in;
  zps_err_t code = zps_buffer_need(&job->scratch->views, n_in, sizeof(struct zps_slice_view));
  if (code != ZPS_OK) return code;
  struct zps_slice_view *const views = job->scratch->views.data;
  uint64_t rows_max = 0;
  for (uint32_t i = 0; i < n_in; i++) {
    views[i] = job->task->ins[i].view;
    rows_max += views[i].z;
  }
  const unsigned allowed = zps_compute_codecs(job->compute, &job->task->instr);
  struct zps_compute_out *const out = job->out_p;
  out->codec = ZPS_CODEC_COO; /* nothing takes no bytes */
  if (rows_max > 0) out->codec = zps_codec_plain(allowed, job->m, rows_max < job->m ? (uint32_t)rows_max : job->m);
  out->value_codec = ZPS_VALUES_RAW;
  code = zps_reduce(job->scratch->reduce, views, n_in, job->compute->op == ZPS_OP_MEAN ? ZPS_OP_SUM : job->compute->op,
                    out->codec, NULL, job->out, &out->nnz, &out->len_bytes);
  if (code != ZPS_OK) return code;
  job->z = out->nnz;
  struct zps_slice_view view = zps_compute_view(job->compute, &job->task->out, out, job->out);
  if (out->codec == ZPS_CODEC_COO && zps_compute_switches(job)) {
    code = zps_compute_need_ranks(job, job->z);
    if (code != ZPS_OK) return code;
    memcpy(job->ranks, view.index, job->z * sizeof *job->ranks);
    zps_compute_spread(job);
    zps_compute_finish_full(job);
    return ZPS_OK;
  }
  code = zps_slice_recode(&view, allowed, &job->scratch->recode);
  if (code != ZPS_OK) return code;
  out->len_bytes += view.index_bytes;
  out->len_bytes -= zps_codec_index_bytes(out->codec, job->m, job->z);
  out->codec = view.codec;
  return ZPS_OK;
}

static zps_err_t sum_vectors(struct zps_compute_job *job) {
  for (uint32_t i = 0; i < job->m; i++) {
    double sum = 0;
    for (uint32_t j = 0; j < job->task->instr.n_in; j++) {
      double value;
      memcpy(&value, (const char *)job->task->ins[j].view.values + i * sizeof value, sizeof value);
      sum += value;
    }
    memcpy(job->out + i * sizeof sum, &sum, sizeof sum);
  }
  zps_compute_finish_full(job);
  return ZPS_OK;
}

zps_err_t zps_compute_sum(struct zps_compute_job *job) {
  if (job->task->out.kind == ZPS_STREAM_VECTOR) return sum_vectors(job);
  return zps_compute_sums_all(job->compute, job->task) ? sum_all(job) : sum_sparse(job);
}
