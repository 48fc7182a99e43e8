/* RESULT: from a stream to the trainer's memory. */
#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/rowscan.h"
#include "worker/schemes/compute_internal.h"

/* Values of a narrow stream are decoded a few at a time, in the place where they are to be. */
static void copy_rows(const struct zps_slice_view *view, uint32_t first, uint32_t n, unsigned divisor, char *to) {
  const uint64_t n_values = (uint64_t)n * view->width;
  const void *const values = zps_slice_values(view, first, n, to);
  if (values != to && n_values > 0) memcpy(to, values, n_values * zps_dtype_size(view->dtype));
  if (divisor != 1) zps_accumulate_divide(view->dtype, to, n_values, divisor);
}

void zps_compute_result_dense(const struct zps_compute_in *in, unsigned divisor, void *dense) {
  const struct zps_slice_view *const view = &in->view;
  const uint64_t row_bytes = view->width * (uint64_t)zps_dtype_size(view->dtype);
  char *const to = (char *)dense + in->lo * row_bytes;
  if (zps_compute_is_full(view)) {
    copy_rows(view, 0, view->z, divisor, to);
    return;
  }
  struct zps_rank_cursor cursor;
  uint32_t ranks[ZPS_COMPUTE_BATCH];
  zps_rank_cursor_init(&cursor, view);
  for (uint32_t n; (n = zps_rank_cursor_read(&cursor, view->m, ranks, ZPS_COMPUTE_BATCH)) > 0;) {
    for (uint32_t i = 0, run; i < n; i += run) {
      run = 1;
      while (i + run < n && ranks[i + run] == ranks[i] + run) run++;
      copy_rows(view, cursor.next - n + i, run, divisor, to + ranks[i] * row_bytes);
    }
  }
}

uint32_t zps_compute_result_rows(const struct zps_compute_in *in, unsigned divisor, bool skip_zeros, int64_t *rows,
                                 void *values) {
  const struct zps_slice_view *const view = &in->view;
  const uint64_t row_bytes = view->width * (uint64_t)zps_dtype_size(view->dtype);
  struct zps_rank_cursor cursor;
  uint32_t ranks[ZPS_COMPUTE_BATCH], n_rows = 0;
  zps_rank_cursor_init(&cursor, view);
  for (uint32_t n; (n = zps_rank_cursor_read(&cursor, view->m, ranks, ZPS_COMPUTE_BATCH)) > 0;) {
    char *const to = (char *)values + n_rows * row_bytes;
    copy_rows(view, cursor.next - n, n, divisor, to);
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++) {
      const char *const row = to + i * row_bytes;
      if (skip_zeros && zps_rowscan_is_zero(view->dtype, view->width, row)) continue;
      if (n_kept != i) memcpy(to + n_kept * row_bytes, row, row_bytes);
      rows[n_rows + n_kept++] = (int64_t)(in->lo + ranks[i]);
    }
    n_rows += n_kept;
  }
  return n_rows;
}
