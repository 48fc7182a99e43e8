/* Outputs that are rows of the inputs, or of the gradient, as they are. */
#include <string.h>

#include "common/codec/rowscan.h"
#include "worker/compute/compute_impl.h"

/* Appends rows [first, first + n) of a stream's; their indices are indices[0..n) + shift. */
static void append(struct zps_compute_work *work, const struct zps_slice_view *view, uint32_t first, uint32_t n,
                   const zps_lent_index *indices, uint64_t shift) {
  char *const to = work->out + work->z * work->row_bytes;
  const void *const values = zps_compute_take_rows(work, view, first, n, to);
  if (values != to) memcpy(to, values, n * work->row_bytes);
  for (uint32_t i = 0; i < n; i++) work->indices[work->z + i] = (uint32_t)(indices[i] + shift);
  work->z += n;
}

/* The rows that the scan has found. */
static zps_err_t own_found(struct zps_compute_work *work, uint64_t lo, uint64_t hi) {
  const struct zps_own *const own = work->compute->own;
  work->z = zps_own_count(own, lo, hi);
  const zps_err_t code = zps_compute_need_indices(work, work->z);
  if (code != ZPS_OK) return code;
  zps_own_indices(own, lo, hi, work->indices);
  zps_own_values(own, lo, hi, work->out);
  return ZPS_OK;
}

/* From the scan where there was one, else from the gradient. */
static zps_err_t own_bits(struct zps_compute_work *work, uint64_t lo, uint64_t hi) {
  const bool found = zps_own_is_scanned(work->compute->own);
  zps_err_t code = zps_buffer_need(&work->scratch->bits, work->m / 64 + 1ull, sizeof(uint64_t));
  if (code == ZPS_OK && found) code = own_found(work, lo, hi);
  if (code != ZPS_OK) return code;
  void *const bits = work->scratch->bits.data;
  if (found)
    zps_codec_index_encode(ZPS_CODEC_BITMAP, work->m, work->indices, work->z, bits);
  else
    work->z = zps_own_bits(work->compute->own, lo, hi, bits, work->out);
  if (work->z == work->m) {
    zps_compute_finish_full(work);
    return ZPS_OK;
  }
  const enum zps_codec codec = work->z > 0 ? ZPS_CODEC_BITMAP : ZPS_CODEC_COO; /* an empty slice takes no bytes */
  const uint64_t values_bytes = zps_compute_pad_values(work);
  const uint64_t index_bytes = zps_codec_index_bytes(codec, work->m, work->z);
  memcpy(work->out + values_bytes, bits, index_bytes);
  *work->out_p = (struct zps_compute_out){
      .codec = codec, .value_codec = work->value_codec, .nnz = work->z, .len_bytes = values_bytes + index_bytes};
  return ZPS_OK;
}

zps_err_t zps_compute_own(struct zps_compute_work *work) {
  const uint64_t lo = work->task->out.lo, hi = work->task->out.hi;
  if (work->task->instr.form == ZPS_FORM_BITS) return own_bits(work, lo, hi);
  if (work->task->instr.form == ZPS_FORM_ALL) {
    zps_own_all(work->compute->own, lo, hi, work->out);
    zps_compute_finish_full(work);
    return ZPS_OK;
  }
  const zps_err_t code = own_found(work, lo, hi);
  if (code == ZPS_OK) zps_compute_finish(work);
  return code;
}

/* Passes all indices below `limit`. */
static void skip(struct zps_index_cursor *cursor, uint32_t limit) {
  uint32_t room[ZPS_INDEX_CURSOR_ROOM];
  const zps_lent_index *indices;
  while (zps_index_cursor_lend(cursor, limit, room, &indices) > 0) continue;
}

zps_err_t zps_compute_cut(struct zps_compute_work *work) {
  const struct zps_compute_in *const in = work->task->ins;
  const uint32_t from = (uint32_t)(work->task->out.lo - in->lo), to = from + work->m;
  if (zps_compute_is_full(&in->view)) {
    const void *const values = zps_compute_take_rows(work, &in->view, from, work->m, work->out);
    if (values != work->out && work->m > 0) memcpy(work->out, values, work->m * work->row_bytes);
    zps_compute_finish_full(work);
    return ZPS_OK;
  }
  const zps_err_t code = zps_compute_need_indices(work, in->view.z < work->m ? in->view.z : work->m);
  if (code != ZPS_OK) return code;
  struct zps_index_cursor cursor;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM];
  const zps_lent_index *indices;
  zps_index_cursor_init(&cursor, &in->view);
  skip(&cursor, from);
  for (uint32_t n; (n = zps_index_cursor_lend(&cursor, to, room, &indices)) > 0;)
    append(work, &in->view, cursor.next - n, n, indices, 0 - (uint64_t)from);
  zps_compute_finish(work);
  return ZPS_OK;
}

