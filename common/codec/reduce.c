/*
 * One sum is cut into pieces of indices when there are threads to share it. Wide rows are counted first, so that each
 * piece's sums are made where they belong. Where narrow ones belong is known when all pieces before have been summed:
 * until then they are held in memory of the thread's own, small enough to be in its cache still when they are put in
 * their place.
 */
#include "common/codec/reduce.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/enlarge.h"
#include "common/codec/reduce_impl.h"
#include "common/codec/simd/simd.h"

enum {
  PIECES_PER_THREAD_MIN = 8,
  PIECES_PER_THREAD_MAX = 32,
  HELD_BYTES = 512 << 10, /* of narrow rows: there may be more in a piece where there would be too many pieces */
  HELPERS_MAX = 63,
  COUNTED_ROW_BYTES_MIN = 32,
  ADDED_PER_PIECE_MIN = 64 << 10, /* elements: some tens of microseconds */
  ADDED_PER_CURSOR_MIN = 256,     /* of a contribution in a piece: finding their beginning must not weigh */
};

struct piece {
  uint64_t place;       /* of its first row */
  uint64_t index_place; /* in the scratch, of its first index */
  uint32_t first, end, z, rows_max;
  bool is_summed;
};

struct sum {
  struct zps_reduction whole;
  struct zps_reduce_scratch *scratch;
  bool singles;
  struct piece *pieces; /* [n_pieces] */
  unsigned n_pieces;
  atomic_uint next_piece;
  atomic_uint n_placed; /* pieces whose place is known; changes with the lock */
  pthread_mutex_t lock; /* of the members below and is_summed */
  unsigned n_summed;    /* summed pieces before the first one that is missing */
  uint32_t z;           /* rows of the n_summed pieces */
  zps_err_t code;
};

zps_err_t zps_reduce_scratch_create(struct zps_reduce_scratch **scratch_p) {
  struct zps_reduce_scratch *const scratch = calloc(1, sizeof *scratch);
  if (!scratch) return ZPS_ERR_NOMEM;
  *scratch_p = scratch;
  return ZPS_OK;
}

static void scratch_fini(struct zps_reduce_scratch *scratch) {
  struct zps_buffer *const buffers[] = {&scratch->singles, &scratch->taken, &scratch->slots,   &scratch->indices,
                                        &scratch->index,   &scratch->ahead, &scratch->cursors, &scratch->widened,
                                        &scratch->pieces,  &scratch->held};
  for (unsigned i = 0; i < sizeof buffers / sizeof buffers[0]; i++) zps_buffer_fini(buffers[i]);
}

void zps_reduce_scratch_destroy(struct zps_reduce_scratch *scratch) {
  if (!scratch) return;
  for (unsigned i = 0; i < scratch->n_helpers; i++) scratch_fini(&scratch->helpers[i]);
  free(scratch->helpers);
  scratch_fini(scratch);
  free(scratch);
}

/* Scratch for so many threads beside the caller's. */
static zps_err_t need_helpers(struct zps_reduce_scratch *scratch, unsigned n) {
  if (n <= scratch->n_helpers) return ZPS_OK;
  if (!zps_enlarge(&scratch->helpers, n, sizeof *scratch->helpers)) return ZPS_ERR_NOMEM;
  memset(scratch->helpers + scratch->n_helpers, 0, (n - scratch->n_helpers) * sizeof *scratch->helpers);
  scratch->n_helpers = n;
  return ZPS_OK;
}

static uint64_t rows_added(const struct zps_slice_view *views, unsigned n_views) {
  uint64_t z = 0;
  for (unsigned i = 0; i < n_views; i++) z += views[i].z;
  return z;
}

/* The most rows that the union can have. */
static uint32_t union_bound(const struct zps_slice_view *views, unsigned n_views) {
  const uint64_t z = rows_added(views, n_views);
  return z < views->m ? (uint32_t)z : views->m;
}

