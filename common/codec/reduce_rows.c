/*
 * Sums of rows of any kind. Each chunk is walked through twice: first the indices of all contributions are marked,
 * which tells the chunk's part of the result and each index's place in it; then the rows are added up right there.
 */
#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/bits.h"
#include "common/codec/reduce_impl.h"
#include "common/codec/simd/simd.h"

enum {
  CHUNK_ROWS_MAX = 32768,
  CHUNK_BYTES = 128 << 10, /* of sums, about: a part of the second-level cache, beside the bytes read */
  WIDENED_BYTES = 16 << 10,
};

/* The largest power of two of rows for which the sums, if the contributions had no index in common, are no more than
 * the chunk's bytes. */
static uint32_t chunk_rows_of(const struct zps_reduction *reduction) {
  const uint64_t m = reduction->end - reduction->first;
  uint32_t rows = 1;
  while (rows < CHUNK_ROWS_MAX &&
         (double)rows * 2 * (double)reduction->row_bytes * reduction->rows_max <= (double)CHUNK_BYTES * (double)m)
    rows *= 2;
  return rows;
}

zps_err_t zps_reduction_need_rows(struct zps_reduction *reduction) {
  struct zps_reduce_scratch *const scratch = reduction->scratch;
  reduction->chunk_rows = chunk_rows_of(reduction);
  reduction->rows_widened = WIDENED_BYTES > reduction->row_bytes ? (uint32_t)(WIDENED_BYTES / reduction->row_bytes) : 1;
  zps_err_t code = zps_buffer_need(&scratch->widened, reduction->rows_widened, reduction->row_bytes);
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->slots, CHUNK_ROWS_MAX, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->indices, CHUNK_ROWS_MAX + ZPS_SIMD_SLACK, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->ahead, reduction->n_views, sizeof(struct zps_index_cursor));
  if (code != ZPS_OK) return code;
  memcpy(scratch->ahead.data, reduction->cursors, reduction->n_views * sizeof *reduction->cursors);
  return ZPS_OK;
}

/* Sets n bits from bit `at` on. */
static void mark_run(uint64_t *marks, uint32_t at, uint32_t n) {
  while (n > 0) {
    const uint32_t bit = at % 64, here = n < 64 - bit ? n : 64 - bit;
    marks[at / 64] |= (UINT64_MAX >> (64 - here)) << bit;
    at += here;
    n -= here;
  }
}

static bool is_run(const zps_lent_index *indices, uint32_t n) {
  return indices[n - 1] - indices[0] == n - 1;
}

/* Sets bit index - first of every index that a contribution has below `end`. */
static void mark(const struct zps_reduction *reduction, uint32_t first, uint32_t end, uint64_t *marks) {
  struct zps_index_cursor *const cursors = reduction->scratch->ahead.data;
  uint32_t room[ZPS_INDEX_CURSOR_ROOM];
  const zps_lent_index *indices;
  for (unsigned i = 0; i < reduction->n_views; i++) {
    for (uint32_t n; (n = zps_index_cursor_lend(&cursors[i], end, room, &indices)) > 0;) {
      if (is_run(indices, n))
        mark_run(marks, indices[0] - first, n);
      else
        for (uint32_t j = 0; j < n; j++) marks[(indices[j] - first) / 64] |= (uint64_t)1 << indices[j] % 64;
    }
  }
}

uint32_t zps_reduction_count_rows(const struct zps_reduction *reduction) {
  struct zps_index_cursor *const cursors = reduction->scratch->ahead.data;
  uint64_t marks[CHUNK_ROWS_MAX / 64];
  uint32_t n = 0;
  for (uint32_t first; (first = zps_reduction_peek(cursors, reduction->n_views)) < reduction->end;) {
    first &= ~63u;
    const uint32_t left = reduction->end - first, n_indices = left < CHUNK_ROWS_MAX ? left : CHUNK_ROWS_MAX;
    memset(marks, 0, sizeof marks);
    mark(reduction, first, first + n_indices, marks);
    for (unsigned w = 0; w < CHUNK_ROWS_MAX / 64; w++) n += zps_bits_count(marks[w]);
  }
  return n;
}

