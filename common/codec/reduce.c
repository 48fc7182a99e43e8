#include "common/codec/reduce.h"

#include <string.h>

#include "common/codec/accumulate.h"
#include "common/codec/bits.h"
#include "common/codec/buffer.h"
#include "common/codec/simd.h"

enum {
  SUMS_BYTES = 128 << 10, /* a chunk's accumulators: a part of the second-level cache, beside what is read */
  CHUNK_ROWS_MAX = 32768,
  BATCH = 512,
};

struct zps_reduce_scratch {
  struct zps_buffer sums;    /* of one chunk; zero between chunks */
  struct zps_buffer touched; /* COO: a bit per rank of one chunk; zero between chunks */
  struct zps_buffer singles; /* the accumulators of single floats; -0.0 between chunks */
  struct zps_buffer taken;   /* single floats: one chunk's sums and bits, where the result has no room to spare */
  struct zps_buffer index;   /* the result's coded set, until its place is known */
  struct zps_buffer cursors;
  struct zps_buffer room; /* a batch of widened values */
};

/* One call's constants and progress. */
struct reduction {
  const struct zps_slice_view *view; /* the first: m, width, dtype */
  enum zps_codec codec;
  unsigned divisor;
  uint64_t row_bytes;
  uint32_t chunk_rows; /* a power of two */
  void *sums;
  void *room; /* widened values */
  char *out;
  uint32_t z, rows_max;
};

typedef float any_float __attribute__((aligned(1), may_alias));

zps_err_t zps_reduce_scratch_create(struct zps_reduce_scratch **scratch_p) {
  struct zps_reduce_scratch *const scratch = calloc(1, sizeof *scratch);
  if (!scratch) return ZPS_ERR_NOMEM;
  *scratch_p = scratch;
  return ZPS_OK;
}

void zps_reduce_scratch_destroy(struct zps_reduce_scratch *scratch) {
  if (!scratch) return;
  zps_buffer_fini(&scratch->sums);
  zps_buffer_fini(&scratch->touched);
  zps_buffer_fini(&scratch->singles);
  zps_buffer_fini(&scratch->taken);
  zps_buffer_fini(&scratch->index);
  zps_buffer_fini(&scratch->cursors);
  zps_buffer_fini(&scratch->room);
  free(scratch);
}

/* The most rows that the union can have. */
static uint32_t union_bound(const struct zps_slice_view *views, unsigned n_views) {
  uint64_t z = 0;
  for (unsigned i = 0; i < n_views; i++) z += views[i].z;
  return z < views->m ? (uint32_t)z : views->m;
}

uint64_t zps_reduce_bound(const struct zps_slice_view *views, unsigned n_views, enum zps_codec codec) {
  return zps_codec_slice_bytes(codec, views->m, union_bound(views, n_views), views->width, views->dtype,
                               ZPS_VALUES_RAW);
}

static uint32_t chunk_rows_of(uint64_t row_bytes) {
  uint32_t rows = 1;
  while (rows < CHUNK_ROWS_MAX && rows * 2 * row_bytes <= SUMS_BYTES) rows *= 2;
  return rows;
}

/* Memory that is zero when it is new and left zero by those who use it. */
ZPS_MUSTCHECK static zps_err_t need_zeroed(struct zps_buffer *buffer, uint64_t n, uint64_t elem_bytes) {
  const uint64_t before = buffer->size_bytes;
  const zps_err_t code = zps_buffer_need(buffer, n, elem_bytes);
  if (code == ZPS_OK && buffer->size_bytes != before) memset(buffer->data, 0, buffer->size_bytes);
  return code;
}

/* Sets n bits from bit `at` on. */
static void mark_run(uint32_t *touched, uint32_t at, uint32_t n) {
  while (n > 0) {
    const uint32_t bit = at % 32, here = n < 32 - bit ? n : 32 - bit;
    touched[at / 32] |= (UINT32_MAX >> (32 - here)) << bit;
    at += here;
    n -= here;
  }
}

/* Sets the bits of `ranks` in words that start at rank `first`, a multiple of 32. */
static void mark(uint32_t *touched, uint32_t first, const uint32_t *ranks, uint32_t n) {
  if (ranks[n - 1] - ranks[0] == n - 1) { /* without a gap */
    mark_run(touched, ranks[0] - first, n);
    return;
  }
  for (uint32_t i = 0; i < n; i++) touched[(ranks[i] - first) / 32] |= 1u << (ranks[i] % 32);
}

