#include "common/codec/deliver.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/codec/accumulate.h"
#include "common/codec/buffer.h"
#include "common/codec/simd/simd.h"
#include "common/codec/singles.h"

enum {
  LINE_BYTES = 64,
  CACHED_BYTES_MAX = 16 << 20,
  ROWS_BYTES = 64 << 10, /* of a chunk of rows */
  ROWS_MAX = 4096,
};

struct zps_deliver_scratch {
  struct zps_buffer cursors;
  struct zps_buffer singles;    /* -0.0 between chunks, which no sum that started at +0.0 can be */
  struct zps_buffer rows;       /* sums of rows; +0.0 between chunks */
  struct zps_buffer widened;    /* values that travel narrow */
  struct zps_buffer floats;     /* a chunk of single floats that become halves */
  uint32_t slots[ROWS_MAX];     /* 0, 1, 2, ... */
  uint64_t held[ROWS_MAX / 64]; /* indices of a chunk that are in the sum; 0 between chunks */
};

zps_err_t zps_deliver_scratch_create(struct zps_deliver_scratch **scratch_p) {
  struct zps_deliver_scratch *const scratch = calloc(1, sizeof *scratch);
  if (!scratch) return ZPS_ERR_NOMEM;
  for (uint32_t i = 0; i < ROWS_MAX; i++) scratch->slots[i] = i;
  *scratch_p = scratch;
  return ZPS_OK;
}

void zps_deliver_scratch_destroy(struct zps_deliver_scratch *scratch) {
  if (!scratch) return;
  zps_buffer_fini(&scratch->cursors);
  zps_buffer_fini(&scratch->singles);
  zps_buffer_fini(&scratch->rows);
  zps_buffer_fini(&scratch->widened);
  zps_buffer_fini(&scratch->floats);
  free(scratch);
}

bool zps_deliver_is_large(uint64_t dense_bytes) {
  return dense_bytes >= CACHED_BYTES_MAX;
}

static zps_err_t need_cursors(struct zps_deliver_scratch *scratch, const struct zps_deliver *deliver) {
  const zps_err_t code = zps_buffer_need(&scratch->cursors, deliver->n_views, sizeof(struct zps_index_cursor));
  if (code != ZPS_OK) return code;
  struct zps_index_cursor *const cursors = scratch->cursors.data;
  for (unsigned i = 0; i < deliver->n_views; i++) {
    zps_index_cursor_init(&cursors[i], &deliver->views[i]);
    if (deliver->first > 0) zps_index_cursor_seek(&cursors[i], deliver->first);
  }
  return ZPS_OK;
}

/* ------------------------------------------------------------ single floats */

static zps_err_t need_singles(struct zps_deliver_scratch *scratch) {
  if (scratch->singles.data) return ZPS_OK;
  zps_err_t code = zps_buffer_need(&scratch->widened, ZPS_SINGLES_CHUNK_MAX, sizeof(double));
  if (code == ZPS_OK)
    code = zps_buffer_need(&scratch->singles, ZPS_SINGLES_CHUNK_MAX * sizeof(float) + 2 * LINE_BYTES, 1);
  if (code != ZPS_OK) return code;
  float *const singles = scratch->singles.data;
  for (uint64_t i = 0; i < scratch->singles.size_bytes / sizeof *singles; i++) singles[i] = -0.0f;
  return ZPS_OK;
}

/* As far into a cache line as their places in the array, so that both are read and written by the line. */
static float *singles_for(const struct zps_deliver_scratch *scratch, const float *out) {
  const uintptr_t line = ((uintptr_t)scratch->singles.data + LINE_BYTES - 1) & ~(uintptr_t)(LINE_BYTES - 1);
  return (float *)(line + (uintptr_t)out % LINE_BYTES);
}

static const void *values_of(const struct zps_deliver_scratch *scratch, const struct zps_slice_view *view,
                             uint32_t first, uint32_t n) {
  return zps_slice_values(view, first, n, scratch->widened.data);
}

