/*
 * All partitions' rows in ascending order. Rows are taken window by window: the same few indices of every partition,
 * whose rows are consecutive ones in some order, are put where they belong in a window that stays in cache, and listed
 * from there. Of a tensor of several stripes, a window is whole chunks, in which their stripes' partitions alone have
 * rows. Windows are independent of each other once all indices are known. Few rows in many are sorted: less work
 * than to look through windows that are nearly empty.
 */
#include <stdatomic.h>
#include <string.h>

#include "common/base/bisect.h"
#include "common/codec/decode.h"
#include "common/codec/locate.h"
#include "common/codec/sort.h"

enum {
  BATCH = 512,
  WINDOW_ROWS_MIN = 16384, /* about: slots of 4 or 8 bytes that fit the second-level cache beside the bytes read */
  WINDOW_ROWS_MAX = 262144,
  WINDOW_FOUND_MIN = 2048,  /* larger windows where there would be fewer rows, to have fewer beginnings */
  ROWS_PER_FOUND_MAX = 512, /* tensor's rows for each that is found */
  SPANS_PER_THREAD = 8,
  THREADS_MAX = 64,
  FOUND_PER_THREAD_MIN = 8192, /* with fewer rows one thread is done before another has begun */
};

_Static_assert(WINDOW_ROWS_MAX % (1 << ZPS_PARTITION_CHUNK_BITS) == 0, "windows are whole chunks");

struct merge {
  const struct zps_partition *part;
  const struct zps_slice_view *views;
  uint64_t row_bytes;
  int64_t *rows;
  char *values;
  uint64_t *starts;  /* [n_parts]: where a partition's indices begin */
  uint32_t *indices; /* of all partitions, with ZPS_SIMD_SLACK behind each */
  uint64_t window_rows;
  uint32_t window_indices; /* of each partition; of several stripes, or hashed: those in the window's rows */
  uint64_t n_windows;
  unsigned n_spans;
  atomic_uint next_span;
  char *scratch; /* of each thread, scratch_bytes */
  uint64_t scratch_bytes;
};

/* The state of one thread: a window, and how far it has come in each partition. */
struct span {
  void *slots; /* slot_bytes() each */
  uint64_t *bits;
  uint32_t *listed, *places;
};

/* Single floats take half of the cache. */
static uint64_t slot_bytes(const struct merge *merge) {
  return merge->row_bytes == sizeof(uint32_t) ? sizeof(uint32_t) : sizeof(uint64_t);
}

/* A window's bits take so many. A small tensor does not fill its window. */
static uint32_t words_of(const struct merge *merge) {
  const uint64_t rows = merge->window_rows < merge->part->rows ? merge->window_rows : merge->part->rows;
  return (uint32_t)((rows + 63) / 64);
}

static void list_indices(void *ctx, unsigned p) {
  const struct merge *const merge = ctx;
  const struct zps_slice_view *const view = &merge->views[p];
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, view);
  uint32_t *const indices = merge->indices + merge->starts[p];
  while (zps_index_cursor_read(&cursor, view->m, indices + cursor.next, view->z - cursor.next) > 0) {
  }
  memset(indices + view->z, 0, ZPS_SIMD_SLACK * sizeof *indices);
}

/* The first place from `at` on, of `z`, whose index is not below the limit. */
static uint32_t find(const uint32_t *indices, uint32_t at, uint32_t z, uint64_t limit) {
  uint32_t step = 1;
  while (z - at > step && indices[at + step] < limit) step *= 2;
  uint32_t low = at, high = z - at > step ? at + step : z;
  zps_bisect(low, high, middle, indices[middle] < limit);
  return low;
}

/* Puts values, or (row_bytes > 8) where these are, to slots. */
static inline __attribute__((always_inline)) void put(const uint64_t *rows, uint32_t n, uint64_t first_row,
                                                      const char *values, uint64_t where, uint64_t row_bytes,
                                                      const struct span *span) {
  for (uint32_t i = 0; i < n; i++) {
    const uint64_t slot = rows[i] - first_row;
    span->bits[slot / 64] |= (uint64_t)1 << slot % 64;
    if (row_bytes == sizeof(uint32_t))
      memcpy((uint32_t *)span->slots + slot, values + i * row_bytes, row_bytes);
    else if (row_bytes <= sizeof(uint64_t))
      memcpy((uint64_t *)span->slots + slot, values + i * row_bytes, row_bytes);
    else
      ((uint64_t *)span->slots)[slot] = where + i;
  }
}

