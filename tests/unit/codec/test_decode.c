#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/decode.h"
#include "common/codec/simd/simd.h"
#include "tests/unit/codec/codec_reference.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Stripe by stripe, over the old contents, and up to an array's end somewhere in the last row. */
static void check_stripes(const struct zps_partition *part, const struct zps_slice_view *views, const char *want,
                          uint64_t len) {
  const uint64_t ends[] = {len, len - 1};
  char *const dense = malloc(len + 1);
  assert_non_null(dense);
  for (unsigned i = 0; i < COUNT(ends); i++) {
    memset(dense, 0xee, len + 1);
    for (uint32_t stripe = zps_partition_stripes(part); stripe-- > 0;)
      assert_int_equal(zps_decode_dense_stripe(part, stripe, views, dense, ends[i]), ZPS_OK);
    const uint64_t whole = ends[i] - ends[i] % zps_dtype_size(views->dtype); /* of elements */
    ref_assert_same(dense, want, whole);
    assert_int_equal((unsigned char)dense[len], 0xee);
  }
  free(dense);
}

static void check_dense(const struct zps_partition *part, const struct zps_slice_view *views,
                        const struct ref_gradient *gradient) {
  const uint64_t len = gradient->rows * ref_row_bytes(gradient);
  char *const dense = malloc(len + 1);
  assert_non_null(dense);
  memset(dense, 0xee, len + 1);
  for (unsigned piece = 0; piece < 3; piece++) zps_decode_dense_clear(dense, len, piece, 3);
  if (len > 0) assert_int_equal(dense[0], 0);
  if (len > 1) ref_assert_same(dense + 1, dense, len - 1); /* so all are 0 */
  for (uint32_t p = 0; p < part->n_parts; p++) zps_decode_dense(part, p, &views[p], dense);
  assert_int_equal((unsigned char)dense[len], 0xee);
  for (uint64_t row = 0; row < gradient->rows; row++) {
    const uint64_t at = row * ref_row_bytes(gradient);
    if (gradient->present[row])
      ref_assert_same(dense + at, (const char *)gradient->dense + at, ref_row_bytes(gradient));
    else
      assert_true(ref_is_zero(gradient->dtype, dense + at, gradient->width));
  }
  check_stripes(part, views, dense, len);
  /* An array may end in the last row. */
  char *const cut = malloc(len + 1);
  assert_non_null(cut);
  for (uint32_t kept = 0; kept < gradient->width; kept += gradient->width / 2 + 1) {
    const uint64_t n = len - ref_row_bytes(gradient) + kept * zps_dtype_size(gradient->dtype);
    memset(cut, 0xee, len + 1);
    zps_decode_dense_clear(cut, n, 0, 1);
    for (uint32_t p = 0; p < part->n_parts; p++) zps_decode_dense_cut(part, p, &views[p], cut, n);
    ref_assert_same(cut, dense, n);
    assert_int_equal((unsigned char)cut[n], 0xee);
  }
  free(cut);
  free(dense);
}

/* These are the gradient's rows, in order. */
static void check_listed(const struct ref_gradient *gradient, uint64_t n, const int64_t *rows, const char *values) {
  const size_t row_bytes = ref_row_bytes(gradient);
  uint64_t at = 0;
  for (uint64_t row = 0; row < gradient->rows; row++) {
    if (!gradient->present[row]) continue;
    assert_true(at < n);
    if (rows[at] != (int64_t)row) assert_int_equal(rows[at], row);
    ref_assert_same(values + at * row_bytes, (const char *)gradient->dense + row * row_bytes, row_bytes);
    at++;
  }
  assert_int_equal(at, n);
}

static void check_rows(const struct zps_partition *part, const struct zps_slice_view *views, struct zps_workpool *pool,
                       struct zps_decode_scratch *scratch, const struct ref_gradient *gradient) {
  const size_t row_bytes = ref_row_bytes(gradient);
  uint64_t n = 0;
  for (uint32_t p = 0; p < part->n_parts; p++) n += views[p].z;
  int64_t *const rows = malloc(n * sizeof *rows + 1);
  char *const values = malloc(n * row_bytes + 1);
  assert_true(rows && values);
  assert_int_equal(zps_decode_rows(part, views, pool, scratch, rows, values), ZPS_OK);
  check_listed(gradient, n, rows, values);
  free(rows);
  free(values);
}

struct ordering {
  const struct zps_partition *part;
  const struct zps_slice_view *views;
  struct zps_decode_stripes *stripes;
  atomic_uint n_failed;
};

static void order_stripe(void *ctx, unsigned i) {
  struct ordering *const ordering = ctx;
  const uint32_t stripe = zps_partition_stripes(ordering->part) - 1 - i;
  if (zps_decode_order_stripe(ordering->part, stripe, ordering->views, ordering->stripes) != ZPS_OK)
    atomic_fetch_add(&ordering->n_failed, 1);
}

