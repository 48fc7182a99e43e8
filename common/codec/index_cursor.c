/* From a checked slice to its indices, batch by batch. */
#include <string.h>

#include "common/codec/bits.h"
#include "common/codec/codec.h"
#include "common/codec/codec_impl.h"
#include "common/codec/simd/simd.h"

void zps_index_cursor_init(struct zps_index_cursor *cursor, const struct zps_slice_view *view) {
  *cursor = (struct zps_index_cursor){.view = view};
  if (view->codec == ZPS_CODEC_BITMAP && view->m > 0) cursor->bits = zps_load_u32(view->index, 0);
  if (view->codec == ZPS_CODEC_RICE)
    zps_rice_reader_init(&cursor->reader, view->m, view->z, view->index, view->index_bytes);
  if (view->codec == ZPS_CODEC_HOLES)
    zps_rice_reader_init(&cursor->reader, view->m, view->m - view->z, view->index, view->index_bytes);
}

/* Sees to it that the block holds a number, if any is left. */
static bool fill_block(struct zps_index_cursor *cursor) {
  if (cursor->block_at < cursor->block_len) return true;
  cursor->block_at = 0;
  cursor->block_len = zps_rice_read(&cursor->reader, cursor->block);
  return cursor->block_len > 0;
}

/* HOLES: the first hole that has not been passed, or m. */
static uint32_t next_hole(struct zps_index_cursor *cursor) {
  return fill_block(cursor) ? cursor->block[cursor->block_at] : cursor->view->m;
}

/* HOLES: passes the holes at the next index's place; the caller knows that there is one. */
static uint32_t skip_holes(struct zps_index_cursor *cursor) {
  uint32_t hole;
  while ((hole = next_hole(cursor)) == cursor->index) {
    cursor->block_at++;
    cursor->index++;
  }
  return hole;
}

/* Moves on to the next word with a bit; the caller knows that there is one. */
static void skip_empty_words(struct zps_index_cursor *cursor) {
  while (cursor->bits == 0) cursor->bits = zps_load_u32(cursor->view->index, ++cursor->word);
}

uint32_t zps_index_cursor_peek(struct zps_index_cursor *cursor) {
  const struct zps_slice_view *const view = cursor->view;
  if (cursor->next == view->z) return UINT32_MAX;
  switch (view->codec) {
    case ZPS_CODEC_RICE:
      return fill_block(cursor) ? cursor->block[cursor->block_at] : UINT32_MAX;
    case ZPS_CODEC_HOLES:
      skip_holes(cursor);
      return cursor->index;
    case ZPS_CODEC_BITMAP:
      skip_empty_words(cursor);
      return cursor->word * 32 + (uint32_t)__builtin_ctz(cursor->bits);
    default:
      return zps_load_u32(view->index, cursor->next);
  }
}

/* How many of the n > 0 ascending indices are below the limit. Without branches: where the limit falls cannot be
 * foreseen, but that mostly none is beyond it. */
static uint32_t count_below(const zps_lent_index *indices, uint32_t n, uint32_t limit) {
  if (indices[n - 1] < limit) return n;
  const zps_lent_index *at = indices;
  for (uint32_t half; n > 1; n -= half) {
    half = n / 2;
    at += half & -(uint32_t)(at[half - 1] < limit);
  }
  return (uint32_t)(at - indices) + (*at < limit);
}

static uint32_t read_coo(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *indices, uint32_t cap) {
  memcpy(indices, (const char *)cursor->view->index + 4 * (uint64_t)cursor->next, 4 * (uint64_t)cap);
  return count_below(indices, cap, limit);
}

/* As many whole words, two at a time, as lie below the limit and have room for all that they may hold. */
static uint32_t list_words(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *indices, uint32_t cap) {
  enum { MOST = 64 };
  const struct zps_slice_view *const view = cursor->view;
  uint64_t bits[MOST];
  uint32_t n = 0;
  if (limit > view->m) limit = view->m;
  while (cursor->next + n < view->z) {
    const uint32_t first = cursor->word * 32;
    if (first >= limit || cap - n < ZPS_SIMD_SLACK) break;
    const uint32_t room = (cap - n - ZPS_SIMD_SLACK) / 64;
    uint32_t n_pairs = (limit - first) / 64 < room ? (limit - first) / 64 : room;
    if (n_pairs > MOST) n_pairs = MOST;
    if (n_pairs == 0) break;
    memcpy(bits, (const char *)view->index + 4 * (uint64_t)cursor->word, n_pairs * sizeof *bits);
    bits[0] = (bits[0] >> 32 << 32) | cursor->bits; /* the first word may be partly read */
    n += zps_simd()->list(bits, n_pairs, first, indices + n);
    cursor->word += 2 * n_pairs;
    cursor->bits = cursor->word < zps_bitmap_words(view->m) ? zps_load_u32(view->index, cursor->word) : 0;
  }
  return n;
}

