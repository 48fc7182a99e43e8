#include "common/codec/decode.h"

#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/codec/locate.h"

enum { BATCH = 512, AHEAD = 32, PAGE_BYTES = 4096, CACHED_BYTES_MAX = 32 << 20 };

/* Of arrays that no cache holds, each line would be read before it is overwritten, and drive out another. */
static void clear_past_caches(char *at, uint64_t n_bytes) {
#ifdef __SSE2__
  enum { LINE_BYTES = 64 };
  const uint64_t to_line = -(uintptr_t)at % LINE_BYTES, head = to_line < n_bytes ? to_line : n_bytes;
  memset(at, 0, head);
  at += head;
  n_bytes -= head;
  for (; n_bytes >= LINE_BYTES; at += LINE_BYTES, n_bytes -= LINE_BYTES)
    for (unsigned i = 0; i < LINE_BYTES; i += sizeof(__m128i))
      _mm_stream_si128((__m128i *)(void *)(at + i), _mm_setzero_si128());
  _mm_sfence(); /* before others are told that it is done */
#endif
  memset(at, 0, n_bytes);
}

void zps_decode_dense_clear(void *dense, uint64_t len_bytes, unsigned piece, unsigned n_pieces) {
  const uint64_t n_pages = (len_bytes + PAGE_BYTES - 1) / PAGE_BYTES;
  const uint64_t first = n_pages * piece / n_pieces * PAGE_BYTES;
  uint64_t end = n_pages * (piece + 1ull) / n_pieces * PAGE_BYTES;
  if (end > len_bytes) end = len_bytes;
  if (first >= end) return;
  if (len_bytes >= CACHED_BYTES_MAX)
    clear_past_caches((char *)dense + first, end - first);
  else
    memset((char *)dense + first, 0, end - first);
}

/* Copies one batch of rows to their places, of which hardly two are on one cache line. */
static inline __attribute__((always_inline)) void scatter(const uint64_t *rows, uint32_t n, const char *values,
                                                          uint64_t row_bytes, char *dense) {
  uint32_t i = 0;
  for (; i + AHEAD < n; i++, values += row_bytes) {
    __builtin_prefetch(dense + rows[i + AHEAD] * row_bytes, 1);
    memcpy(dense + rows[i] * row_bytes, values, row_bytes);
  }
  for (; i < n; i++, values += row_bytes) memcpy(dense + rows[i] * row_bytes, values, row_bytes);
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

/* Where rows go: an array, or sections. */
struct target {
  char *dense;
  uint64_t len_bytes;
  const struct zps_sections *sections; /* NULL: the array */
};

/* Writes rows of the view, from position `first` on, to their places. */
static void put(const struct zps_slice_view *view, uint32_t first, const uint64_t *rows, uint32_t n, uint64_t row_bytes,
                char *dense) {
  if (view->width > 1 && !zps_values_are_plain(view->value_codec, view->dtype)) {
    widen(view, first, rows, n, row_bytes, dense);
    return;
  }
  double room[BATCH];
  const char *const values = zps_slice_values(view, first, n, room);
  if (row_bytes == 2)
    scatter(rows, n, values, 2, dense);
  else if (row_bytes == 4)
    scatter(rows, n, values, 4, dense);
  else if (row_bytes == 8)
    scatter(rows, n, values, 8, dense);
  else
    scatter(rows, n, values, row_bytes, dense);
}

/* Writes n rows to sections. `rows` ascend; the call changes them. */
static void put_sections(const struct zps_slice_view *view, uint32_t first, uint64_t *rows, uint32_t n,
                         uint64_t row_bytes, const struct zps_sections *sections) {
  for (uint32_t i = 0, end; i < n; i = end) {
    const uint32_t begun = zps_sections_begun(sections, rows[i]);
    const uint64_t limit = begun < sections->n ? sections->list[begun].first_row : UINT64_MAX;
    for (end = i; end < n && rows[end] < limit;) end++;
    if (begun == 0) continue;
    const struct zps_section *const section = &sections->list[begun - 1];
    uint32_t n_rows = 0;
    for (uint32_t j = i; j < end && (rows[j] -= section->first_row) < section->n_rows; j++) n_rows++;
    if (n_rows > 0) put(view, first + i, rows + i, n_rows, row_bytes, section->values);
  }
}

/* Writes the rows whose indices are below the limit. */
static void put_below(const struct zps_partition *part, uint32_t p, struct zps_index_cursor *cursor, uint32_t limit,
                      const struct target *target) {
  const struct zps_slice_view *const view = cursor->view;
  const uint64_t row_bytes = zps_row_bytes(view->width, view->dtype);
  uint32_t indices[BATCH + ZPS_SIMD_SLACK] = {0};
  uint64_t rows[BATCH + ZPS_SIMD_SLACK];
  for (uint32_t n; (n = zps_index_cursor_read(cursor, limit, indices, BATCH)) > 0;) {
    zps_partition_rows_of(part, p, indices, n, rows);
    const uint32_t first = cursor->next - n;
    if (target->sections) {
      put_sections(view, first, rows, n, row_bytes, target->sections);
      continue;
    }
    if (put_cut(view, cursor->next - 1, rows[n - 1], row_bytes, target->dense, target->len_bytes)) n--;
    put(view, first, rows, n, row_bytes, target->dense);
  }
}

static void put_all(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view,
                    const struct target *target) {
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, view);
  put_below(part, p, &cursor, view->m, target);
}