uint64_t zps_reduce_bound(const struct zps_slice_view *views, unsigned n_views, enum zps_codec codec) {
  return zps_codec_slice_bytes(codec, views->m, union_bound(views, n_views), views->width, views->dtype,
                               ZPS_VALUES_RAW);
}

static struct zps_index_cursor *cursors_of(const struct sum *sum, unsigned piece) {
  return (struct zps_index_cursor *)sum->scratch->cursors.data + (uint64_t)piece * sum->whole.n_views;
}

/* One contribution's cursors, at the beginning of each piece. */
static void place_cursors(void *ctx, unsigned view) {
  const struct sum *const sum = ctx;
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, &sum->whole.views[view]);
  for (unsigned i = 0; i < sum->n_pieces; i++) {
    if (i > 0) zps_index_cursor_seek(&cursor, sum->pieces[i].first);
    cursors_of(sum, i)[view] = cursor;
  }
}

/* The first chunk at which a contribution has a row; false when the piece has none left. */
static bool next_chunk(const struct zps_reduction *reduction, uint32_t *base_p) {
  const uint32_t index = zps_reduction_peek(reduction->cursors, reduction->n_views);
  if (index >= reduction->end) return false;
  *base_p = reduction->first + ((index - reduction->first) & ~(reduction->chunk_rows - 1));
  return true;
}

ZPS_MUSTCHECK static zps_err_t begin_piece(const struct sum *sum, unsigned i, struct zps_reduce_scratch *scratch,
                                           struct zps_reduction *reduction) {
  const struct piece *const piece = &sum->pieces[i];
  *reduction = sum->whole;
  reduction->scratch = scratch;
  reduction->cursors = cursors_of(sum, i);
  reduction->first = piece->first;
  reduction->end = piece->end;
  reduction->rows_max = piece->rows_max;
  if (reduction->codec == ZPS_CODEC_BITMAP)
    reduction->index_words = piece->first / 32;
  else
    reduction->index += piece->index_place;
  return (sum->singles ? zps_reduction_need_singles : zps_reduction_need_rows)(reduction);
}

ZPS_MUSTCHECK static zps_err_t count_piece(const struct sum *sum, unsigned i, struct zps_reduce_scratch *scratch) {
  struct zps_reduction reduction;
  const zps_err_t code = begin_piece(sum, i, scratch, &reduction);
  if (code == ZPS_OK) sum->pieces[i].rows_max = zps_reduction_count_rows(&reduction);
  return code;
}

static void note_failed(struct sum *sum, zps_err_t code) {
  pthread_mutex_lock(&sum->lock);
  sum->code = code;
  pthread_mutex_unlock(&sum->lock);
}

static bool is_placed(const struct sum *sum, unsigned i) {
  return atomic_load_explicit(&sum->n_placed, memory_order_acquire) > i;
}

/* Notes how many rows the piece has, and with it where those behind begin. */
static void note_summed(struct sum *sum, unsigned i, uint32_t z) {
  pthread_mutex_lock(&sum->lock);
  sum->pieces[i].z = z;
  sum->pieces[i].is_summed = true;
  for (; sum->n_summed < sum->n_pieces && sum->pieces[sum->n_summed].is_summed; sum->n_summed++) {
    const unsigned next = sum->n_summed + 1;
    sum->z += sum->pieces[sum->n_summed].z;
    if (next == sum->n_pieces || is_placed(sum, next)) continue;
    sum->pieces[next].place = sum->z;
    atomic_store_explicit(&sum->n_placed, next + 1, memory_order_release);
  }
  pthread_mutex_unlock(&sum->lock);
}

/* Memory for a piece whose place is not known. */
ZPS_MUSTCHECK static zps_err_t hold(struct zps_reduction *reduction) {
  struct zps_buffer *const held = &reduction->scratch->held;
  reduction->rows_max += reduction->chunk_rows + ZPS_SIMD_SLACK;
  const zps_err_t code = zps_buffer_need(held, reduction->rows_max, reduction->row_bytes);
  reduction->out = held->data;
  return code;
}