/* The partition's rows whose indices are below the limit; how many. */
static uint32_t fill(const struct merge *merge, uint32_t p, uint64_t limit, uint64_t first_row,
                     const struct span *span) {
  const struct zps_slice_view *const view = &merge->views[p];
  const uint32_t *const indices = merge->indices + merge->starts[p];
  const uint32_t first = span->places[p], end = find(indices, first, view->z, limit);
  uint64_t rows[BATCH + ZPS_SIMD_SLACK];
  double room[BATCH];
  for (uint32_t at = first, n; at < end; at += n) {
    n = end - at < BATCH ? end - at : BATCH;
    zps_partition_rows_of(merge->part, p, indices + at, n, rows);
    const char *const values = merge->row_bytes <= sizeof *room ? zps_slice_values(view, at, n, room) : NULL;
    if (merge->row_bytes == 4)
      put(rows, n, first_row, values, 0, 4, span);
    else if (merge->row_bytes <= sizeof *room)
      put(rows, n, first_row, values, 0, merge->row_bytes, span);
    else
      put(rows, n, first_row, NULL, (uint64_t)p << 32 | at, merge->row_bytes, span);
  }
  span->places[p] = end;
  return end - first;
}

/* Copies the rows that are listed. */
static void copy(const struct merge *merge, const struct span *span, uint32_t n, uint64_t first_row, uint64_t place) {
  const uint64_t row_bytes = merge->row_bytes, *const slots = span->slots;
  const uint32_t *const listed = span->listed;
  int64_t *const rows = merge->rows + place;
  char *values = merge->values + place * row_bytes;
  for (uint32_t i = 0; i < n; i++) rows[i] = (int64_t)(first_row + listed[i]);
  if (row_bytes == sizeof(uint32_t)) {
    for (uint32_t i = 0; i < n; i++, values += 4) memcpy(values, (const uint32_t *)span->slots + listed[i], 4);
  } else if (row_bytes <= sizeof(uint64_t)) {
    for (uint32_t i = 0; i < n; i++, values += row_bytes) memcpy(values, &slots[listed[i]], row_bytes);
  } else {
    for (uint32_t i = 0; i < n; i++, values += row_bytes) {
      const uint64_t slot = slots[listed[i]];
      const void *const from = zps_slice_values(&merge->views[slot >> 32], (uint32_t)slot, 1, values);
      if (from != values) memcpy(values, from, row_bytes);
    }
  }
}

/* Takes the window's `n` rows, of which the span's last one is at `end`: nothing may be written there. */
static void take(const struct merge *merge, const struct span *span, uint32_t n, uint64_t first_row, uint64_t place,
                 uint64_t end) {
  const uint32_t n_words = words_of(merge);
  if (merge->row_bytes == sizeof(uint32_t) && end - place >= (uint64_t)n + ZPS_SIMD_SLACK)
    zps_simd()->take_rows(span->bits, n_words, span->slots, (int64_t)first_row, merge->rows + place,
                          merge->values + place * sizeof(uint32_t));
  else
    copy(merge, span, zps_simd()->list(span->bits, n_words, 0, span->listed), first_row, place);
  memset(span->bits, 0, n_words * sizeof *span->bits);
}

/* The number of the partition's indices in the windows before `window`. */
static uint64_t indices_before(const struct merge *merge, uint64_t window, uint32_t p) {
  const struct zps_partition *const part = merge->part;
  if (part->stripe_bits == 0 && !zps_partition_is_hashed(part)) return window * merge->window_indices;
  const uint64_t rows = window * merge->window_rows < part->rows ? window * merge->window_rows : part->rows;
  return zps_partition_indices_below(part, p, zps_partition_stripe_rows(part, zps_partition_stripe_of(part, p), rows));
}