static void add_chunk(const struct reduction *reduction, struct zps_rank_cursor *cursors, unsigned n_views,
                      uint32_t base, uint32_t end, uint32_t *touched) {
  uint32_t ranks[BATCH];
  const uint32_t at_once = reduction->chunk_rows < BATCH ? reduction->chunk_rows : BATCH;
  for (unsigned i = 0; i < n_views; i++) {
    const struct zps_slice_view *const view = cursors[i].view;
    for (uint32_t n; (n = zps_rank_cursor_read(&cursors[i], end, ranks, at_once)) > 0;) {
      const void *const values = zps_slice_values(view, cursors[i].next - n, n, reduction->room);
      zps_accumulate_rows(view->dtype, reduction->sums, base, ranks, n, view->width, values);
      mark(touched, base & ~31u, ranks, n);
    }
  }
}

static void take_batch(struct reduction *reduction, uint32_t base, const uint32_t *ranks, uint32_t n, uint32_t *index) {
  zps_accumulate_take_rows(reduction->view->dtype, reduction->sums, base, ranks, n, reduction->view->width,
                           reduction->divisor, reduction->out + reduction->z * reduction->row_bytes);
  if (reduction->codec != ZPS_CODEC_BITMAP) memcpy(index + reduction->z, ranks, n * sizeof *ranks);
  reduction->z += n;
}

/* Moves the sums of the touched rows of [base, end) to the result. */
static void take_chunk(struct reduction *reduction, uint32_t base, uint32_t end, uint32_t *touched, uint32_t *index) {
  uint32_t ranks[BATCH], n = 0;
  const uint32_t first = base & ~31u, n_words = (end - 1 - first) / 32 + 1;
  for (uint32_t w = 0; w < n_words; w++) {
    /* chunks of wide rows may share a word */
    const uint32_t bits = w == 0 ? touched[0] & (UINT32_MAX << (base % 32)) : touched[w];
    if (bits == 0) continue;
    if (reduction->codec != ZPS_CODEC_BITMAP) touched[w] = 0;
    n += zps_bits_list(bits, first + w * 32, ranks + n);
    if (n <= BATCH - 32) continue;
    take_batch(reduction, base, ranks, n, index);
    n = 0;
  }
  take_batch(reduction, base, ranks, n, index);
}

/*
 * Rows of a single float: an accumulator that nothing was added to is -0.0, which no sum that started at +0.0 can be.
 * So adding needs no second store to note what was touched, and taking looks at the accumulators in order.
 */
static void add_singles(struct zps_rank_cursor *cursors, unsigned n_views, uint32_t base, uint32_t end, float *sums) {
  uint32_t ranks[BATCH];
  for (unsigned i = 0; i < n_views; i++) {
    for (uint32_t n; (n = zps_rank_cursor_read(&cursors[i], end, ranks, BATCH)) > 0;) {
      float room[BATCH];
      const any_float *const values = zps_slice_values(cursors[i].view, cursors[i].next - n, n, room);
      /* +0.0 + value is the value, and +0.0 for -0.0 */
      for (uint32_t j = 0; j < n; j++) sums[ranks[j] - base] += 0.0f + values[j];
    }
  }
}

static void take_singles(struct reduction *reduction, struct zps_reduce_scratch *scratch, uint32_t base, uint32_t end) {
  const uint32_t n_words = (end - 1 - base) / 64 + 1;
  float *const taken = scratch->taken.data;
  uint64_t bits[CHUNK_ROWS_MAX / 64];
  float *const out = (float *)reduction->out + reduction->z;
  const bool has_room = reduction->rows_max - reduction->z >= reduction->chunk_rows + ZPS_SIMD_SLACK;
  const uint32_t n = zps_simd()->take(scratch->singles.data, n_words, has_room ? out : taken, bits);
  if (!has_room) memcpy(out, taken, n * sizeof *out);
  if (reduction->divisor != 1) {
    const float factor = 1.0f / (float)reduction->divisor;
    for (uint32_t i = 0; i < n; i++) out[i] *= factor;
  }
  uint32_t *const index = scratch->index.data;
  if (reduction->codec == ZPS_CODEC_BITMAP)
    memcpy(index + base / 32, bits, ((end - 1 - base) / 32 + 1) * sizeof *index);
  else
    zps_simd()->list(bits, n_words, base, index + reduction->z);
  reduction->z += n;
}