static void add_some(const struct zps_reduction *reduction, const zps_lent_index *indices, uint32_t n, uint32_t base,
                     const void *values, char *sums) {
  const uint32_t *const slots = reduction->scratch->slots.data;
  const uint64_t row_bytes = reduction->row_bytes;
  if (reduction->op != ZPS_OP_SUM)
    for (uint32_t i = 0; i < n; i++)
      zps_accumulate_extreme(reduction->op, reduction->dtype, sums + slots[indices[i] - base] * row_bytes,
                             (const char *)values + i * row_bytes, reduction->width);
  else if (is_run(indices, n)) /* so is the result */
    zps_accumulate(reduction->dtype, sums + slots[indices[0] - base] * row_bytes, values,
                   (uint64_t)n * reduction->width);
  else
    zps_accumulate_rows(reduction->dtype, sums, slots, base, indices, n, reduction->width, values);
}

/* Adds all contributions' rows below `end`. */
static void add(const struct zps_reduction *reduction, uint32_t base, uint32_t end, char *sums) {
  uint32_t room[ZPS_INDEX_CURSOR_ROOM];
  const zps_lent_index *indices;
  for (unsigned i = 0; i < reduction->n_views; i++) {
    struct zps_index_cursor *const cursor = &reduction->cursors[i];
    const struct zps_slice_view *const view = cursor->view;
    const uint32_t step = view->value_codec == ZPS_VALUES_RAW ? UINT32_MAX : reduction->rows_widened;
    for (uint32_t n; (n = zps_index_cursor_lend(cursor, end, room, &indices)) > 0;) {
      const uint32_t first = cursor->next - n;
      for (uint32_t at = 0, here; at < n; at += here) {
        here = n - at < step ? n - at : step;
        add_some(reduction, indices + at, here, base, zps_reduction_values(reduction, view, first + at, here), sums);
      }
    }
    zps_reduction_prefetch_values(view, cursor->next, 1);
  }
}

/* Notes which indices the chunk's part of the result has. Chunks of wide rows may share a word of the bitmap. */
static void note(struct zps_reduction *reduction, uint32_t first, uint32_t end, const uint64_t *marks,
                 const uint32_t *indices, uint32_t n) {
  if (reduction->codec != ZPS_CODEC_BITMAP) {
    memcpy(reduction->index + reduction->z, indices, n * sizeof *indices);
    return;
  }
  zps_reduction_clear_index(reduction, (end - 1) / 32 + 1);
  for (uint32_t w = first / 32; w <= (end - 1) / 32; w++)
    reduction->index[w] |= (uint32_t)(marks[(w - first / 32) / 2] >> w % 2 * 32);
}

void zps_reduction_sum_rows(struct zps_reduction *reduction, uint32_t base, uint32_t end) {
  struct zps_reduce_scratch *const scratch = reduction->scratch;
  const uint32_t first = base & ~63u, n_words = (end - 1 - first) / 64 + 1;
  uint64_t marks[CHUNK_ROWS_MAX / 64];
  memset(marks, 0, n_words * sizeof *marks);
  mark(reduction, first, end, marks);
  uint32_t *const slots = scratch->slots.data, *const indices = scratch->indices.data;
  const uint32_t n = zps_simd()->list(marks, n_words, first, indices);
  for (uint32_t i = 0; i < n; i++) slots[indices[i] - base] = i;
  note(reduction, first, end, marks, indices, n);

  char *const sums = reduction->out + reduction->z * reduction->row_bytes;
  if (reduction->op == ZPS_OP_SUM)
    memset(sums, 0, n * reduction->row_bytes);
  else
    zps_accumulate_neutral(reduction->op, reduction->dtype, sums, (uint64_t)n * reduction->width);
  add(reduction, base, end, sums);
  if (reduction->divisor != 1)
    zps_accumulate_divide(reduction->dtype, sums, (uint64_t)n * reduction->width, reduction->divisor);
  reduction->z += n;
}
