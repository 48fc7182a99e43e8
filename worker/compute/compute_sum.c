/* SUM: sparse streams by zps_reduce(); where the result has all rows, chunk by chunk in the cache. */
#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/singles.h"
#include "worker/compute/compute_impl.h"

enum { CHUNK_BYTES = 16 << 10, CHUNK_ROWS_MAX = ZPS_COMPUTE_BATCH };

/* Rows at a time: as many as fit, at least one. */
static uint32_t chunk_rows_of(const struct zps_compute_work *work) {
  const uint64_t rows = CHUNK_BYTES / work->row_bytes;
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
static void add_sparse(const struct zps_compute_work *work, struct zps_index_cursor *cursor, uint32_t base,
                       uint32_t end, char *sums) {
  const struct zps_slice_view *const view = cursor->view;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM];
  const zps_lent_index *indices;
  for (uint32_t n; (n = zps_index_cursor_lend(cursor, end, room, &indices)) > 0;)
    zps_accumulate_rows(view->dtype, sums, work->scratch->slots.data, base, indices, n, view->width,
                        zps_slice_values(view, cursor->next - n, n, work->scratch->room.data));
}

/* Adds rows [base, end) of all inputs to `sums`, with room for whole words of 64 rows. */
static void add_singles(const struct zps_compute_work *work, struct zps_index_cursor *cursors, uint32_t base,
                        uint32_t end, float *sums) {
  for (uint32_t i = 0; i < work->task->instr.n_in; i++) {
    const struct zps_slice_view *const view = &work->task->ins[i].view;
    if (zps_compute_is_full(view))
      zps_accumulate(view->dtype, sums, zps_slice_values(view, base, end - base, work->scratch->room.data), end - base);
    else
      zps_singles_add(&cursors[i], base, end, sums, work->scratch->room.data);
  }
}

/* Single floats: bits are added as they are, without listing indices. */
static zps_err_t sum_all_singles(struct zps_compute_work *work, struct zps_index_cursor *cursors) {
  enum { CHUNK = CHUNK_BYTES / sizeof(float) };
  const zps_err_t code = zps_buffer_need(&work->scratch->room, CHUNK, sizeof(float));
  if (code != ZPS_OK) return code;
  float last[CHUNK];
  for (uint32_t base = 0, end; base < work->m; base = end) {
    end = work->m - base > CHUNK ? base + CHUNK : work->m;
    float *const out = (float *)(void *)work->out + base, *const sums = end % 64 == 0 ? out : last;
    memset(sums, 0, (end - base) * sizeof *sums);
    add_singles(work, cursors, base, end, sums);
    if (sums != out) memcpy(out, sums, (end - base) * sizeof *sums);
  }
  zps_compute_finish_full(work);
  return ZPS_OK;
}

static zps_err_t sum_all(struct zps_compute_work *work) {
  const struct zps_compute_in *const ins = work->task->ins;
  const uint32_t n_in = work->task->instr.n_in, chunk_rows = chunk_rows_of(work);
  zps_err_t code = need_slots(work->scratch);
  if (code == ZPS_OK) code = zps_compute_need_room(work);
  if (code == ZPS_OK) code = zps_buffer_need(&work->scratch->cursors, n_in, sizeof(struct zps_index_cursor));
  if (code != ZPS_OK) return code;
  struct zps_index_cursor *const cursors = work->scratch->cursors.data;
  for (uint32_t i = 0; i < n_in; i++) zps_index_cursor_init(&cursors[i], &ins[i].view);
  if (work->compute->dtype == ZPS_DTYPE_F32 && work->compute->width == 1) return sum_all_singles(work, cursors);
  for (uint32_t base = 0, end; base < work->m; base = end) {
    end = work->m - base > chunk_rows ? base + chunk_rows : work->m;
    char *const sums = work->out + base * work->row_bytes;
    memset(sums, 0, (end - base) * work->row_bytes);
    for (uint32_t i = 0; i < n_in; i++) {
      const struct zps_slice_view *const view = &ins[i].view;
      if (zps_compute_is_full(view))
        zps_accumulate(view->dtype, sums, zps_slice_values(view, base, end - base, work->scratch->room.data),
                       (uint64_t)(end - base) * view->width);
      else
        add_sparse(work, &cursors[i], base, end, sums);
    }
  }
  zps_compute_finish_full(work);
  return ZPS_OK;
}

