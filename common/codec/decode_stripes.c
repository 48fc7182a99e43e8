/*
 * Rows of several stripes in ascending order, one stripe at a time: each is put in order as if it were a tensor of its
 * own; then all have chunks of the tensor in turns, which are copied from where each has come.
 */
#include <string.h>

#include "common/base/bisect.h"
#include "common/codec/decode.h"

enum {
  NARROW_BYTES = 8, /* wider rows take longer to copy once more than to be put in order */
  SPANS_PER_THREAD = 8,
  SPAN_FOUND_MIN = 16384, /* with fewer rows one thread is done before another has begun */
};

#define ROWS_MAX (1ull << 32) /* more would have chunks without end that have no row */

struct join {
  const struct zps_partition *part;
  const struct zps_decode_ordered *ordered; /* [stripes] */
  uint64_t row_bytes, n_chunks;
  int64_t *rows;
  char *values;
  unsigned n_spans;
};

bool zps_decode_orders_stripes(const struct zps_partition *part, uint64_t row_bytes) {
  return part->stripe_bits > 0 && row_bytes <= NARROW_BYTES && part->rows <= ROWS_MAX;
}

/* The first of ascending rows, from `at` on, that is not below the limit. */
static uint64_t find(const int64_t *rows, uint64_t at, uint64_t n, int64_t limit) {
  uint64_t step = 1;
  while (n - at > step && rows[at + step] < limit) {
    at += step;
    step *= 2;
  }
  uint64_t end = n - at > step ? at + step : n;
  zps_bisect(at, end, middle, rows[middle] < limit);
  return at;
}

/* The places at which each of the stripe's chunks begins, and the last one ends. */
static zps_err_t find_chunks(const struct zps_partition *alone, uint32_t chunk_bits,
                             struct zps_decode_ordered *ordered) {
  const uint64_t n_chunks = ((alone->rows - 1) >> chunk_bits) + 1;
  if (zps_buffer_need(&ordered->chunks, n_chunks + 1, sizeof(uint64_t)) != ZPS_OK) return ZPS_ERR_NOMEM;
  uint64_t *const starts = ordered->chunks.data;
  starts[0] = 0;
  for (uint64_t chunk = 0; chunk < n_chunks; chunk++)
    starts[chunk + 1] = find(ordered->rows.data, starts[chunk], ordered->n, (int64_t)((chunk + 1) << chunk_bits));
  return ZPS_OK;
}

/* The first that is free: there are as many as stripes. */
static unsigned take_scratch(struct zps_decode_stripes *stripes) {
  unsigned taken = atomic_load(&stripes->taken), i;
  do {
    i = (unsigned)__builtin_ctz(~taken);
  } while (!atomic_compare_exchange_weak(&stripes->taken, &taken, taken | 1u << i));
  return i;
}

static void give_scratch(struct zps_decode_stripes *stripes, unsigned i) {
  atomic_fetch_and(&stripes->taken, ~(1u << i));
}

zps_err_t zps_decode_order_stripe(const struct zps_partition *part, uint32_t stripe, const struct zps_slice_view *views,
                                  struct zps_decode_stripes *stripes) {
  struct zps_decode_ordered *const ordered = &stripes->ordered[stripe];
  const struct zps_partition alone = zps_partition_stripe(part, stripe);
  views += stripe * part->stripe_parts;
  const uint64_t row_bytes = zps_row_bytes(views->width, views->dtype);
  ordered->n = 0;
  for (uint32_t p = 0; p < alone.n_parts; p++) ordered->n += views[p].z;
  if (zps_buffer_need(&ordered->rows, ordered->n, sizeof(int64_t)) != ZPS_OK ||
      zps_buffer_need(&ordered->values, ordered->n, row_bytes) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  const unsigned i = take_scratch(stripes);
  const zps_err_t code =
      zps_decode_rows(&alone, views, NULL, &stripes->scratch[i], ordered->rows.data, ordered->values.data);
  give_scratch(stripes, i);
  return code == ZPS_OK ? find_chunks(&alone, part->chunk_bits, ordered) : code;
}

void zps_decode_stripes_fini(struct zps_decode_stripes *stripes) {
  for (unsigned i = 0; i < ZPS_PARTITION_STRIPES_MAX; i++) {
    zps_buffer_fini(&stripes->ordered[i].rows);
    zps_buffer_fini(&stripes->ordered[i].values);
    zps_buffer_fini(&stripes->ordered[i].chunks);
    zps_decode_scratch_fini(&stripes->scratch[i]);
  }
}

/* Chunks [first, end). */
static void join_chunks(const struct join *join, uint64_t first, uint64_t end) {
  const struct zps_partition *const part = join->part;
  const uint32_t n_stripes = zps_partition_stripes(part);
  uint64_t place = 0;
  for (uint32_t stripe = 0; stripe < n_stripes; stripe++) {
    const uint64_t *const starts = join->ordered[stripe].chunks.data;
    place += starts[(first + n_stripes - 1 - stripe) >> part->stripe_bits];
  }
  for (uint64_t chunk = first; chunk < end; chunk++) {
    const uint32_t stripe = (uint32_t)chunk & (n_stripes - 1);
    const struct zps_decode_ordered *const ordered = &join->ordered[stripe];
    const uint64_t inner = chunk >> part->stripe_bits;
    const uint64_t *const starts = ordered->chunks.data;
    const uint64_t from = starts[inner], n = starts[inner + 1] - from;
    const int64_t shift = (int64_t)((chunk - inner) << part->chunk_bits);
    const int64_t *const rows = (const int64_t *)ordered->rows.data + from;
    int64_t *const to = join->rows + place;
    for (uint64_t i = 0; i < n; i++) to[i] = rows[i] + shift;
    memcpy(join->values + place * join->row_bytes, (const char *)ordered->values.data + from * join->row_bytes,
           n * join->row_bytes);
    place += n;
  }
}

static void join_span(void *ctx, unsigned i) {
  const struct join *const join = ctx;
  join_chunks(join, join->n_chunks * i / join->n_spans, join->n_chunks * (i + 1) / join->n_spans);
}

void zps_decode_join_stripes(const struct zps_partition *part, const struct zps_decode_stripes *stripes,
                             uint64_t row_bytes, struct zps_workpool *pool, int64_t *rows, void *values) {
  uint64_t n = 0;
  for (uint32_t stripe = 0; stripe < zps_partition_stripes(part); stripe++) n += stripes->ordered[stripe].n;
  const unsigned most = pool ? (1 + zps_workpool_threads(pool)) * SPANS_PER_THREAD : 1;
  struct join join = {.part = part,
                      .ordered = stripes->ordered,
                      .row_bytes = row_bytes,
                      .n_chunks = ((part->rows - 1) >> part->chunk_bits) + 1,
                      .rows = rows,
                      .values = values,
                      .n_spans = n / SPAN_FOUND_MIN < most ? (unsigned)(n / SPAN_FOUND_MIN) + 1 : most};
  zps_workpool_for(pool, join.n_spans, join_span, &join);
}
