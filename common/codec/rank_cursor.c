/* From a checked slice to its ranks, batch by batch. */
#include <string.h>

#include "common/codec/bits.h"
#include "common/codec/codec.h"
#include "common/codec/codec_impl.h"

void zps_rank_cursor_init(struct zps_rank_cursor *cursor, const struct zps_slice_view *view) {
  *cursor = (struct zps_rank_cursor){.view = view};
  if (view->codec == ZPS_CODEC_BITMAP && view->m > 0) cursor->bits = zps_load_u32(view->index, 0);
  if (view->codec == ZPS_CODEC_RICE)
    zps_rice_reader_init(&cursor->reader, view->m, view->z, view->index, view->index_bytes);
  if (view->codec == ZPS_CODEC_HOLES)
    zps_rice_reader_init(&cursor->reader, view->m, view->m - view->z, view->index, view->index_bytes);
}

/* Sees to it that the block holds a number, if any is left. */
static bool fill_block(struct zps_rank_cursor *cursor) {
  if (cursor->block_at < cursor->block_len) return true;
  cursor->block_at = 0;
  cursor->block_len = zps_rice_read(&cursor->reader, cursor->block);
  return cursor->block_len > 0;
}

/* HOLES: the first hole that has not been passed, or m. */
static uint32_t next_hole(struct zps_rank_cursor *cursor) {
  return fill_block(cursor) ? cursor->block[cursor->block_at] : cursor->view->m;
}

/* HOLES: passes the holes at the next rank's place; the caller knows that there is one. */
static uint32_t skip_holes(struct zps_rank_cursor *cursor) {
  uint32_t hole;
  while ((hole = next_hole(cursor)) == cursor->rank) {
    cursor->block_at++;
    cursor->rank++;
  }
  return hole;
}

/* Moves on to the next word with a bit; the caller knows that there is one. */
static void skip_empty_words(struct zps_rank_cursor *cursor) {
  while (cursor->bits == 0) cursor->bits = zps_load_u32(cursor->view->index, ++cursor->word);
}

uint32_t zps_rank_cursor_peek(struct zps_rank_cursor *cursor) {
  const struct zps_slice_view *const view = cursor->view;
  if (cursor->next == view->z) return UINT32_MAX;
  switch (view->codec) {
    case ZPS_CODEC_RICE:
      return fill_block(cursor) ? cursor->block[cursor->block_at] : UINT32_MAX;
    case ZPS_CODEC_HOLES:
      skip_holes(cursor);
      return cursor->rank;
    case ZPS_CODEC_BITMAP:
      skip_empty_words(cursor);
      return cursor->word * 32 + (uint32_t)__builtin_ctz(cursor->bits);
    default:
      return zps_load_u32(view->index, cursor->next);
  }
}

/* How many of the n > 0 ascending ranks are below the limit. */
static uint32_t count_below(const uint32_t *ranks, uint32_t n, uint32_t limit) {
  uint32_t low = ranks[n - 1] < limit ? n : 0, high = n;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (ranks[middle] < limit)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static uint32_t read_coo(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  memcpy(ranks, (const char *)cursor->view->index + 4 * (uint64_t)cursor->next, 4 * (uint64_t)cap);
  return count_below(ranks, cap, limit);
}

static uint32_t read_bitmap(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  uint32_t n = 0;
  /* whole words, while there is room for all that they may hold; a next word exists as long as ranks are left */
  while (cap - n >= 32) {
    skip_empty_words(cursor);
    if (cursor->word * 32 >= limit || limit - cursor->word * 32 < 32) break;
    n += zps_bits_list(cursor->bits, cursor->word * 32, ranks + n);
    cursor->bits = 0;
    if (cursor->next + n == cursor->view->z) return n;
    cursor->bits = zps_load_u32(cursor->view->index, ++cursor->word);
  }
  while (n < cap) {
    skip_empty_words(cursor);
    const uint32_t base = cursor->word * 32;
    if (base >= limit) break;
    uint32_t bits = cursor->bits;
    if (limit - base < 32) bits &= (1u << (limit - base)) - 1;
    const uint32_t beyond = cursor->bits ^ bits;
    for (; bits && n < cap; bits &= bits - 1) ranks[n++] = base + (uint32_t)__builtin_ctz(bits);
    cursor->bits = bits | beyond;
    if (beyond) break;
  }
  return n;
}

static uint32_t read_rice(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  uint32_t n = 0;
  while (n < cap && fill_block(cursor)) {
    const uint32_t *const block = cursor->block + cursor->block_at;
    const uint32_t left = cursor->block_len - cursor->block_at, room = cap - n;
    const uint32_t below = count_below(block, left < room ? left : room, limit);
    memcpy(ranks + n, block, below * sizeof *ranks);
    n += below;
    cursor->block_at += below;
    if (below < left) break; /* no room, or the limit */
  }
  return n;
}

static uint32_t read_holes(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  uint32_t n = 0;
  while (n < cap) {
    const uint32_t hole = skip_holes(cursor);
    if (cursor->rank >= limit) break;
    uint32_t run = (hole < limit ? hole : limit) - cursor->rank;
    if (run > cap - n) run = cap - n;
    for (uint32_t i = 0; i < run; i++) ranks[n + i] = cursor->rank + i;
    n += run;
    cursor->rank += run;
  }
  return n;
}

uint32_t zps_rank_cursor_read(struct zps_rank_cursor *cursor, uint32_t limit, uint32_t *ranks, uint32_t cap) {
  static uint32_t (*const reads[])(struct zps_rank_cursor *, uint32_t, uint32_t *, uint32_t) = {
      [ZPS_CODEC_COO] = read_coo,
      [ZPS_CODEC_BITMAP] = read_bitmap,
      [ZPS_CODEC_RICE] = read_rice,
      [ZPS_CODEC_HOLES] = read_holes};
  const struct zps_slice_view *const view = cursor->view;
  if (cap > view->z - cursor->next) cap = view->z - cursor->next;
  if (cap == 0) return 0;
  const uint32_t n = reads[view->codec](cursor, limit, ranks, cap);
  cursor->next += n;
  return n;
}