/* Sums the piece, and returns its rows where they are held; NULL: where they belong, or there is no memory. */
static const char *sum_rows(struct sum *sum, unsigned i, struct zps_reduce_scratch *scratch, uint32_t *z_p) {
  const struct piece *const piece = &sum->pieces[i];
  const bool placed = is_placed(sum, i);
  struct zps_reduction reduction;
  *z_p = 0;
  if (piece->first == piece->end) return NULL;
  zps_err_t code = begin_piece(sum, i, scratch, &reduction);
  if (code == ZPS_OK && placed) reduction.out += piece->place * reduction.row_bytes;
  if (code == ZPS_OK && !placed) code = hold(&reduction);
  if (code != ZPS_OK) {
    note_failed(sum, code);
    return NULL;
  }
  for (uint32_t base; next_chunk(&reduction, &base);) {
    const uint32_t end = piece->end - base > reduction.chunk_rows ? base + reduction.chunk_rows : piece->end;
    (sum->singles ? zps_reduction_sum_singles : zps_reduction_sum_rows)(&reduction, base, end);
  }
  if (reduction.codec == ZPS_CODEC_BITMAP)
    zps_reduction_clear_index(&reduction, piece->end / 32 + (piece->end % 32 != 0));
  *z_p = reduction.z;
  return placed ? NULL : reduction.out;
}

/* Sums a piece and puts its rows where they belong, which is known soon: the threads that have taken the pieces before
 * are at work. */
static void sum_piece(struct sum *sum, unsigned i, struct zps_reduce_scratch *scratch) {
  uint32_t z;
  const char *const held = sum_rows(sum, i, scratch, &z);
  note_summed(sum, i, z);
  if (!held || z == 0) return;
  while (!is_placed(sum, i)) sched_yield();
  const uint64_t row_bytes = sum->whole.row_bytes;
  memcpy(sum->whole.out + sum->pieces[i].place * row_bytes, held, z * row_bytes);
}

static struct zps_reduce_scratch *scratch_of(const struct sum *sum, unsigned thread) {
  return thread == 0 ? sum->scratch : &sum->scratch->helpers[thread - 1];
}

/* Counts the rows of pieces that no other thread has taken. */
static void count_pieces(void *ctx, unsigned thread) {
  struct sum *const sum = ctx;
  for (unsigned i; (i = atomic_fetch_add(&sum->next_piece, 1)) < sum->n_pieces;) {
    const zps_err_t code = count_piece(sum, i, scratch_of(sum, thread));
    if (code != ZPS_OK) note_failed(sum, code);
  }
}

/* Sums them. */
static void sum_pieces(void *ctx, unsigned thread) {
  struct sum *const sum = ctx;
  for (unsigned i; (i = atomic_fetch_add(&sum->next_piece, 1)) < sum->n_pieces;)
    sum_piece(sum, i, scratch_of(sum, thread));
}

static void run_pieces(struct sum *sum, struct zps_workpool *pool, unsigned n_threads,
                       void (*run)(void *ctx, unsigned thread)) {
  atomic_store(&sum->next_piece, 0);
  zps_workpool_for(pool, sum->n_pieces > 1 ? n_threads : 1, run, sum);
}

/* Says where each piece's rows begin, from how many each has at most. */
static void place_pieces(struct sum *sum) {
  uint64_t place = 0;
  for (unsigned i = 0; i < sum->n_pieces; i++) {
    sum->pieces[i].place = place;
    sum->pieces[i].index_place = place + (uint64_t)i * ZPS_SIMD_SLACK;
    place += sum->pieces[i].rows_max;
  }
}

static bool is_counted(const struct zps_reduction *whole) {
  return whole->row_bytes >= COUNTED_ROW_BYTES_MIN;
}