void zps_decode_dense_cut(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view, void *dense,
                          uint64_t len_bytes) {
  put_all(part, p, view, &(struct target){.dense = dense, .len_bytes = len_bytes});
}

void zps_decode_sections(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view,
                         const struct zps_sections *sections) {
  put_all(part, p, view, &(struct target){.sections = sections});
}

void zps_decode_sections_clear(const struct zps_sections *sections, uint64_t row_bytes, unsigned piece,
                               unsigned n_pieces) {
  for (uint32_t i = 0; i < sections->n; i++)
    zps_decode_dense_clear(sections->list[i].values, sections->list[i].n_rows * row_bytes, piece, n_pieces);
}

static void clear_rows(const struct target *target, uint64_t row, uint64_t n, uint64_t row_bytes) {
  const uint64_t from = row * row_bytes, len = n * row_bytes;
  if (!target->sections) {
    const uint64_t left = from < target->len_bytes ? target->len_bytes - from : 0;
    if (left > 0) memset(target->dense + from, 0, len < left ? len : left);
    return;
  }
  for (uint64_t at = 0; at < n;) {
    const struct zps_section_rows rows = zps_sections_rows(target->sections, row + at, n - at, row_bytes);
    if (rows.values) memset(rows.values, 0, rows.n * row_bytes);
    at += rows.n;
  }
}

static zps_err_t decode_stripe(const struct zps_partition *part, uint32_t stripe, const struct zps_slice_view *views,
                               const struct target *target) {
  const uint32_t first = stripe * part->stripe_parts, n = part->stripe_parts;
  const uint64_t n_rows = zps_partition_stripe_rows(part, stripe, part->rows), chunk_rows = 1ull << part->chunk_bits;
  const uint64_t row_bytes = zps_row_bytes(views[first].width, views[first].dtype);
  struct zps_index_cursor *const cursors = malloc(n * sizeof *cursors);
  if (!cursors) return ZPS_ERR_NOMEM;
  for (uint32_t p = 0; p < n; p++) zps_index_cursor_init(&cursors[p], &views[first + p]);
  for (uint64_t at = 0; at < n_rows; at += chunk_rows) {
    const uint64_t left = n_rows - at, end = at + (left < chunk_rows ? left : chunk_rows);
    clear_rows(target, zps_partition_stripe_row(part, stripe, at), end - at, row_bytes);
    for (uint32_t p = 0; p < n; p++)
      put_below(part, first + p, &cursors[p], zps_partition_indices_below(part, first + p, end), target);
  }
  free(cursors);
  return ZPS_OK;
}

zps_err_t zps_decode_dense_stripe(const struct zps_partition *part, uint32_t stripe, const struct zps_slice_view *views,
                                  void *dense, uint64_t len_bytes) {
  return decode_stripe(part, stripe, views, &(struct target){.dense = dense, .len_bytes = len_bytes});
}

zps_err_t zps_decode_sections_stripe(const struct zps_partition *part, uint32_t stripe,
                                     const struct zps_slice_view *views, const struct zps_sections *sections) {
  return decode_stripe(part, stripe, views, &(struct target){.sections = sections});
}