static uint32_t read_bitmap(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *indices, uint32_t cap) {
  uint32_t n = list_words(cursor, limit, indices, cap);
  if (cursor->next + n == cursor->view->z) return n;
  while (n < cap) {
    skip_empty_words(cursor);
    const uint32_t base = cursor->word * 32;
    if (base >= limit) break;
    uint32_t bits = cursor->bits;
    if (limit - base < 32) bits &= (1u << (limit - base)) - 1;
    const uint32_t beyond = cursor->bits ^ bits;
    for (; bits && n < cap; bits &= bits - 1) indices[n++] = base + (uint32_t)__builtin_ctz(bits);
    cursor->bits = bits | beyond;
    if (beyond) break;
  }
  return n;
}

static uint32_t read_rice(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *indices, uint32_t cap) {
  uint32_t n = 0;
  while (n < cap && fill_block(cursor)) {
    const uint32_t *const block = cursor->block + cursor->block_at;
    const uint32_t left = cursor->block_len - cursor->block_at, room = cap - n;
    const uint32_t below = count_below(block, left < room ? left : room, limit);
    memcpy(indices + n, block, below * sizeof *indices);
    n += below;
    cursor->block_at += below;
    if (below < left) break; /* no room, or the limit */
  }
  return n;
}

static uint32_t read_holes(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *indices, uint32_t cap) {
  uint32_t n = 0;
  while (n < cap) {
    const uint32_t hole = skip_holes(cursor);
    if (cursor->index >= limit) break;
    uint32_t run = (hole < limit ? hole : limit) - cursor->index;
    if (run > cap - n) run = cap - n;
    for (uint32_t i = 0; i < run; i++) indices[n + i] = cursor->index + i;
    n += run;
    cursor->index += run;
  }
  return n;
}

uint32_t zps_index_cursor_read(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *indices, uint32_t cap) {
  static uint32_t (*const reads[])(struct zps_index_cursor *, uint32_t, uint32_t *, uint32_t) = {
      [ZPS_CODEC_COO] = read_coo,
      [ZPS_CODEC_BITMAP] = read_bitmap,
      [ZPS_CODEC_RICE] = read_rice,
      [ZPS_CODEC_HOLES] = read_holes};
  const struct zps_slice_view *const view = cursor->view;
  if (cap > view->z - cursor->next) cap = view->z - cursor->next;
  if (cap == 0) return 0;
  const uint32_t n = reads[view->codec](cursor, limit, indices, cap);
  cursor->next += n;
  return n;
}

/* How many of `n` ascending indices, which go on far beyond, are below the limit: about `guess`, which is right so
 * often that where exactly is found without a branch. */
static uint32_t count_near(const zps_lent_index *indices, uint32_t n, uint32_t limit, uint32_t guess) {
  enum { WINDOW = ZPS_SIMD_WINDOW, LEAP = 64, STEP = 16 };
  uint32_t below = 0;
  if (n < WINDOW) return count_below(indices, n, limit);
  uint32_t first = guess > WINDOW / 2 ? guess - WINDOW / 2 : 0;
  if (first > n - WINDOW) first = n - WINDOW;
  if (first == 0 || indices[first - 1] < limit) {
    if (indices[first + WINDOW - 1] >= limit) return first + zps_simd()->count_below(indices + first, limit);
    below = first + WINDOW;
  }
  while (n - below >= LEAP && indices[below + LEAP - 1] < limit) below += LEAP;
  while (n - below >= STEP && indices[below + STEP - 1] < limit) below += STEP;
  while (below < n && indices[below] < limit) below++;
  return below;
}

uint32_t zps_index_cursor_offer(struct zps_index_cursor *cursor, uint32_t limit, const zps_lent_index **indices_p) {
  const uint32_t left = cursor->view->z - cursor->next;
  if (left == 0) return 0;
  if (cursor->view->codec == ZPS_CODEC_COO) {
    *indices_p = (const zps_lent_index *)cursor->view->index + cursor->next;
  } else if (cursor->view->codec == ZPS_CODEC_RICE && fill_block(cursor)) {
    *indices_p = cursor->block + cursor->block_at;
    return **indices_p < limit ? cursor->block_len - cursor->block_at : 0;
  } else {
    return 0;
  }
  return **indices_p < limit ? left : 0;
}

void zps_index_cursor_pass(struct zps_index_cursor *cursor, uint32_t n) {
  cursor->next += n;
  cursor->block_at += n;
}

