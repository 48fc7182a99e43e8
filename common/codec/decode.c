#include "common/codec/decode.h"

#include <stdlib.h>
#include <string.h>

#include "common/codec/simd.h"
#include "common/codec/sort.h"

enum { BATCH = 512, PAGE_BYTES = 4096 };

void zps_decode_dense_clear(void *dense, uint64_t len_bytes, unsigned piece, unsigned n_pieces) {
  const uint64_t n_pages = (len_bytes + PAGE_BYTES - 1) / PAGE_BYTES;
  const uint64_t first = n_pages * piece / n_pieces * PAGE_BYTES;
  uint64_t end = n_pages * (piece + 1ull) / n_pieces * PAGE_BYTES;
  if (end > len_bytes) end = len_bytes;
  if (first < end) memset((char *)dense + first, 0, end - first);
}

/* Copies one batch of rows to their places. */
static inline __attribute__((always_inline)) void scatter(const uint64_t *rows, uint32_t n, const char *values,
                                                          uint64_t row_bytes, char *dense) {
  for (uint32_t i = 0; i < n; i++, values += row_bytes) memcpy(dense + rows[i] * row_bytes, values, row_bytes);
}

/* Widens rows to their places. */
static void widen(const struct zps_slice_view *view, uint32_t first, const uint64_t *rows, uint32_t n,
                  uint64_t row_bytes, char *dense) {
  for (uint32_t i = 0; i < n; i++) zps_slice_values(view, first + i, 1, dense + rows[i] * row_bytes);
}

/* Whether the array ends inside the last of these rows; then that row's part which lies in it is written. */
static bool put_cut(const struct zps_slice_view *view, uint32_t position, uint64_t row, uint64_t row_bytes, char *dense,
                    uint64_t len_bytes) {
  const uint64_t at = row * row_bytes;
  if (at + row_bytes <= len_bytes) return false;
  zps_values_decode(view->value_codec, view->dtype, view->values, (uint64_t)view->z * view->width,
                    (uint64_t)position * view->width, (len_bytes - at) / zps_dtype_size(view->dtype), dense + at);
  return true;
}

void zps_decode_dense(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view, void *dense) {
  zps_decode_dense_cut(part, p, view, dense, UINT64_MAX);
}

void zps_decode_dense_cut(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view, void *dense,
                          uint64_t len_bytes) {
  const uint64_t row_bytes = view->width * (uint64_t)zps_dtype_size(view->dtype);
  struct zps_rank_cursor cursor;
  uint32_t ranks[BATCH + ZPS_SIMD_SLACK] = {0};
  uint64_t rows[BATCH + ZPS_SIMD_SLACK];
  zps_rank_cursor_init(&cursor, view);
  for (uint32_t n; (n = zps_rank_cursor_read(&cursor, view->m, ranks, BATCH)) > 0;) {
    zps_simd()->rows_of(part, p, ranks, n, rows);
    const uint32_t first = cursor.next - n;
    if (put_cut(view, cursor.next - 1, rows[n - 1], row_bytes, dense, len_bytes)) n--;
    if (view->value_codec != ZPS_VALUES_RAW && view->width > 1) {
      widen(view, first, rows, n, row_bytes, dense);
      continue;
    }
    double room[BATCH];
    const char *const values = zps_slice_values(view, first, n, room);
    if (row_bytes == 4)
      scatter(rows, n, values, 4, dense);
    else if (row_bytes == 8)
      scatter(rows, n, values, 8, dense);
    else
      scatter(rows, n, values, row_bytes, dense);
  }
}

/* Lists (row, partition and position) of all views' rows. */
static void list_rows(const struct zps_partition *part, const struct zps_slice_view *views,
                      struct zps_sort_pair *pairs) {
  uint32_t ranks[BATCH + ZPS_SIMD_SLACK] = {0};
  uint64_t rows[BATCH + ZPS_SIMD_SLACK];
  for (uint32_t p = 0; p < part->n_parts; p++) {
    struct zps_rank_cursor cursor;
    zps_rank_cursor_init(&cursor, &views[p]);
    for (uint32_t n; (n = zps_rank_cursor_read(&cursor, views[p].m, ranks, BATCH)) > 0;) {
      zps_simd()->rows_of(part, p, ranks, n, rows);
      for (uint32_t i = 0; i < n; i++)
        *pairs++ = (struct zps_sort_pair){.key = rows[i], .value = (uint64_t)p << 32 | (cursor.next - n + i)};
    }
  }
}

zps_err_t zps_decode_rows(const struct zps_partition *part, const struct zps_slice_view *views, int64_t *rows,
                          void *values) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < part->n_parts; p++) n += views[p].z;
  if (n == 0) return ZPS_OK;
  if (n > SIZE_MAX / 2 / sizeof(struct zps_sort_pair)) return ZPS_ERR_NOMEM;
  struct zps_sort_pair *const pairs = malloc(2 * n * sizeof *pairs);
  if (!pairs) return ZPS_ERR_NOMEM;
  list_rows(part, views, pairs);
  zps_sort_pairs(pairs, pairs + n, n);
  const uint64_t row_bytes = views->width * (uint64_t)zps_dtype_size(views->dtype);
  for (uint64_t i = 0; i < n; i++) {
    const struct zps_slice_view *const view = &views[pairs[i].value >> 32];
    rows[i] = (int64_t)pairs[i].key;
    char *const to = (char *)values + i * row_bytes;
    const void *const from = zps_slice_values(view, (uint32_t)pairs[i].value, 1, to);
    if (from != to) memcpy(to, from, row_bytes);
  }
  free(pairs);
  return ZPS_OK;
}