/* The number of pieces that are worth their beginnings; 1 when there is no thread to share them with. */
static unsigned pieces_of(const struct sum *sum, unsigned n_threads) {
  const struct zps_reduction *const whole = &sum->whole;
  const uint64_t added = rows_added(whole->views, whole->n_views) * whole->width;
  const uint64_t by_cursors = (uint64_t)whole->n_views * ADDED_PER_CURSOR_MIN;
  const uint64_t added_min = by_cursors > ADDED_PER_PIECE_MIN ? by_cursors : ADDED_PER_PIECE_MIN;
  const uint64_t least = (uint64_t)n_threads * PIECES_PER_THREAD_MIN,
                 most = (uint64_t)n_threads * PIECES_PER_THREAD_MAX;
  if (n_threads == 1) return 1;
  uint64_t n = is_counted(whole) ? least : whole->rows_max * whole->row_bytes / HELD_BYTES;
  n = n < least ? least : n > most ? most : n;
  if (n > added / added_min) n = added / added_min;
  return n > 0 ? (unsigned)n : 1;
}

/* Cuts the partition, finds where each contribution's part of a piece begins, and makes room for the indices. */
ZPS_MUSTCHECK static zps_err_t prepare(struct sum *sum, struct zps_workpool *pool, unsigned n_threads) {
  struct zps_reduce_scratch *const scratch = sum->scratch;
  const struct zps_reduction *const whole = &sum->whole;
  const uint32_t m = whole->views->m;
  sum->n_pieces = pieces_of(sum, n_threads);
  const uint64_t n_cursors = (uint64_t)sum->n_pieces * whole->n_views;
  const uint64_t slack_bytes = (uint64_t)sum->n_pieces * ZPS_SIMD_SLACK * sizeof(uint32_t);
  const uint64_t index_bytes =
      zps_codec_index_bytes(whole->codec, m, whole->codec == ZPS_CODEC_BITMAP ? 0 : whole->rows_max);
  zps_err_t code = zps_buffer_need(&scratch->cursors, n_cursors, sizeof(struct zps_index_cursor));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->pieces, sum->n_pieces, sizeof(struct piece));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->index, index_bytes + slack_bytes, 1);
  if (code == ZPS_OK && sum->n_pieces > 1) code = need_helpers(scratch, n_threads - 1);
  if (code != ZPS_OK) return code;
  sum->whole.index = scratch->index.data;
  sum->pieces = scratch->pieces.data;
  const uint64_t step = ((m - 1ull) / sum->n_pieces + 64) & ~63ull;
  for (unsigned i = 0; i < sum->n_pieces; i++) {
    const uint64_t first = i * step, end = first + step;
    sum->pieces[i] = (struct piece){.first = first < m ? (uint32_t)first : m, .end = end < m ? (uint32_t)end : m};
  }
  zps_workpool_for(sum->n_pieces > 1 ? pool : NULL, whole->n_views, place_cursors, sum);
  for (unsigned i = 0; i < sum->n_pieces; i++) {
    struct piece *const piece = &sum->pieces[i];
    uint64_t z = 0;
    for (unsigned v = 0; v < whole->n_views; v++)
      z += (i + 1 < sum->n_pieces ? cursors_of(sum, i + 1)[v].next : whole->views[v].z) - cursors_of(sum, i)[v].next;
    piece->rows_max = z < piece->end - piece->first ? (uint32_t)z : piece->end - piece->first;
  }
  place_pieces(sum);
  return ZPS_OK;
}

/* Puts a piece's part of the coded set behind the values. */
static void put_index(void *ctx, unsigned i) {
  const struct sum *const sum = ctx;
  const struct piece *const piece = &sum->pieces[i];
  char *at = sum->whole.out + sum->z * sum->whole.row_bytes;
  const uint32_t *from = sum->whole.index;
  uint64_t n_words = piece->z;
  if (sum->whole.codec == ZPS_CODEC_BITMAP) {
    const uint64_t first = piece->first / 32, end = ((uint64_t)piece->end + 31) / 32;
    at += first * sizeof *from;
    from += first;
    n_words = piece->first < piece->end ? end - first : 0;
  } else {
    for (unsigned before = 0; before < i; before++) at += sum->pieces[before].z * sizeof *from;
    from += piece->index_place;
  }
  if (n_words > 0) memcpy(at, from, n_words * sizeof *from);
}