/* Those that have rows in the window are [*first_p, *end_p): of all stripes, or of its chunks', where it has fewer. */
static void parts_in(const struct merge *merge, uint64_t window, uint32_t *first_p, uint32_t *end_p) {
  const struct zps_partition *const part = merge->part;
  const uint32_t n_stripes = zps_partition_stripes(part);
  const uint64_t n_chunks = merge->window_rows >> part->chunk_bits;
  const bool has_all = n_chunks >= n_stripes || n_stripes == 1;
  const uint32_t stripe = has_all ? 0 : (uint32_t)(window * n_chunks) & (n_stripes - 1);
  *first_p = stripe * part->stripe_parts;
  *end_p = *first_p + (has_all ? n_stripes : (uint32_t)n_chunks) * part->stripe_parts;
}

/* How many rows of all partitions lie in the windows before `window`; notes how many of each. */
static uint64_t rows_before(const struct merge *merge, uint64_t window, uint32_t *places) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < merge->part->n_parts; p++)
    n += places[p] = find(merge->indices + merge->starts[p], 0, merge->views[p].z, indices_before(merge, window, p));
  return n;
}

static void merge_windows(const struct merge *merge, const struct span *span, uint64_t first, uint64_t end) {
  const uint64_t n_slots = merge->window_rows, end_place = rows_before(merge, end, span->places);
  uint64_t place = rows_before(merge, first, span->places);
  for (uint64_t window = first; window < end; window++) {
    uint32_t p, end_part, n = 0;
    for (parts_in(merge, window, &p, &end_part); p < end_part; p++)
      n += fill(merge, p, indices_before(merge, window + 1, p), window * n_slots, span);
    take(merge, span, n, window * n_slots, place, end_place);
    place += n;
  }
}

/* Merges spans that no other thread has taken. */
static void merge_spans(void *ctx, unsigned thread) {
  struct merge *const merge = ctx;
  const uint64_t n_slots = merge->window_rows, n_words = words_of(merge);
  struct span span = {.slots = merge->scratch + thread * merge->scratch_bytes};
  span.bits = (uint64_t *)span.slots + (n_slots * slot_bytes(merge) + 7) / 8;
  span.listed = (uint32_t *)(span.bits + n_words);
  span.places = span.listed + n_slots + ZPS_SIMD_SLACK;
  memset(span.bits, 0, n_words * sizeof *span.bits);
  for (uint64_t i; (i = atomic_fetch_add(&merge->next_span, 1)) < merge->n_spans;)
    merge_windows(merge, &span, merge->n_windows * i / merge->n_spans, merge->n_windows * (i + 1) / merge->n_spans);
}

/* A window: whole chunks, or whole blocks (of the table, where rows are hashed), so that the rows of all partitions'
 * are consecutive. False: these would be too many. */
static bool choose_window(struct merge *merge, uint64_t n_found) {
  const struct zps_partition *const part = merge->part;
  const uint64_t deal_rows = (uint64_t)part->n_parts << part->block_bits;
  if (deal_rows > WINDOW_ROWS_MAX) return false;
  uint64_t rows = WINDOW_ROWS_MIN;
  while (rows < WINDOW_ROWS_MAX && rows * n_found < WINDOW_FOUND_MIN * part->rows) rows *= 2;
  if (zps_partition_is_hashed(part)) {
    while (rows >> part->table.block_bits == 0) rows *= 2;
    merge->window_rows = rows;
    return true;
  }
  if (part->stripe_bits) {
    while (rows < deal_rows || rows >> part->chunk_bits == 0) rows *= 2;
    merge->window_rows = rows;
    return true;
  }
  const uint64_t n_deals = deal_rows < rows ? rows / deal_rows : 1;
  merge->window_indices = (uint32_t)(n_deals << part->block_bits);
  merge->window_rows = n_deals * deal_rows;
  return true;
}