zps_err_t zps_compute_take(struct zps_compute_work *work) {
  const struct zps_instr *const instr = &work->task->instr;
  const struct zps_slice_view *const view = &work->task->ins->view;
  const uint32_t to = instr->to < view->z ? (uint32_t)instr->to : view->z;
  const uint32_t from = instr->from < to ? (uint32_t)instr->from : to;
  const zps_err_t code = zps_compute_need_indices(work, to - from);
  if (code != ZPS_OK) return code;
  struct zps_index_cursor cursor;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM];
  zps_index_cursor_init(&cursor, view);
  while (cursor.next < to) {
    const uint32_t left = (cursor.next < from ? from : to) - cursor.next;
    const uint32_t first = cursor.next, n = zps_index_cursor_read(&cursor, view->m, room,
                                                                  left < ZPS_COMPUTE_BATCH ? left : ZPS_COMPUTE_BATCH);
    if (first >= from) append(work, view, first, n, room, 0);
  }
  zps_compute_finish(work);
  return ZPS_OK;
}

bool zps_compute_joins_all(const struct zps_compute_task *task) {
  uint64_t next = task->out.lo;
  for (uint32_t i = 0; i < task->instr.n_in; i++) {
    const struct zps_compute_in *const in = &task->ins[i];
    if (!zps_compute_is_full(&in->view) || in->lo != next) return false;
    next = in->hi;
  }
  return next == task->out.hi;
}

static void join_all(struct zps_compute_work *work) {
  for (uint32_t i = 0; i < work->task->instr.n_in; i++) {
    const struct zps_compute_in *const in = &work->task->ins[i];
    char *const to = work->out + (in->lo - work->task->out.lo) * work->row_bytes;
    const void *const values = zps_compute_take_rows(work, &in->view, 0, in->view.z, to);
    if (values != to && in->view.z > 0) memcpy(to, values, in->view.z * work->row_bytes);
  }
  zps_compute_finish_full(work);
}

/* Of the last `n` rows, those that are all zero: of a stream with all rows, these are as good as absent. */
static void drop_zeros(struct zps_compute_work *work, uint32_t n) {
  const struct zps_compute *const compute = work->compute;
  const enum zps_dtype dtype = work->value_codec == ZPS_VALUES_RAW ? compute->dtype : compute->array_dtype;
  const uint32_t end = work->z;
  work->z -= n;
  for (uint32_t i = work->z; i < end; i++) {
    const char *const row = work->out + i * work->row_bytes;
    if (zps_rowscan_is_zero(dtype, compute->width, row)) continue;
    if (i != work->z) memcpy(work->out + work->z * work->row_bytes, row, work->row_bytes);
    work->indices[work->z++] = work->indices[i];
  }
}

zps_err_t zps_compute_join(struct zps_compute_work *work) {
  if (zps_compute_joins_all(work->task)) {
    join_all(work);
    return ZPS_OK;
  }
  uint64_t z = 0;
  for (uint32_t i = 0; i < work->task->instr.n_in; i++) z += work->task->ins[i].view.z;
  if (z > work->m) return ZPS_ERR_PROTOCOL;
  const zps_err_t code = zps_compute_need_indices(work, z);
  if (code != ZPS_OK) return code;
  uint64_t next = 0; /* the least index that ascends */
  const bool may_fill = zps_compute_may_fill(work->compute);
  for (uint32_t i = 0; i < work->task->instr.n_in; i++) {
    const struct zps_compute_in *const in = &work->task->ins[i];
    const uint64_t shift = in->lo - work->task->out.lo;
    struct zps_index_cursor cursor;
    uint32_t room[ZPS_INDEX_CURSOR_ROOM];
    const zps_lent_index *indices;
    zps_index_cursor_init(&cursor, &in->view);
    for (uint32_t n; (n = zps_index_cursor_lend(&cursor, in->view.m, room, &indices)) > 0;) {
      if (indices[0] + shift < next) return ZPS_ERR_PROTOCOL;
      next = indices[n - 1] + shift + 1;
      append(work, &in->view, cursor.next - n, n, indices, shift);
      if (may_fill && zps_compute_is_full(&in->view)) drop_zeros(work, n);
    }
  }
  zps_compute_finish(work);
  return ZPS_OK;
}

