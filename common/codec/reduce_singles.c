/*
 * Sums of single floats. An accumulator that nothing was added to is -0.0, which no sum that started at +0.0 can be: so
 * adding needs no second store to note the touched ones, and taking looks at the accumulators in order.
 */
#include <string.h>

#include "common/codec/reduce_impl.h"
#include "common/codec/simd/simd.h"
#include "common/codec/singles.h"

enum { LINE_BYTES = 64, CHUNK_ROWS_MAX = ZPS_SINGLES_CHUNK_MAX };

/* From a cache line's begin on: vectors that lie across two cost twice. */
static float *accumulators(const struct zps_reduction *reduction) {
  return (float *)(((uintptr_t)reduction->scratch->singles.data + LINE_BYTES - 1) & ~(uintptr_t)(LINE_BYTES - 1));
}

zps_err_t zps_reduction_need_singles(struct zps_reduction *reduction) {
  struct zps_reduce_scratch *const scratch = reduction->scratch;
  reduction->chunk_rows = zps_singles_chunk(reduction->views, reduction->n_views);
  if (scratch->singles.data) return ZPS_OK;
  zps_err_t code = zps_buffer_need(&scratch->widened, CHUNK_ROWS_MAX, sizeof(float));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->taken, CHUNK_ROWS_MAX + ZPS_SIMD_SLACK, sizeof(float));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->singles, CHUNK_ROWS_MAX * sizeof(float) + LINE_BYTES, 1);
  if (code != ZPS_OK) return code;
  for (uint32_t i = 0; i < CHUNK_ROWS_MAX; i++) accumulators(reduction)[i] = -0.0f;
  return ZPS_OK;
}

static void take(struct zps_reduction *reduction, uint32_t base, uint32_t end) {
  const uint32_t n_words = (end - 1 - base) / 64 + 1;
  struct zps_reduce_scratch *const scratch = reduction->scratch;
  uint64_t room[CHUNK_ROWS_MAX / 64], *bits = room;
  if (reduction->codec == ZPS_CODEC_BITMAP) {
    zps_reduction_clear_index(reduction, base / 32);
    bits = (uint64_t *)(void *)(reduction->index + base / 32);
    reduction->index_words = (end - 1) / 32 + 1;
  }
  float *const out = (float *)reduction->out + reduction->z;
  const bool has_room = reduction->rows_max - reduction->z >= reduction->chunk_rows + ZPS_SIMD_SLACK;
  float *const taken = has_room ? out : scratch->taken.data;
  const uint32_t n = zps_simd()->take(accumulators(reduction), n_words, taken, bits);
  if (reduction->divisor != 1) {
    const float factor = 1.0f / (float)reduction->divisor;
    for (uint32_t i = 0; i < n; i++) taken[i] *= factor;
  }
  if (!has_room) memcpy(out, taken, n * sizeof *out);
  zps_reduction_prefetch_result(out + n, n * sizeof *out);
  if (reduction->codec != ZPS_CODEC_BITMAP) zps_simd()->list(bits, n_words, base, reduction->index + reduction->z);
  reduction->z += n;
}

void zps_reduction_add_singles(const struct zps_reduction *reduction, uint32_t base, uint32_t end) {
  for (unsigned i = 0; i < reduction->n_views; i++)
    zps_singles_add(&reduction->cursors[i], base, end, accumulators(reduction), reduction->scratch->widened.data);
}

void zps_reduction_sum_singles(struct zps_reduction *reduction, uint32_t base, uint32_t end) {
  zps_reduction_add_singles(reduction, base, end);
  take(reduction, base, end);
}

/* ------------------------------------------------------------ a chunk of one contribution */

enum {
  CHUNK_MIN = 8192,
  ADDED_MIN = 128, /* of a contribution: larger chunks where there would be fewer, to have fewer beginnings */
};

typedef float any_float __attribute__((aligned(1), may_alias));

uint32_t zps_singles_chunk(const struct zps_slice_view *views, unsigned n_views) {
  uint64_t added = 0; /* of all contributions to the smallest chunk */
  uint32_t n = CHUNK_MIN;
  for (unsigned i = 0; i < n_views; i++) added += views[i].z;
  added = views->m > 0 ? added * CHUNK_MIN / views->m : 0;
  for (; n < ZPS_SINGLES_CHUNK_MAX && added < (uint64_t)ADDED_MIN * n_views; added *= 2) n *= 2;
  return n;
}

static void add_lists(struct zps_index_cursor *cursor, uint32_t base, uint32_t end, float *sums, void *widened) {
  const struct zps_slice_view *const view = cursor->view;
  const struct zps_simd *const simd = zps_simd();
  uint32_t room[ZPS_INDEX_CURSOR_ROOM], n;
  const zps_lent_index *indices;
  if (view->value_codec == ZPS_VALUES_RAW)
    for (; (n = zps_index_cursor_offer(cursor, end, &indices)) > 0; zps_index_cursor_pass(cursor, n))
      n = simd->add_below(sums, base, end, indices, n, (const any_float *)view->values + cursor->next);
  else
    while ((n = zps_index_cursor_lend(cursor, end, room, &indices)) > 0)
      simd->add_below(sums, base, end, indices, n, zps_slice_values(view, cursor->next - n, n, widened));
}

static void add_bits(struct zps_index_cursor *cursor, uint32_t base, uint32_t n_words, float *sums, void *widened) {
  uint64_t bits[ZPS_SINGLES_CHUNK_MAX / 64];
  const uint32_t before = cursor->next, n = zps_index_cursor_bits(cursor, base, n_words, bits);
  zps_simd()->add(sums, bits, n_words, zps_slice_values(cursor->view, before, n, widened), n);
  zps_reduction_prefetch_values(cursor->view, cursor->next, n);
}

void zps_singles_add(struct zps_index_cursor *cursor, uint32_t base, uint32_t end, float *sums, void *widened) {
  const enum zps_codec codec = cursor->view->codec;
  if (codec == ZPS_CODEC_BITMAP || codec == ZPS_CODEC_HOLES)
    add_bits(cursor, base, (end - 1 - base) / 64 + 1, sums, widened);
  else
    add_lists(cursor, base, end, sums, widened);
}