static void sort_rows(const struct merge *merge, struct zps_sort_pair *pairs, uint64_t n) {
  const struct zps_partition *const part = merge->part;
  struct zps_sort_pair *pair = pairs;
  for (uint32_t p = 0; p < part->n_parts; p++) {
    const uint32_t *const indices = merge->indices + merge->starts[p];
    for (uint32_t at = 0; at < merge->views[p].z; at++)
      *pair++ = (struct zps_sort_pair){.key = zps_partition_row(part, p, indices[at]), .value = (uint64_t)p << 32 | at};
  }
  zps_sort_pairs(pairs, pairs + n, n);
  char *values = merge->values;
  for (uint64_t i = 0; i < n; i++, values += merge->row_bytes) {
    merge->rows[i] = (int64_t)pairs[i].key;
    const void *const from = zps_slice_values(&merge->views[pairs[i].value >> 32], (uint32_t)pairs[i].value, 1, values);
    if (from != values) memcpy(values, from, merge->row_bytes);
  }
}

static zps_err_t put_in_order(struct merge *merge, struct zps_workpool *pool, struct zps_decode_scratch *scratch,
                              uint64_t n) {
  const struct zps_partition *const part = merge->part;
  if (n < part->rows / ROWS_PER_FOUND_MAX || !choose_window(merge, n)) {
    if (zps_buffer_need(&scratch->pairs, 2 * n, sizeof(struct zps_sort_pair)) != ZPS_OK) return ZPS_ERR_NOMEM;
    sort_rows(merge, scratch->pairs.data, n);
    return ZPS_OK;
  }
  const uint64_t n_slots = merge->window_rows;
  merge->n_windows = (part->rows + n_slots - 1) / n_slots;
  unsigned n_threads = 1 + (pool ? zps_workpool_threads(pool) : 0);
  if (n_threads > n / FOUND_PER_THREAD_MIN) n_threads = (unsigned)(n / FOUND_PER_THREAD_MIN) + 1;
  if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
  merge->n_spans = n_threads > 1 ? n_threads * SPANS_PER_THREAD : 1;
  merge->scratch_bytes = ((n_slots * slot_bytes(merge) + 7) / 8 + (n_slots + 63) / 64) * sizeof(uint64_t) +
                         (n_slots + ZPS_SIMD_SLACK + part->n_parts) * sizeof(uint32_t);
  merge->scratch_bytes = (merge->scratch_bytes + 63) & ~63ull;
  if (zps_buffer_need(&scratch->windows, n_threads, merge->scratch_bytes) != ZPS_OK) return ZPS_ERR_NOMEM;
  merge->scratch = scratch->windows.data;
  zps_workpool_for(pool, n_threads, merge_spans, merge);
  return ZPS_OK;
}

zps_err_t zps_decode_rows(const struct zps_partition *part, const struct zps_slice_view *views,
                          struct zps_workpool *pool, struct zps_decode_scratch *scratch, int64_t *rows, void *values) {
  uint64_t n = 0;
  for (uint32_t p = 0; p < part->n_parts; p++) n += views[p].z;
  if (n == 0) return ZPS_OK;
  if (zps_buffer_need(&scratch->starts, part->n_parts, sizeof(uint64_t)) != ZPS_OK ||
      zps_buffer_need(&scratch->indices, n + (uint64_t)part->n_parts * ZPS_SIMD_SLACK, sizeof(uint32_t)) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  struct merge merge = {.part = part,
                        .views = views,
                        .row_bytes = zps_row_bytes(views->width, views->dtype),
                        .rows = rows,
                        .values = values,
                        .starts = scratch->starts.data,
                        .indices = scratch->indices.data};
  uint64_t start = 0;
  for (uint32_t p = 0; p < part->n_parts; p++) {
    merge.starts[p] = start;
    start += views[p].z + (uint64_t)ZPS_SIMD_SLACK;
  }
  zps_workpool_for(pool, part->n_parts, list_indices, &merge);
  return put_in_order(&merge, pool, scratch, n);
}

void zps_decode_scratch_fini(struct zps_decode_scratch *scratch) {
  zps_buffer_fini(&scratch->starts);
  zps_buffer_fini(&scratch->indices);
  zps_buffer_fini(&scratch->windows);
  zps_buffer_fini(&scratch->pairs);
}