static uint64_t deliver_singles(struct zps_deliver_scratch *scratch, const struct zps_deliver *deliver) {
  const uint32_t chunk = zps_singles_chunk(deliver->views, deliver->n_views);
  const float factor = 1.0f / (float)deliver->divisor;
  const bool is_half = zps_dtype_is_half(deliver->dtype);
  struct zps_index_cursor *const cursors = scratch->cursors.data;
  uint64_t nnz = 0;
  for (uint32_t base = deliver->first, end; base < deliver->end; base = end) {
    float *const out = is_half ? scratch->floats.data : (float *)deliver->dense + base;
    float *const sums = singles_for(scratch, out);
    end = deliver->end - base > chunk ? base + chunk : deliver->end;
    for (unsigned i = 0; i < deliver->n_views; i++)
      zps_singles_add(&cursors[i], base, end, sums, scratch->widened.data);
    nnz += zps_simd()->deliver(sums, end - base, factor, out, !is_half && deliver->is_large);
    if (is_half) zps_values_narrow(deliver->dtype, out, end - base, (char *)deliver->dense + 2ull * base);
  }
  return nnz;
}

/* ------------------------------------------------------------ rows, and other types */

/* Lines that are written in full are not read before, nor kept. */
static void copy_past_caches(char *to, const char *from, uint64_t n_bytes) {
#ifdef __SSE2__
  const uint64_t to_line = -(uintptr_t)to % LINE_BYTES, head = to_line < n_bytes ? to_line : n_bytes;
  memcpy(to, from, head);
  uint64_t at = head;
  for (; n_bytes - at >= LINE_BYTES; at += LINE_BYTES)
    for (unsigned i = 0; i < LINE_BYTES; i += sizeof(__m128i))
      _mm_stream_si128((__m128i *)(void *)(to + at + i),
                       _mm_loadu_si128((const __m128i *)(const void *)(from + at + i)));
  to += at;
  from += at;
  n_bytes -= at;
#endif
  memcpy(to, from, n_bytes);
}

static void put(const struct zps_deliver *deliver, char *to, const char *from, uint64_t n_bytes) {
  if (deliver->is_large)
    copy_past_caches(to, from, n_bytes);
  else
    memcpy(to, from, n_bytes);
}

static uint32_t rows_of_chunk(uint64_t row_bytes) {
  const uint64_t n = ROWS_BYTES / row_bytes;
  return n == 0 ? 1 : n < ROWS_MAX ? (uint32_t)n : ROWS_MAX;
}

static zps_err_t need_rows(struct zps_deliver_scratch *scratch, uint64_t row_bytes) {
  zps_err_t code = zps_buffer_need(&scratch->rows, rows_of_chunk(row_bytes), row_bytes);
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->widened, ZPS_INDEX_CURSOR_ROOM, row_bytes);
  return code;
}

/* Notes the indices from `base` on that are held. */
static void hold(struct zps_deliver_scratch *scratch, const zps_lent_index *indices, uint32_t n, uint32_t base) {
  for (uint32_t i = 0; i < n; i++) scratch->held[(indices[i] - base) / 64] |= (uint64_t)1 << (indices[i] - base) % 64;
}

/* Forgets and counts those of `n` indices that are held. */
static uint64_t count_held(struct zps_deliver_scratch *scratch, uint32_t n) {
  uint64_t n_held = 0;
  for (uint32_t w = 0; w <= (n - 1) / 64; w++) n_held += (unsigned)__builtin_popcountll(scratch->held[w]);
  memset(scratch->held, 0, ((n - 1) / 64 + 1) * sizeof *scratch->held);
  return n_held;
}

static void add_rows(struct zps_deliver_scratch *scratch, struct zps_index_cursor *cursor, uint32_t base,
                     uint32_t end) {
  enum { BATCH = ZPS_INDEX_CURSOR_ROOM };
  const struct zps_slice_view *const view = cursor->view;
  uint32_t room[BATCH], n;
  const zps_lent_index *indices;
  while ((n = zps_index_cursor_lend(cursor, end, room, &indices)) > 0) {
    for (uint32_t at = 0, here; at < n; at += here) {
      here = n - at < BATCH ? n - at : BATCH;
      zps_accumulate_rows(view->dtype, scratch->rows.data, scratch->slots, base, indices + at, here, view->width,
                          values_of(scratch, view, cursor->next - n + at, here));
    }
    hold(scratch, indices, n, base);
  }
}