zps_err_t zps_compute_common(struct zps_compute_work *work) {
  const struct zps_slice_view *const view = &work->task->ins[0].view, *const other = &work->task->ins[1].view;
  const zps_err_t code = zps_compute_need_indices(work, view->z);
  if (code != ZPS_OK) return code;
  struct zps_index_cursor cursor, other_cursor;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM], other_room[ZPS_INDEX_CURSOR_ROOM], n_other = 0, at = 0;
  zps_index_cursor_init(&cursor, view);
  zps_index_cursor_init(&other_cursor, other);
  for (uint32_t n; (n = zps_index_cursor_read(&cursor, view->m, room, ZPS_COMPUTE_BATCH)) > 0;) {
    for (uint32_t i = 0; i < n; i++) {
      while (at < n_other && other_room[at] < room[i]) at++;
      while (at == n_other) {
        n_other = zps_index_cursor_read(&other_cursor, other->m, other_room, ZPS_COMPUTE_BATCH);
        at = 0;
        if (n_other == 0) goto none_left;
        while (at < n_other && other_room[at] < room[i]) at++;
      }
      if (other_room[at] == room[i]) append(work, view, cursor.next - n + i, 1, room + i, 0);
    }
  }
none_left:
  zps_compute_finish(work);
  return ZPS_OK;
}

/* Puts `n` rows of zeros. */
static void put_zeros(struct zps_values_writer *writer, uint32_t width, uint64_t n) {
  static const double zeros[64];
  const uint64_t at_once = sizeof zeros / zps_dtype_size(writer->dtype);
  for (uint64_t left = n * width, here; left > 0; left -= here) {
    here = left < at_once ? left : at_once;
    zps_values_writer_put(writer, zeros, here);
  }
}

/* Its rows, under the code that they came with. Draws are others than those of all rows of the same range. */
static void narrow_rows(struct zps_compute_work *work, enum zps_value_codec codec) {
  const struct zps_slice_view *const view = &work->task->ins->view;
  const uint64_t n_values = (uint64_t)view->z * view->width;
  const uint64_t values_bytes = zps_values_bytes(codec, view->dtype, n_values);
  const uint64_t key = zps_values_key(&work->compute->origin, ~(uint32_t)work->task->out.lo);
  struct zps_values_writer writer;
  zps_values_writer_init(&writer, codec, view->dtype, n_values, key, work->out);
  for (uint32_t first = 0, n; first < view->z; first += n) {
    n = view->z - first < ZPS_COMPUTE_BATCH ? view->z - first : ZPS_COMPUTE_BATCH;
    const void *const values = zps_slice_values(view, first, n, work->scratch->room.data);
    zps_values_writer_put(&writer, values, (uint64_t)n * view->width);
  }
  zps_values_writer_end(&writer);
  if (view->index_bytes > 0) memcpy(work->out + values_bytes, view->index, view->index_bytes);
  *work->out_p = (struct zps_compute_out){
      .codec = view->codec, .value_codec = codec, .nnz = view->z, .len_bytes = values_bytes + view->index_bytes};
}

zps_err_t zps_compute_narrow(struct zps_compute_work *work) {
  const struct zps_compute *const compute = work->compute;
  const struct zps_slice_view *const view = &work->task->ins->view;
  const enum zps_value_codec codec = (enum zps_value_codec)work->task->instr.values;
  if (!zps_values_suit(codec, compute->dtype)) return ZPS_ERR_UNSUPPORTED;
  const zps_err_t code = zps_compute_need_room(work);
  if (code != ZPS_OK) return code;
  if (work->task->instr.form == ZPS_FORM_SPARSE) {
    narrow_rows(work, codec);
    return ZPS_OK;
  }
  const uint64_t n_values = (uint64_t)work->m * compute->width;
  const uint64_t key = zps_values_key(&compute->origin, (uint32_t)work->task->out.lo);
  struct zps_values_writer writer;
  struct zps_index_cursor cursor;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM], next = 0;
  zps_values_writer_init(&writer, codec, compute->dtype, n_values, key, work->out);
  zps_index_cursor_init(&cursor, view);
  for (uint32_t n; (n = zps_index_cursor_read(&cursor, view->m, room, ZPS_COMPUTE_BATCH)) > 0;) {
    const char *const values = zps_slice_values(view, cursor.next - n, n, work->scratch->room.data);
    for (uint32_t i = 0, run; i < n; i += run) {
      run = 1;
      while (i + run < n && room[i + run] == room[i] + run) run++;
      put_zeros(&writer, compute->width, room[i] - next);
      zps_values_writer_put(&writer, values + i * work->row_bytes, (uint64_t)run * compute->width);
      next = room[i] + run;
    }
  }
  put_zeros(&writer, compute->width, work->m - next);
  zps_values_writer_end(&writer);
  *work->out_p = (struct zps_compute_out){.codec = ZPS_CODEC_HOLES,
                                          .value_codec = codec,
                                          .nnz = work->m,
                                          .len_bytes = zps_values_bytes(codec, compute->dtype, n_values)};
  return ZPS_OK;
}