zps_err_t zps_reduce(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n_views,
                     enum zps_op op, enum zps_codec codec, struct zps_workpool *pool, void *out, uint32_t *nnz_p,
                     uint64_t *len_bytes_p) {
  const uint32_t m = views->m;
  if (op == ZPS_OP_MEAN && views->dtype == ZPS_DTYPE_U8) return ZPS_ERR_UNSUPPORTED;
  struct sum sum = {.scratch = scratch,
                    .whole = {.views = views,
                              .n_views = n_views,
                              .dtype = views->dtype,
                              .width = views->width,
                              .row_bytes = zps_row_bytes(views->width, views->dtype),
                              .codec = codec,
                              .op = op == ZPS_OP_MEAN || op == ZPS_OP_ONE ? ZPS_OP_SUM : op,
                              .divisor = op == ZPS_OP_MEAN ? n_views : 1,
                              .out = out,
                              .rows_max = union_bound(views, n_views)},
                    .lock = PTHREAD_MUTEX_INITIALIZER,
                    .code = ZPS_OK};
  sum.singles = views->dtype == ZPS_DTYPE_F32 && views->width == 1 && sum.whole.op == ZPS_OP_SUM;
  unsigned n_helpers = zps_workpool_idle(pool);
  if (n_helpers > HELPERS_MAX) n_helpers = HELPERS_MAX;
  zps_err_t code = prepare(&sum, pool, n_helpers + 1);
  if (code != ZPS_OK) return code;
  sum.n_placed = 1;
  if (sum.n_pieces > 1 && is_counted(&sum.whole)) {
    run_pieces(&sum, pool, n_helpers + 1, count_pieces);
    if (sum.code != ZPS_OK) return sum.code;
    place_pieces(&sum);
    sum.n_placed = sum.n_pieces;
  }
  run_pieces(&sum, pool, n_helpers + 1, sum_pieces);
  if (sum.code != ZPS_OK) return sum.code;
  const uint64_t index_bytes = zps_codec_index_bytes(codec, m, sum.z);
  zps_workpool_for(sum.n_pieces > 1 ? pool : NULL, sum.n_pieces, put_index, &sum);
  *nnz_p = sum.z;
  *len_bytes_p = sum.z * sum.whole.row_bytes + index_bytes;
  return ZPS_OK;
}

bool zps_reduce_find_repeat(const struct zps_slice_view *views, unsigned n_views, uint32_t *index_p, unsigned pair[2]) {
  bool found = false;
  for (unsigned a = 0; a + 1 < n_views; a++) {
    for (unsigned b = a + 1; b < n_views; b++) {
      struct zps_index_cursor cursors[2];
      zps_index_cursor_init(&cursors[0], &views[a]);
      zps_index_cursor_init(&cursors[1], &views[b]);
      uint32_t x = zps_index_cursor_peek(&cursors[0]), y = zps_index_cursor_peek(&cursors[1]);
      while (x != y && x != UINT32_MAX && y != UINT32_MAX) {
        if (x < y) {
          zps_index_cursor_seek(&cursors[0], y);
          x = zps_index_cursor_peek(&cursors[0]);
        } else {
          zps_index_cursor_seek(&cursors[1], x);
          y = zps_index_cursor_peek(&cursors[1]);
        }
      }
      if (x != y || x == UINT32_MAX || (found && x >= *index_p)) continue;
      found = true;
      *index_p = x;
      pair[0] = a;
      pair[1] = b;
    }
  }
  return found;
}