static uint32_t lend_coo(struct zps_index_cursor *cursor, uint32_t limit, const zps_lent_index **indices_p) {
  const zps_lent_index *const indices = (const zps_lent_index *)cursor->view->index + cursor->next;
  if (indices[0] >= limit) return 0;
  const uint32_t n = count_near(indices, cursor->view->z - cursor->next, limit, cursor->guess);
  cursor->guess = (cursor->guess + n) / 2;
  *indices_p = indices;
  return n;
}

/* Reads further blocks, until one reaches the limit or there is no room. */
static void fill_to(struct zps_index_cursor *cursor, uint32_t limit) {
  enum { ROOM = sizeof cursor->block / sizeof cursor->block[0] };
  uint32_t *const block = cursor->block, left = cursor->block_len - cursor->block_at, n;
  if (left == 0) cursor->block_at = cursor->block_len = 0;
  while (cursor->block_len == 0 || block[cursor->block_len - 1] < limit) {
    if (cursor->block_len + ZPS_RICE_BLOCK > ROOM) {
      if (left > ZPS_RICE_BLOCK || cursor->block_at < ZPS_RICE_BLOCK) return;
      memcpy(block, block + cursor->block_at, left * sizeof *block);
      cursor->block_at = 0;
      cursor->block_len = left;
    }
    if ((n = zps_rice_read(&cursor->reader, block + cursor->block_len)) == 0) return;
    cursor->block_len += n;
    left += n;
  }
}

static uint32_t lend_rice(struct zps_index_cursor *cursor, uint32_t limit, const zps_lent_index **indices_p) {
  const uint32_t at = cursor->block_at;
  if (at < cursor->block_len && cursor->block[at] >= limit) return 0;
  fill_to(cursor, limit);
  if (cursor->block_len == 0) return 0;
  const uint32_t below = count_near(cursor->block, cursor->block_len, limit, cursor->block_len);
  const uint32_t n = below - cursor->block_at;
  *indices_p = cursor->block + cursor->block_at;
  cursor->block_at = below;
  return n;
}

uint32_t zps_index_cursor_lend(struct zps_index_cursor *cursor, uint32_t limit, uint32_t *room,
                               const zps_lent_index **indices_p) {
  if (cursor->next == cursor->view->z) return 0;
  uint32_t n;
  switch (cursor->view->codec) {
    case ZPS_CODEC_COO:
      n = lend_coo(cursor, limit, indices_p);
      break;
    case ZPS_CODEC_RICE:
      n = lend_rice(cursor, limit, indices_p);
      break;
    default:
      *indices_p = room;
      return zps_index_cursor_read(cursor, limit, room, ZPS_INDEX_CURSOR_ROOM);
  }
  cursor->next += n;
  return n;
}

/* The bits of words `first_word` on, zeros beyond the partition. */
static void bits_of_bitmap(struct zps_index_cursor *cursor, uint32_t first, uint32_t n_words, uint64_t *bits) {
  const uint32_t all = zps_bitmap_words(cursor->view->m), at = first / 32;
  const uint32_t n = all - at < 2 * n_words ? all - at : 2 * n_words;
  if (n % 2 != 0) bits[n / 2] = 0; /* half of it comes */
  memcpy(bits, (const char *)cursor->view->index + 4 * (uint64_t)at, 4 * (uint64_t)n);
  for (uint32_t w = (n + 1) / 2; w < n_words; w++) bits[w] = 0;
  cursor->word = at + n;
  cursor->bits = cursor->word < all ? zps_load_u32(cursor->view->index, cursor->word) : 0;
}

/* Sets the bits from `from` up to `to`, clears the others. */
static void set_bits(uint64_t *bits, uint32_t n_words, uint32_t from, uint32_t to) {
  for (uint32_t w = 0; w < n_words; w++) {
    const uint64_t at = (uint64_t)w * 64;
    const uint64_t below_from = from <= at ? 0 : from - at < 64 ? ((uint64_t)1 << (from - at)) - 1 : UINT64_MAX;
    const uint64_t below_to = to <= at ? 0 : to - at < 64 ? ((uint64_t)1 << (to - at)) - 1 : UINT64_MAX;
    bits[w] = below_to & ~below_from;
  }
}

static void bits_of_holes(struct zps_index_cursor *cursor, uint32_t first, uint32_t n_words, uint64_t *bits) {
  const uint32_t left = cursor->view->m - first, n = left / 64 < n_words ? left : n_words * 64;
  while (next_hole(cursor) < first) cursor->block_at++;
  /* holes below cursor->index have been passed */
  set_bits(bits, n_words, cursor->index > first ? cursor->index - first : 0, n);
  for (uint32_t hole; (hole = next_hole(cursor)) - first < n; cursor->block_at++)
    bits[(hole - first) / 64] &= ~((uint64_t)1 << (hole - first) % 64);
  if (cursor->index < first + n) cursor->index = first + n;
}