/* Stripe by stripe, in an order in which they do not stand, several at once. */
static void check_rows_by_stripe(const struct zps_partition *part, const struct zps_slice_view *views,
                                 struct zps_workpool *pool, struct zps_decode_stripes *stripes,
                                 const struct ref_gradient *gradient) {
  const uint32_t n_stripes = zps_partition_stripes(part);
  const size_t row_bytes = ref_row_bytes(gradient);
  struct ordering ordering = {.part = part, .views = views, .stripes = stripes};
  uint64_t n = 0;
  zps_workpool_for(pool, n_stripes, order_stripe, &ordering);
  assert_int_equal(ordering.n_failed, 0);
  assert_int_equal(stripes->taken, 0);
  for (uint32_t i = 0; i < n_stripes; i++) n += stripes->ordered[i].n;
  int64_t *const rows = malloc(n * sizeof *rows + 1);
  char *const values = malloc(n * row_bytes + 1);
  assert_true(rows && values);
  zps_decode_join_stripes(part, stripes, row_bytes, pool, rows, values);
  check_listed(gradient, n, rows, values);
  free(rows);
  free(values);
}

struct tools {
  struct zps_decode_stripes stripes;
  struct zps_decode_scratch scratch; /* the next one finds the leftovers of the one before */
  struct zps_encoder *encoder;
  struct zps_workpool *pool;
};

static void check(struct tools *tools, const struct ref_gradient *gradient, uint32_t n_parts, uint32_t block_bits,
                  enum zps_codec codec) {
  struct zps_partition part;
  struct zps_murmur *const murmur = ref_partition(gradient->rows, n_parts, block_bits, n_parts, &part);
  const struct zps_encode_input input = ref_input(gradient, &part);
  struct zps_encoder *const encoder = tools->encoder;
  assert_int_equal(zps_encoder_scan(encoder, &input, NULL, NULL), ZPS_OK);
  struct zps_slice_view *const views = calloc(n_parts, sizeof *views);
  void **const slices = calloc(n_parts, sizeof *slices);
  assert_true(views && slices);
  for (uint32_t p = 0; p < n_parts; p++) {
    const uint32_t m = zps_partition_size(&part, p), z = zps_encoder_nnz(encoder, p);
    uint64_t len;
    assert_int_equal(zps_encoder_choose(encoder, p, 1u << codec, &len), codec);
    slices[p] = malloc(len + 1);
    assert_non_null(slices[p]);
    zps_encoder_write(encoder, p, codec, slices[p]);
    assert_int_equal(zps_slice_view_init(&views[p], codec, m, z, gradient->width, gradient->dtype, ZPS_VALUES_RAW,
                                         slices[p], len, NULL),
                     ZPS_OK);
  }
  const struct zps_simd *simd;
  for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
    zps_simd_use(simd);
    check_rows(&part, views, tools->pool, &tools->scratch, gradient);
    check_rows_by_stripe(&part, views, tools->pool, &tools->stripes, gradient);
    if (thin_skips_alone()) continue;
    check_dense(&part, views, gradient);
    check_rows(&part, views, NULL, &tools->scratch, gradient);
    check_rows_by_stripe(&part, views, NULL, &tools->stripes, gradient);
  }
  zps_simd_use(NULL);
  for (uint32_t p = 0; p < n_parts; p++) free(slices[p]);
  free(slices);
  free(views);
  zps_murmur_destroy(murmur);
}

static void results_equal_what_was_encoded(void **state) {
  static const double densities[] = {0, 1e-4, 0.01, 0.3, 1};
  static const uint32_t widths[] = {1, 3, 64};
  static const uint64_t sizes[] = {1, 200, 6000};
  struct zps_rng rng = {.state = 3};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    for (unsigned d = 0; d < COUNT(densities); d++) {
      for (unsigned w = 0; w < COUNT(widths); w++) {
        for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_U8; dtype++) {
          if (thin_skips()) continue;
          struct ref_gradient gradient = ref_dense(&rng, sizes[s], widths[w], dtype, densities[d]);
          for (enum zps_codec codec = ZPS_CODEC_COO; codec < ZPS_CODEC_COUNT; codec++) {
            check(*state, &gradient, 1, 0, codec);
            check(*state, &gradient, 16, 3, codec);
            check(*state, &gradient, 11, 10, codec);
            check(*state, &gradient, 257, 0, codec);
            check(*state, &gradient, 16, REF_HASHED, codec);
          }
          ref_free(&gradient);
        }
      }
    }
  }
}