static zps_err_t sum_sparse(struct zps_compute_work *work) {
  const uint32_t n_in = work->task->instr.n_in;
  zps_err_t code = zps_buffer_need(&work->scratch->views, n_in, sizeof(struct zps_slice_view));
  if (code != ZPS_OK) return code;
  struct zps_slice_view *const views = work->scratch->views.data;
  uint64_t rows_max = 0;
  for (uint32_t i = 0; i < n_in; i++) {
    views[i] = work->task->ins[i].view;
    rows_max += views[i].z;
  }
  const unsigned allowed = zps_compute_codecs(work->compute, &work->task->instr);
  struct zps_compute_out *const out = work->out_p;
  out->codec = ZPS_CODEC_COO; /* an empty slice takes no bytes */
  if (rows_max > 0) out->codec = zps_codec_plain(allowed, work->m, rows_max < work->m ? (uint32_t)rows_max : work->m);
  out->value_codec = ZPS_VALUES_RAW;
  code =
      zps_reduce(work->scratch->reduce, views, n_in, work->compute->op == ZPS_OP_MEAN ? ZPS_OP_SUM : work->compute->op,
                 out->codec, NULL, work->out, &out->nnz, &out->len_bytes);
  if (code != ZPS_OK) return code;
  work->z = out->nnz;
  struct zps_slice_view view = zps_compute_view(work->compute, &work->task->out, out, work->out);
  code = zps_slice_recode(&view, allowed, &work->scratch->recode);
  if (code != ZPS_OK) return code;
  out->len_bytes += view.index_bytes;
  out->len_bytes -= zps_codec_index_bytes(out->codec, work->m, work->z);
  out->codec = view.codec;
  return ZPS_OK;
}

static zps_err_t sum_vectors(struct zps_compute_work *work) {
  for (uint32_t i = 0; i < work->m; i++) {
    double sum = 0;
    for (uint32_t j = 0; j < work->task->instr.n_in; j++) {
      double value;
      memcpy(&value, (const char *)work->task->ins[j].view.values + i * sizeof value, sizeof value);
      sum += value;
    }
    memcpy(work->out + i * sizeof sum, &sum, sizeof sum);
  }
  zps_compute_finish_full(work);
  return ZPS_OK;
}

/* Adds the rows of an input to the set that `bits` has; returns how many were not in it. */
static uint32_t unite(const struct zps_slice_view *view, uint64_t *bits) {
  struct zps_index_cursor cursor;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM], n_new = 0;
  const zps_lent_index *indices;
  zps_index_cursor_init(&cursor, view);
  for (uint32_t n; (n = zps_index_cursor_lend(&cursor, view->m, room, &indices)) > 0;) {
    for (uint32_t i = 0; i < n; i++) {
      uint64_t *const word = &bits[indices[i] / 64], bit = 1ull << indices[i] % 64;
      n_new += !(*word & bit);
      *word |= bit;
    }
  }
  return n_new;
}

/* Whether a sum of several streams is beyond delta when they are added one after another: as soon as the rows of the
 * sum so far and those of the next stream are. */
static zps_err_t fills_up(const struct zps_compute_work *work, bool *does_p) {
  const struct zps_compute_task *const task = work->task;
  *does_p = false;
  if (!zps_compute_may_sum_all(work->compute, task)) return ZPS_OK;
  const zps_err_t code = zps_buffer_need(&work->scratch->bits, work->m / 64 + 1ull, sizeof(uint64_t));
  if (code != ZPS_OK) return code;
  uint64_t *const bits = work->scratch->bits.data, n_rows = 0;
  memset(bits, 0, (work->m / 64 + 1ull) * sizeof *bits);
  for (uint32_t i = 0; i < task->instr.n_in && !*does_p; i++) {
    const struct zps_slice_view *const view = &task->ins[i].view;
    *does_p = zps_compute_is_beyond(work->compute, work->row_bytes, work->m, n_rows + view->z);
    if (!*does_p) n_rows += unite(view, bits);
  }
  return ZPS_OK;
}

/* Floats become the halves that the result has, where they are; the index set follows them. */
static void round_final(struct zps_compute_work *work) {
  const struct zps_compute *const compute = work->compute;
  struct zps_compute_out *const out = work->out_p;
  const uint64_t n = (uint64_t)out->nnz * compute->width, index_bytes = out->len_bytes - n * sizeof(float);
  if (compute->divisor != 1) zps_accumulate_divide(compute->dtype, work->out, n, compute->divisor);
  zps_values_narrow(compute->array_dtype, work->out, n, work->out);
  out->value_codec = zps_values_own(compute->array_dtype);
  zps_values_pad(out->value_codec, n, work->out);
  const uint64_t values_bytes = zps_values_bytes(out->value_codec, compute->dtype, n);
  memmove(work->out + values_bytes, work->out + n * sizeof(float), index_bytes);
  out->len_bytes = values_bytes + index_bytes;
}

zps_err_t zps_compute_sum(struct zps_compute_work *work) {
  if (work->task->out.kind == ZPS_STREAM_VECTOR) return sum_vectors(work);
  bool all = zps_compute_sums_all(work->compute, work->task);
  zps_err_t code = all ? ZPS_OK : fills_up(work, &all);
  if (code == ZPS_OK) code = all ? sum_all(work) : sum_sparse(work);
  if (code == ZPS_OK && work->task->is_final && zps_dtype_is_half(work->compute->array_dtype)) round_final(work);
  return code;
}
