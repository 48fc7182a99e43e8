/* RESULT: from a stream to the trainer's memory. */
#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/rowscan.h"
#include "worker/compute/compute_impl.h"

/* Values of a narrow stream are decoded a few at a time, in the place where they are to be. */
static void copy_rows(const struct zps_slice_view *view, uint32_t first, uint32_t n, unsigned divisor, char *to) {
  const uint64_t n_values = (uint64_t)n * view->width;
  const void *const values = zps_slice_values(view, first, n, to);
  if (values != to && n_values > 0) memcpy(to, values, n_values * zps_dtype_size(view->dtype));
  if (divisor != 1) zps_accumulate_divide(view->dtype, to, n_values, divisor);
}

/* Copies rows as halves. Notes which rows have a value other than zero, before it is rounded. */
static void copy_halves(const struct zps_slice_view *view, uint32_t first, uint32_t n, unsigned divisor,
                        enum zps_dtype dtype, char *to, bool *any) {
  enum { FLOATS = 512 };
  const uint64_t n_stream = (uint64_t)view->z * view->width, n_values = (uint64_t)n * view->width;
  float floats[FLOATS];
  uint32_t row = 0, column = 0;
  memset(any, 0, n * sizeof *any);
  for (uint64_t at = 0, here; at < n_values; at += here) {
    here = n_values - at < FLOATS ? n_values - at : FLOATS;
    zps_values_decode(view->value_codec, view->dtype, view->values, n_stream, (uint64_t)first * view->width + at, here,
                      floats);
    if (divisor != 1) zps_accumulate_divide(view->dtype, floats, here, divisor);
    for (uint64_t i = 0; i < here; i++) {
      any[row] |= floats[i] != 0;
      if (++column < view->width) continue;
      column = 0;
      row++;
    }
    zps_values_narrow(dtype, floats, here, to + 2 * at);
  }
}

zps_err_t zps_compute_result_dense(struct zps_compute_scratch *scratch, const struct zps_compute_in *ins, unsigned n_in,
                                   const struct zps_compute_result *result, uint64_t *n_rows_p) {
  const uint64_t row_bytes = zps_row_bytes(ins->view.width, result->dtype);
  const zps_err_t code = zps_buffer_need(&scratch->views, n_in, sizeof(struct zps_slice_view));
  if (code != ZPS_OK) return code;
  struct zps_slice_view *const views = scratch->views.data;
  for (unsigned i = 0; i < n_in; i++) views[i] = ins[i].view;
  const struct zps_deliver deliver = {.views = views,
                                      .n_views = n_in,
                                      .divisor = result->divisor,
                                      .dtype = result->dtype,
                                      .is_rounded = result->is_rounded,
                                      .dense = (char *)result->dense + ins->lo * row_bytes,
                                      .is_large = zps_deliver_is_large(result->dense_bytes),
                                      .first = (uint32_t)(result->lo - ins->lo),
                                      .end = (uint32_t)(result->hi - ins->lo)};
  return zps_deliver(scratch->deliver, &deliver, n_rows_p);
}

uint32_t zps_compute_result_rows(const struct zps_compute_in *in, enum zps_dtype dtype, unsigned divisor,
                                 bool skip_zeros, int64_t *rows, void *values) {
  const struct zps_slice_view *const view = &in->view;
  const uint64_t row_bytes = zps_row_bytes(view->width, dtype);
  const bool is_half = zps_dtype_is_half(dtype);
  struct zps_index_cursor cursor;
  uint32_t indices[ZPS_COMPUTE_BATCH], n_rows = 0;
  bool any[ZPS_COMPUTE_BATCH];
  zps_index_cursor_init(&cursor, view);
  for (uint32_t n; (n = zps_index_cursor_read(&cursor, view->m, indices, ZPS_COMPUTE_BATCH)) > 0;) {
    char *const to = (char *)values + n_rows * row_bytes;
    if (is_half)
      copy_halves(view, cursor.next - n, n, divisor, dtype, to, any);
    else
      copy_rows(view, cursor.next - n, n, divisor, to);
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
      const char *const row = to + i * row_bytes;
      if (skip_zeros && (is_half ? !any[i] : zps_rowscan_is_zero(view->dtype, view->width, row))) continue;
      if (n_kept != i) memcpy(to + n_kept * row_bytes, row, row_bytes);
      rows[n_rows + n_kept++] = (int64_t)(in->lo + indices[i]);
    }
    n_rows += n_kept;
  }
  return n_rows;
}

uint32_t zps_compute_contributed(const struct zps_compute_in *in, int64_t *rows) {
  const struct zps_slice_view *const view = &in->view;
  struct zps_index_cursor cursor;
  uint32_t indices[ZPS_COMPUTE_BATCH], n_rows = 0;
  zps_index_cursor_init(&cursor, view);
  for (uint32_t n; (n = zps_index_cursor_read(&cursor, view->m, indices, ZPS_COMPUTE_BATCH)) > 0;) {
    const char *const values = view->values;
    const uint64_t row_bytes = zps_row_bytes(view->width, view->dtype);
    for (uint32_t i = 0; i < n; i++) {
      if (zps_compute_is_full(view) &&
          zps_rowscan_is_zero(view->dtype, view->width, values + (cursor.next - n + i) * row_bytes))
        continue;
      rows[n_rows++] = (int64_t)(in->lo + indices[i]);
    }
  }
  return n_rows;
}
