#include "common/codec/singles.h"

#include "common/codec/reduce_impl.h"
#include "common/codec/simd/simd.h"

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