static uint64_t deliver_rows(struct zps_deliver_scratch *scratch, const struct zps_deliver *deliver) {
  const struct zps_slice_view *const view = deliver->views;
  const uint64_t row_bytes = zps_row_bytes(view->width, view->dtype);
  const uint64_t out_bytes = zps_row_bytes(view->width, deliver->dtype);
  const uint32_t chunk = rows_of_chunk(row_bytes);
  struct zps_index_cursor *const cursors = scratch->cursors.data;
  uint64_t nnz = 0;
  for (uint32_t base = deliver->first, end; base < deliver->end; base = end) {
    end = deliver->end - base > chunk ? base + chunk : deliver->end;
    const uint64_t n_values = (uint64_t)(end - base) * view->width;
    memset(scratch->rows.data, 0, (end - base) * row_bytes);
    for (unsigned i = 0; i < deliver->n_views; i++) add_rows(scratch, &cursors[i], base, end);
    nnz += count_held(scratch, end - base);
    if (deliver->divisor != 1) zps_accumulate_divide(view->dtype, scratch->rows.data, n_values, deliver->divisor);
    if (out_bytes != row_bytes) zps_values_narrow(deliver->dtype, scratch->rows.data, n_values, scratch->rows.data);
    put(deliver, (char *)deliver->dense + base * out_bytes, scratch->rows.data, (end - base) * out_bytes);
  }
  return nnz;
}

/* ------------------------------------------------------------ any */

/* All rows of the only contribution, as they are. */
static bool is_copy(const struct zps_deliver *deliver) {
  const struct zps_slice_view *const view = deliver->views;
  return deliver->n_views == 1 && view->z == view->m && view->value_codec == zps_values_own(deliver->dtype) &&
         deliver->divisor == 1;
}

static uint64_t deliver_copy(const struct zps_deliver *deliver) {
  const struct zps_slice_view *const view = deliver->views;
  const uint64_t row_bytes = zps_row_bytes(view->width, deliver->dtype), n = deliver->end - deliver->first;
  const uint64_t at = deliver->first * row_bytes;
  if (n > 0) put(deliver, (char *)deliver->dense + at, (const char *)view->values + at, n * row_bytes);
  return n;
}

/* The rows of the only contribution, as they are, and zeros between. */
static uint64_t deliver_rounded(const struct zps_deliver *deliver) {
  enum { BATCH = ZPS_INDEX_CURSOR_ROOM };
  const struct zps_slice_view *const view = deliver->views;
  const uint64_t row_bytes = zps_row_bytes(view->width, deliver->dtype);
  const char *const values = view->values;
  char *const dense = deliver->dense;
  uint32_t indices[BATCH], next = deliver->first;
  uint64_t nnz = 0;
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, view);
  if (deliver->first > 0) zps_index_cursor_seek(&cursor, deliver->first);
  for (uint32_t n; (n = zps_index_cursor_read(&cursor, deliver->end, indices, BATCH)) > 0; nnz += n) {
    const char *from = values + (cursor.next - n) * row_bytes;
    for (uint32_t i = 0; i < n; i++, from += row_bytes) {
      if (indices[i] > next) memset(dense + next * row_bytes, 0, (indices[i] - next) * row_bytes);
      memcpy(dense + indices[i] * row_bytes, from, row_bytes);
      next = indices[i] + 1;
    }
  }
  if (deliver->end > next) memset(dense + next * row_bytes, 0, (deliver->end - next) * row_bytes);
  return nnz;
}

static zps_err_t sum(struct zps_deliver_scratch *scratch, const struct zps_deliver *deliver, uint64_t *nnz_p) {
  const struct zps_slice_view *const view = deliver->views;
  const bool singles = view->dtype == ZPS_DTYPE_F32 && view->width == 1;
  const uint64_t row_bytes = zps_row_bytes(view->width, view->dtype);
  zps_err_t code = need_cursors(scratch, deliver);
  if (code == ZPS_OK && singles && zps_dtype_is_half(deliver->dtype))
    code = zps_buffer_need(&scratch->floats, ZPS_SINGLES_CHUNK_MAX, sizeof(float));
  if (code == ZPS_OK) code = singles ? need_singles(scratch) : need_rows(scratch, row_bytes);
  if (code != ZPS_OK) return code;
  *nnz_p = singles ? deliver_singles(scratch, deliver) : deliver_rows(scratch, deliver);
  return ZPS_OK;
}

zps_err_t zps_deliver(struct zps_deliver_scratch *scratch, const struct zps_deliver *deliver, uint64_t *nnz_p) {
  zps_err_t code = ZPS_OK;
  if (is_copy(deliver))
    *nnz_p = deliver_copy(deliver);
  else if (deliver->is_rounded)
    *nnz_p = deliver_rounded(deliver);
  else
    code = sum(scratch, deliver, nnz_p);
#ifdef __SSE2__
  if (deliver->is_large) _mm_sfence(); /* before others are told that it is done */
#endif
  return code;
}