static zps_err_t need_singles(struct zps_reduce_scratch *scratch) {
  if (scratch->singles.data) return ZPS_OK;
  zps_err_t code = zps_buffer_need(&scratch->taken, CHUNK_ROWS_MAX + ZPS_SIMD_SLACK, sizeof(float));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->singles, CHUNK_ROWS_MAX, sizeof(float));
  if (code != ZPS_OK) return code;
  for (uint32_t i = 0; i < CHUNK_ROWS_MAX; i++) ((float *)scratch->singles.data)[i] = -0.0f;
  return ZPS_OK;
}

/* The first chunk at which a contribution has a row; false when none is left. */
static bool next_chunk(const struct reduction *reduction, struct zps_rank_cursor *cursors, unsigned n_views,
                       uint32_t *base_p) {
  uint32_t rank = UINT32_MAX;
  for (unsigned i = 0; i < n_views; i++) {
    const uint32_t next = zps_rank_cursor_peek(&cursors[i]);
    if (next < rank) rank = next;
  }
  *base_p = rank & ~(reduction->chunk_rows - 1);
  return rank != UINT32_MAX;
}

zps_err_t zps_reduce(struct zps_reduce_scratch *scratch, const struct zps_slice_view *views, unsigned n_views,
                     enum zps_op op, enum zps_codec codec, void *out, uint32_t *nnz_p, uint64_t *len_bytes_p) {
  const uint32_t m = views->m;
  if (op == ZPS_OP_MEAN && views->dtype == ZPS_DTYPE_U8) return ZPS_ERR_UNSUPPORTED;
  struct reduction reduction = {.view = views,
                                .codec = codec,
                                .divisor = op == ZPS_OP_MEAN ? n_views : 1,
                                .row_bytes = views->width * (uint64_t)zps_dtype_size(views->dtype),
                                .out = out};
  reduction.rows_max = union_bound(views, n_views);
  reduction.chunk_rows = chunk_rows_of(reduction.row_bytes);
  const bool singles = views->dtype == ZPS_DTYPE_F32 && views->width == 1;
  const uint64_t index_bytes =
      codec == ZPS_CODEC_BITMAP ? zps_codec_index_bytes(codec, m, 0) : reduction.rows_max * sizeof(uint32_t);
  zps_err_t code =
      singles ? need_singles(scratch) : need_zeroed(&scratch->sums, reduction.chunk_rows, reduction.row_bytes);
  if (code == ZPS_OK) code = need_zeroed(&scratch->touched, reduction.chunk_rows / 32 + 1, sizeof(uint32_t));
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->index, index_bytes + ZPS_SIMD_SLACK * sizeof(uint32_t), 1);
  if (code == ZPS_OK && views->value_codec != ZPS_VALUES_RAW && !singles)
    code = zps_buffer_need(&scratch->room, reduction.chunk_rows < BATCH ? reduction.chunk_rows : BATCH,
                           reduction.row_bytes);
  if (code == ZPS_OK) code = zps_buffer_need(&scratch->cursors, n_views, sizeof(struct zps_rank_cursor));
  if (code != ZPS_OK) return code;

  struct zps_rank_cursor *const cursors = scratch->cursors.data;
  for (unsigned i = 0; i < n_views; i++) zps_rank_cursor_init(&cursors[i], &views[i]);
  reduction.sums = scratch->sums.data;
  reduction.room = scratch->room.data;
  uint32_t *const index = scratch->index.data;
  if (codec == ZPS_CODEC_BITMAP) memset(index, 0, index_bytes);
  for (uint32_t base; next_chunk(&reduction, cursors, n_views, &base);) {
    const uint32_t end = m - base > reduction.chunk_rows ? base + reduction.chunk_rows : m;
    uint32_t *const touched = codec == ZPS_CODEC_BITMAP ? index + base / 32 : scratch->touched.data;
    if (singles) {
      add_singles(cursors, n_views, base, end, scratch->singles.data);
      take_singles(&reduction, scratch, base, end);
    } else {
      add_chunk(&reduction, cursors, n_views, base, end, touched);
      take_chunk(&reduction, base, end, touched, index);
    }
  }
  const uint64_t values_bytes = reduction.z * reduction.row_bytes;
  uint64_t coded_bytes = index_bytes;
  if (codec != ZPS_CODEC_BITMAP)
    coded_bytes = zps_codec_index_encode(codec, m, index, reduction.z, reduction.out + values_bytes);
  else if (coded_bytes)
    memcpy(reduction.out + values_bytes, index, coded_bytes);
  *nnz_p = reduction.z;
  *len_bytes_p = values_bytes + coded_bytes;
  return ZPS_OK;
}