uint32_t zps_index_cursor_bits(struct zps_index_cursor *cursor, uint32_t first, uint32_t n_words, uint64_t *bits) {
  if (cursor->next == cursor->view->z) {
    memset(bits, 0, n_words * sizeof *bits);
    return 0;
  }
  (cursor->view->codec == ZPS_CODEC_HOLES ? bits_of_holes : bits_of_bitmap)(cursor, first, n_words, bits);
  uint32_t n = 0;
  for (uint32_t w = 0; w < n_words; w++) n += zps_bits_count(bits[w]);
  cursor->next += n;
  return n;
}

/* Looks first where the limit would be if the indices lay evenly, then about twice as far away each time: halving all
 * of them would touch a cold line each time. */
static void seek_coo(struct zps_index_cursor *cursor, uint32_t limit) {
  enum { NEAR = 256 };
  const struct zps_slice_view *const view = cursor->view;
  const zps_lent_index *const indices = (const zps_lent_index *)view->index + cursor->next;
  const uint32_t n = view->z - cursor->next;
  if (indices[0] >= limit) return;
  const uint64_t below = limit - indices[0], all = view->m - indices[0];
  uint64_t step = NEAR;
  uint32_t first = (uint32_t)(n * below / all), end;
  if (first == n) first--;
  if (indices[first] < limit) {
    for (;; step *= 2, first = end - 1) {
      end = n - first > step ? first + (uint32_t)step : n;
      if (end == n || indices[end - 1] >= limit) break;
    }
  } else {
    for (;; step *= 2) {
      end = first + 1;
      first = first > step ? first - (uint32_t)step : 0;
      if (indices[first] < limit) break;
    }
  }
  cursor->next += first + count_below(indices + first, end - first, limit);
}

/* Goes on at the last marked word that is not beyond the limit's, where it is ahead. */
static void leap_words(struct zps_index_cursor *cursor, uint32_t limit) {
  const struct zps_bitmap_marks *const marks = &cursor->view->bitmap_marks;
  if (marks->n == 0) return;
  const uint32_t at = limit / 32 / marks->step, i = at < marks->n ? at : marks->n - 1;
  if (i * marks->step <= cursor->word) return;
  cursor->word = i * marks->step;
  cursor->next = marks->before[i];
  cursor->bits = zps_load_u32(cursor->view->index, cursor->word);
}

static void seek_bitmap(struct zps_index_cursor *cursor, uint32_t limit) {
  leap_words(cursor, limit);
  for (; cursor->word < limit / 32; cursor->bits = zps_load_u32(cursor->view->index, cursor->word)) {
    cursor->next += zps_bits_count(cursor->bits);
    if (cursor->next == cursor->view->z) return; /* there may be no further word */
    cursor->word++;
  }
  if (cursor->word > limit / 32) return;
  const uint32_t below = cursor->bits & ((1u << limit % 32) - 1);
  cursor->next += zps_bits_count(below);
  cursor->bits ^= below;
}

/* Passes the numbers of the code that are below the limit. */
static void seek_numbers(struct zps_index_cursor *cursor, uint32_t limit) {
  for (;;) {
    const uint32_t left = cursor->block_len - cursor->block_at;
    const uint32_t below = left ? count_below(cursor->block + cursor->block_at, left, limit) : 0;
    cursor->block_at += below;
    if (below < left) return;
    zps_rice_skip_below(&cursor->reader, &cursor->view->marks, limit);
    if (!fill_block(cursor)) return;
  }
}

void zps_index_cursor_seek(struct zps_index_cursor *cursor, uint32_t limit) {
  const struct zps_slice_view *const view = cursor->view;
  if (cursor->next == view->z) return;
  switch (view->codec) {
    case ZPS_CODEC_RICE:
      seek_numbers(cursor, limit);
      cursor->next = view->z - cursor->reader.left - (cursor->block_len - cursor->block_at);
      break;
    case ZPS_CODEC_HOLES:
      if (cursor->index >= limit) break;
      seek_numbers(cursor, limit);
      cursor->index = limit;
      cursor->next = limit - (view->m - view->z - cursor->reader.left - (cursor->block_len - cursor->block_at));
      break;
    case ZPS_CODEC_BITMAP:
      seek_bitmap(cursor, limit);
      break;
    default:
      seek_coo(cursor, limit);
  }
}