/* Several windows for each of several threads; the last one is not full. */
static void results_of_many_rows_equal_what_was_encoded(void **state) {
  static const double densities[] = {0.001, 0.01, 0.4, 1};
  struct zps_rng rng = {.state = 4};
  for (unsigned d = 0; d < COUNT(densities); d++) {
    for (uint32_t width = 1; width <= 3; width += 2) {
      if (thin_skips()) continue;
      struct ref_gradient gradient = ref_dense(&rng, 201001, width, ZPS_DTYPE_F32, densities[d]);
      check(*state, &gradient, 16, 0, ZPS_CODEC_RICE);
      check(*state, &gradient, 7, 3, ZPS_CODEC_HOLES);
      check(*state, &gradient, 40, 10, ZPS_CODEC_BITMAP);
      check(*state, &gradient, 3, 17, ZPS_CODEC_COO);
      check(*state, &gradient, 16, REF_HASHED, ZPS_CODEC_RICE);
      check(*state, &gradient, 9000, REF_HASHED, ZPS_CODEC_COO);
      ref_free(&gradient);
    }
  }
}

/* Windows of one chunk, of several, and of all stripes' chunks, and rows so few that they are sorted. */
static void results_of_stripes_equal_what_was_encoded(void **state) {
  enum { ROWS = (2 << 20) + 3 * (1 << 16) + 777, MANY_ROWS = (4 << 20) - 5 };
  static const double densities[] = {0.001, 0.004, 0.3};
  struct zps_rng rng = {.state = 6};
  for (unsigned d = 0; d < COUNT(densities); d++) {
    struct ref_gradient gradient = ref_dense(&rng, ROWS, 1, ZPS_DTYPE_F32, densities[d]);
    check(*state, &gradient, 22, 0, ZPS_CODEC_RICE);
    ref_free(&gradient);
  }
  struct ref_gradient gradient = ref_dense(&rng, MANY_ROWS, 1, ZPS_DTYPE_F32, 0.05);
  check(*state, &gradient, 512, 0, ZPS_CODEC_COO);
  ref_free(&gradient);
}

static void clearing_covers_every_byte_once(void **state) {
  (void)state;
  enum { LEN = 5 * 4096 + 17 };
  static char bytes[LEN + 1];
  static const unsigned pieces[] = {1, 2, 5, 6, 100};
  for (unsigned i = 0; i < COUNT(pieces); i++) {
    static char before[LEN + 1];
    memset(bytes, 1, sizeof bytes);
    for (unsigned piece = 0; piece < pieces[i]; piece++) {
      memcpy(before, bytes, sizeof bytes);
      zps_decode_dense_clear(bytes, LEN, piece, pieces[i]);
      for (unsigned at = 0; at <= LEN; at++) {
        if (bytes[at] == before[at]) continue;
        assert_int_equal(bytes[at], 0);
        assert_int_equal(before[at], 1); /* not cleared before */
        bytes[at] = 2;
      }
    }
    for (unsigned at = 0; at < LEN; at++) assert_int_equal(bytes[at], 2);
    assert_int_equal(bytes[LEN], 1);
  }
  zps_decode_dense_clear(NULL, 0, 0, 1);
}

/* Larger than the caches, and beginning and ending within a cache line. */
static void clearing_covers_large_arrays(void **state) {
  (void)state;
  enum { LEN = (33 << 20) + 5 };
  char *const memory = malloc(LEN + 2), *const bytes = memory + 1;
  assert_non_null(memory);
  memset(memory, 1, LEN + 2);
  for (unsigned piece = 0; piece < 3; piece++) {
    assert_int_equal(bytes[(uint64_t)LEN * piece / 3 + 4096], 1);
    zps_decode_dense_clear(bytes, LEN, piece, 3);
  }
  for (unsigned at = 0; at < LEN; at++)
    if (bytes[at] != 0) fail_msg("byte %u is %d", at, bytes[at]);
  assert_int_equal(memory[0], 1);
  assert_int_equal(bytes[LEN], 1);
  free(memory);
}

static int setup(void **state) {
  static struct tools tools;
  *state = &tools;
  return zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &tools.encoder) == ZPS_OK &&
                 zps_workpool_create(3, "decode", &tools.pool) == ZPS_OK
             ? 0
             : -1;
}

static int teardown(void **state) {
  struct tools *const tools = *state;
  zps_decode_scratch_fini(&tools->scratch);
  zps_decode_stripes_fini(&tools->stripes);
  zps_encoder_destroy(tools->encoder);
  zps_workpool_destroy(tools->pool);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_equal_what_was_encoded),
      cmocka_unit_test(results_of_many_rows_equal_what_was_encoded),
      cmocka_unit_test(results_of_stripes_equal_what_was_encoded),
      cmocka_unit_test(clearing_covers_every_byte_once),
      cmocka_unit_test(clearing_covers_large_arrays),
  };
  return cmocka_run_group_tests_name("decode", tests, setup, teardown);
}
