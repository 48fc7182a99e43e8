/* Arrays of halves against the floats that they stand for: what is encoded of them, added up, decoded and delivered to
 * them, with every instruction set. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/decode.h"
#include "common/codec/deliver.h"
#include "common/codec/reduce.h"
#include "common/codec/simd/simd.h"
#include "tests/support/halves.h"
#include "tests/unit/codec/encoders.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { PARTS_MAX = 8, ALL = (1u << ZPS_CODEC_COUNT) - 1 };

static const enum zps_dtype dtypes[] = {ZPS_DTYPE_BF16, ZPS_DTYPE_F16};

/* A gradient, and the same in floats. */
struct twins {
  enum zps_dtype dtype;
  uint32_t width;
  uint64_t n; /* rows, or entries */
  int64_t *rows;
  uint16_t *halves;
  float *floats;
};

static struct twins make_twins(struct zps_rng *rng, enum zps_dtype dtype, uint64_t n_rows, uint32_t width, bool coo,
                               double density) {
  struct twins twins = {.dtype = dtype, .width = width, .n = coo ? (uint64_t)(density * (double)n_rows) : n_rows};
  const uint64_t n_values = twins.n * width;
  twins.halves = calloc(n_values + 1, sizeof *twins.halves);
  twins.floats = calloc(n_values + 1, sizeof *twins.floats);
  if (coo) twins.rows = calloc(twins.n + 1, sizeof *twins.rows);
  assert_true(twins.halves && twins.floats && (!coo || twins.rows));
  for (uint64_t i = 0; i < twins.n; i++) {
    const bool is_zero = coo ? zps_rng_below(rng, 8) == 0 : zps_rng_unit(rng) >= density;
    for (uint32_t j = 0; j < width; j++)
      twins.halves[i * width + j] = is_zero ? (uint16_t)(zps_rng_below(rng, 2) << 15) : halves_draw(rng, dtype);
    if (coo) twins.rows[i] = (int64_t)zps_rng_below(rng, zps_rng_below(rng, 3) ? n_rows : n_rows / 50 + 1);
  }
  for (uint64_t i = 0; i < n_values; i++) twins.floats[i] = halves_widen(dtype, twins.halves[i]);
  return twins;
}

static void free_twins(struct twins *twins) {
  free(twins->rows);
  free(twins->halves);
  free(twins->floats);
}

static struct zps_encode_input input_of(const struct twins *twins, const struct zps_partition *part, bool as_floats) {
  return (struct zps_encode_input){.part = part,
                                   .width = twins->width,
                                   .dtype = as_floats ? ZPS_DTYPE_F32 : twins->dtype,
                                   .value_codec = zps_values_own(twins->dtype),
                                   .origin = {.seed = 7, .step = 3, .rank = 1},
                                   .values = as_floats ? (const void *)twins->floats : twins->halves,
                                   .rows = twins->rows,
                                   .n_entries = twins->n};
}

struct slice {
  enum zps_codec codec;
  enum zps_value_codec value_codec;
  uint32_t nnz, m;
  uint64_t len_bytes;
  void *bytes;
};

static struct slice write_slice(const struct zps_encoder *encoder, const struct zps_partition *part, uint32_t p) {
  struct slice slice = {.value_codec = zps_encoder_value_codec(encoder, p),
                        .nnz = zps_encoder_nnz(encoder, p),
                        .m = zps_partition_size(part, p)};
  slice.codec = zps_encoder_choose(encoder, p, ALL, &slice.len_bytes);
  slice.bytes = malloc(slice.len_bytes + 1); /* nothing is written beyond it */
  assert_non_null(slice.bytes);
  zps_encoder_write(encoder, p, slice.codec, slice.bytes);
  return slice;
}

static struct zps_slice_view view_of(const struct slice *slice, uint32_t width, enum zps_dtype dtype) {
  struct zps_slice_view view;
  struct zps_error error;
  if (zps_slice_view_init(&view, slice->codec, slice->m, slice->nnz, width, dtype, slice->value_codec, slice->bytes,
                          slice->len_bytes, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  return view;
}

/* Wide where sums are no halves, else the bytes of floats that travel as halves. */
static void expect_same_slices(struct zps_encoder *encoder, struct zps_encoder *other, struct zps_workpool *pool,
                               const struct zps_encode_input *halves, const struct zps_encode_input *floats,
                               unsigned *n_wide) {
  const struct zps_partition *const part = halves->part;
  struct zps_encode_input raw = *floats;
  struct slice slices[PARTS_MAX];
  bool wide[PARTS_MAX];
  raw.value_codec = ZPS_VALUES_RAW;
  assert_int_equal(zps_encoder_scan(encoder, halves, pool, NULL), ZPS_OK);
  assert_int_equal(zps_encoder_scan(other, &raw, NULL, NULL), ZPS_OK);
  for (uint32_t p = 0; p < part->n_parts; p++) {
    slices[p] = write_slice(encoder, part, p);
    const struct slice want = write_slice(other, part, p);
    wide[p] = false;
    for (uint64_t i = 0; i < (uint64_t)want.nnz * halves->width; i++)
      wide[p] |= !halves_hold(halves->dtype, ((const float *)want.bytes)[i]);
    wide[p] &= halves->value_codec == zps_values_own(halves->dtype);
    *n_wide += wide[p];
    assert_int_equal(slices[p].value_codec, wide[p] ? ZPS_VALUES_RAW : halves->value_codec);
    if (wide[p]) assert_int_equal(slices[p].len_bytes, want.len_bytes);
    if (wide[p]) assert_memory_equal(slices[p].bytes, want.bytes, want.len_bytes);
    free(want.bytes);
  }
  assert_int_equal(zps_encoder_scan(other, floats, NULL, NULL), ZPS_OK);
  for (uint32_t p = 0; p < part->n_parts; p++) {
    const struct slice want = write_slice(other, part, p);
    assert_int_equal(slices[p].nnz, want.nnz);
    assert_int_equal(slices[p].codec, want.codec);
    if (!wide[p]) assert_int_equal(slices[p].len_bytes, want.len_bytes);
    if (!wide[p]) assert_memory_equal(slices[p].bytes, want.bytes, want.len_bytes);
    free(want.bytes);
    free(slices[p].bytes);
  }
}

static void encoded_as_the_floats_are(void **state) {
  struct encoders *const encoders = *state;
  static const struct {
    uint64_t rows;
    uint32_t width, n_parts;
    double density;
  } shapes[] = {{1, 1, 1, 1},      {1000, 1, 4, 0.3}, {997, 2, 3, 0.1},     {3001, 3, 8, 0.9},
                {200, 40, 2, 0.5}, {30, 700, 3, 0.5}, {20000, 1, 1, 0.001}, {20000, 1, 8, 0.6}};
  struct zps_rng rng = {.state = 11};
  struct zps_encoder *other;
  unsigned n_wide = 0;
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &other), ZPS_OK);
  for (unsigned i = 0; i < COUNT(shapes) * COUNT(dtypes) * 4; i++) {
    const enum zps_dtype dtype = dtypes[i % 2];
    const bool coo = i / 2 % 2, all_rows = i / 4 % 2;
    const unsigned s = i / 8;
    struct zps_partition part;
    assert_int_equal(zps_partition_init(&part, shapes[s].rows, shapes[s].n_parts, 0, 5, NULL), ZPS_OK);
    struct twins twins = make_twins(&rng, dtype, shapes[s].rows, shapes[s].width, coo, shapes[s].density);
    struct zps_encode_input halves = input_of(&twins, &part, false), floats = input_of(&twins, &part, true);
    halves.all_rows = floats.all_rows = all_rows;
    for (unsigned way = 0; way < 4; way++) {
      const enum zps_value_codec codecs[] = {zps_values_own(dtype), ZPS_VALUES_QSGD8};
      halves.value_codec = floats.value_codec = codecs[way / 2];
      expect_same_slices(encoders->ordered, other, way % 2 ? encoders->pool : NULL, &halves, &floats, &n_wide);
      if (!all_rows) expect_same_slices(encoders->hierarchical, other, NULL, &halves, &floats, &n_wide);
    }
    free_twins(&twins);
  }
  assert_true(n_wide > 100);
  zps_encoder_destroy(other);
}

/* The last row lies apart, as that of blocks. */
static void a_last_row_apart(void **state) {
  struct encoders *const encoders = *state;
  enum { ROWS = 5, WIDTH = 256 };
  struct zps_rng rng = {.state = 12};
  struct zps_partition part;
  unsigned n_wide = 0;
  assert_int_equal(zps_partition_init(&part, ROWS, 2, 0, 5, NULL), ZPS_OK);
  for (unsigned i = 0; i < COUNT(dtypes); i++) {
    struct twins twins = make_twins(&rng, dtypes[i], ROWS, WIDTH, false, 1);
    struct zps_encode_input halves = input_of(&twins, &part, false), floats = input_of(&twins, &part, true);
    const uint64_t at = (uint64_t)(ROWS - 1) * WIDTH;
    uint16_t last[WIDTH];
    memcpy(last, twins.halves + at, sizeof last);
    memset(twins.halves + at, 0xff, sizeof last);
    halves.last_row = last;
    expect_same_slices(encoders->ordered, encoders->hierarchical, NULL, &halves, &floats, &n_wide);
    free_twins(&twins);
  }
  assert_int_equal(n_wide, 0);
}

/* Contributions of halves and of floats, wide ones, together. */
static void added_up_as_floats(void **state) {
  enum { VIEWS = 5 };
  struct encoders *const encoders = *state;
  struct zps_rng rng = {.state = 13};
  struct zps_reduce_scratch *scratch;
  assert_int_equal(zps_reduce_scratch_create(&scratch), ZPS_OK);
  for (unsigned i = 0; i < 24; i++) {
    const enum zps_dtype dtype = dtypes[i % 2];
    const enum zps_op op = i % 3 == 0 ? ZPS_OP_SUM : i % 3 == 1 ? ZPS_OP_MEAN : ZPS_OP_MAX;
    const uint32_t width = i / 6 % 2 ? 3 : 1, m = 5000;
    struct zps_partition part;
    struct slice slices[2][VIEWS];
    struct zps_slice_view views[2][VIEWS];
    assert_int_equal(zps_partition_init(&part, m, 1, 0, 5, NULL), ZPS_OK);
    for (unsigned k = 0; k < VIEWS; k++) {
      struct twins twins = make_twins(&rng, dtype, m, width, k % 2, 0.1 + 0.2 * k);
      for (unsigned as_floats = 0; as_floats < 2; as_floats++) {
        struct zps_encode_input input = input_of(&twins, &part, as_floats);
        if (as_floats) input.value_codec = ZPS_VALUES_RAW;
        assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, NULL), ZPS_OK);
        slices[as_floats][k] = write_slice(encoders->ordered, &part, 0);
        views[as_floats][k] = view_of(&slices[as_floats][k], width, ZPS_DTYPE_F32);
      }
      free_twins(&twins);
    }
    void *sums[2];
    uint32_t nnz[2];
    uint64_t len[2];
    for (unsigned as_floats = 0; as_floats < 2; as_floats++) {
      sums[as_floats] = malloc(zps_reduce_bound(views[as_floats], VIEWS, ZPS_CODEC_COO));
      assert_int_equal(zps_reduce(scratch, views[as_floats], VIEWS, op, ZPS_CODEC_COO, encoders->pool, sums[as_floats],
                                  &nnz[as_floats], &len[as_floats]),
                       ZPS_OK);
    }
    assert_int_equal(nnz[0], nnz[1]);
    assert_int_equal(len[0], len[1]);
    assert_memory_equal(sums[0], sums[1], len[0]);
    for (unsigned k = 0; k < 2 * VIEWS; k++) free(slices[k / VIEWS][k % VIEWS].bytes);
    free(sums[0]);
    free(sums[1]);
  }
  zps_reduce_scratch_destroy(scratch);
}

static void expect_narrowed(enum zps_dtype dtype, const void *halves, const float *floats, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) assert_int_equal(((const uint16_t *)halves)[i], halves_narrow(dtype, floats[i]));
}

/* Sums that arrive in any coding: dense, up to an element of the last row, and as rows. */
static void decoded_to_halves(void **state) {
  struct encoders *const encoders = *state;
  struct zps_rng rng = {.state = 14};
  for (unsigned i = 0; i < 48; i++) {
    const enum zps_dtype dtype = dtypes[i % 2];
    const enum zps_value_codec codecs[] = {zps_values_own(dtype), ZPS_VALUES_QSGD4, ZPS_VALUES_QSGD8};
    const uint32_t width = (uint32_t[]){1, 2, 3, 33}[i / 2 % 4], n_parts = i / 8 % 2 ? 4 : 1;
    const uint64_t n_rows = 600, n_values = n_rows * width;
    struct zps_partition part;
    struct slice slices[PARTS_MAX];
    struct zps_slice_view halves[PARTS_MAX], floats[PARTS_MAX];
    struct twins twins = make_twins(&rng, dtype, n_rows, width, false, 0.4);
    struct zps_encode_input input = input_of(&twins, &part, true);
    input.value_codec = codecs[i / 16];
    assert_int_equal(zps_partition_init(&part, n_rows, n_parts, 0, 5, NULL), ZPS_OK);
    assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, NULL), ZPS_OK);
    for (uint32_t p = 0; p < n_parts; p++) {
      slices[p] = write_slice(encoders->ordered, &part, p);
      halves[p] = view_of(&slices[p], width, dtype);
      floats[p] = view_of(&slices[p], width, ZPS_DTYPE_F32);
    }
    uint16_t *const dense = calloc(n_values, sizeof *dense), *const values = calloc(n_values, sizeof *values);
    float *const want = calloc(n_values, sizeof *want), *const want_values = calloc(n_values, sizeof *want);
    int64_t *const rows = calloc(n_rows, sizeof *rows), *const want_rows = calloc(n_rows, sizeof *rows);
    struct zps_decode_scratch scratch = {0};
    uint64_t n = 0;
    for (uint32_t p = 0; p < n_parts; p++) {
      zps_decode_dense_cut(&part, p, &halves[p], dense, 2 * (n_values - 1));
      zps_decode_dense(&part, p, &floats[p], want);
      n += slices[p].nnz;
    }
    expect_narrowed(dtype, dense, want, n_values - 1);
    assert_int_equal(dense[n_values - 1], 0);
    assert_int_equal(zps_decode_rows(&part, halves, NULL, &scratch, rows, values), ZPS_OK);
    assert_int_equal(zps_decode_rows(&part, floats, NULL, &scratch, want_rows, want_values), ZPS_OK);
    assert_memory_equal(rows, want_rows, n * sizeof *rows);
    expect_narrowed(dtype, values, want_values, n * width);
    for (uint32_t p = 0; p < n_parts; p++) free(slices[p].bytes);
    void *const all[] = {dense, values, want, want_values, rows, want_rows};
    for (unsigned k = 0; k < COUNT(all); k++) free(all[k]);
    zps_decode_scratch_fini(&scratch);
    free_twins(&twins);
  }
}

/* Sums between ranks: rounded once, behind the division. */
static void delivered_to_halves(void **state) {
  enum { VIEWS_MAX = 3 };
  struct encoders *const encoders = *state;
  struct zps_rng rng = {.state = 15};
  struct zps_deliver_scratch *scratch;
  assert_int_equal(zps_deliver_scratch_create(&scratch), ZPS_OK);
  for (unsigned i = 0; i < 48; i++) {
    const enum zps_dtype dtype = dtypes[i % 2];
    const uint32_t width = i / 2 % 2 ? 5 : 1, m = 3000, n_views = 1 + i / 4 % VIEWS_MAX;
    const bool is_large = i / 12 % 2;
    struct zps_partition part;
    struct slice slices[VIEWS_MAX];
    struct zps_slice_view views[VIEWS_MAX];
    assert_int_equal(zps_partition_init(&part, m, 1, 0, 5, NULL), ZPS_OK);
    for (unsigned k = 0; k < n_views; k++) {
      struct twins twins = make_twins(&rng, dtype, m, width, false, i % 3 ? 0.3 : 1);
      const struct zps_encode_input input = input_of(&twins, &part, false);
      assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, NULL), ZPS_OK);
      slices[k] = write_slice(encoders->ordered, &part, 0);
      views[k] = view_of(&slices[k], width, ZPS_DTYPE_F32);
      free_twins(&twins);
    }
    uint16_t *const dense = calloc((uint64_t)m * width, sizeof *dense);
    float *const want = calloc((uint64_t)m * width, sizeof *want);
    struct zps_deliver deliver = {.views = views,
                                  .n_views = n_views,
                                  .divisor = n_views,
                                  .dtype = ZPS_DTYPE_F32,
                                  .dense = want,
                                  .is_large = is_large,
                                  .end = m};
    uint64_t n, n_want;
    assert_int_equal(zps_deliver(scratch, &deliver, &n_want), ZPS_OK);
    deliver.dtype = dtype;
    deliver.dense = dense;
    assert_int_equal(zps_deliver(scratch, &deliver, &n), ZPS_OK);
    assert_int_equal(n, n_want);
    for (uint64_t j = 0; j < (uint64_t)m * width; j++) { /* a single one that has all rows is copied, with each -0.0 */
      const uint16_t wanted = halves_narrow(dtype, want[j]);
      if (dense[j] != 0x8000 || wanted != 0) assert_int_equal(dense[j], wanted);
    }
    for (unsigned k = 0; k < n_views; k++) free(slices[k].bytes);
    free(dense);
    free(want);
  }
  zps_deliver_scratch_destroy(scratch);
}

static void expect_support(enum zps_dtype dtype, uint16_t half, float value) {
  assert_int_equal(halves_narrow(dtype, value), halves_defined_narrow(dtype, value));
  assert_true(halves_same_float(halves_widen(dtype, half), halves_defined_widen(dtype, half)));
}

/* All halves, and floats about the places where rounding turns. */
static void converted_as_defined(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 16};
  enum { N = 1 << 16 };
  static uint16_t all[N], back[N];
  static float floats[N];
  for (unsigned d = 0; d < COUNT(dtypes); d++) {
    for (uint32_t i = 0; i < N; i++) all[i] = (uint16_t)i;
    zps_values_widen(dtypes[d], all, N, floats);
    for (uint32_t i = 0; i < N; i++) assert_true(halves_same_float(floats[i], halves_defined_widen(dtypes[d], all[i])));
    assert_true(zps_values_hold(zps_values_own(dtypes[d]), floats, N));
    for (uint32_t i = 0; i < N; i++) { /* ties, what is next to them, and beyond the greatest */
      const float next = halves_widen(dtypes[d], (uint16_t)(all[i] + 1));
      floats[i] = (float)(((double)floats[i] + (double)next) / 2);
      if (i % 3) floats[i] = nextafterf(floats[i], i % 3 == 1 ? INFINITY : -INFINITY);
    }
    zps_values_narrow(dtypes[d], floats, N, back);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(back[i], halves_defined_narrow(dtypes[d], floats[i]));
    for (uint32_t i = 0; i < N; i++) expect_support(dtypes[d], all[i], floats[i]);
    for (uint32_t i = 0; i < N; i++) {
      const uint32_t bits = (uint32_t)zps_rng_u64(&rng);
      memcpy(&floats[i], &bits, sizeof bits);
      expect_support(dtypes[d], all[i], floats[i]);
      assert_int_equal(zps_values_hold(zps_values_own(dtypes[d]), &floats[i], 1), halves_hold(dtypes[d], floats[i]));
    }
    zps_values_narrow(dtypes[d], floats, N, floats); /* where they are */
    memcpy(all, floats, sizeof all);
    for (uint32_t i = 0; i < N; i++) back[i] = all[i];
    zps_values_widen(dtypes[d], back, N, floats);
    for (uint32_t i = 0; i < N; i++) assert_true(halves_same_float(floats[i], halves_widen(dtypes[d], back[i])));
  }
}

static void run_variants(void (*test)(void **state), void **state) {
  const struct zps_simd *simd;
  for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
    zps_simd_use(simd);
    test(state);
  }
  zps_simd_use(NULL);
}

#define DEFINE_VARIANTS(NAME)               \
  static void NAME##_always(void **state) { \
    run_variants(NAME, state);              \
  }
DEFINE_VARIANTS(converted_as_defined)
DEFINE_VARIANTS(encoded_as_the_floats_are)
DEFINE_VARIANTS(added_up_as_floats)
DEFINE_VARIANTS(decoded_to_halves)
DEFINE_VARIANTS(delivered_to_halves)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(converted_as_defined_always),
      cmocka_unit_test(encoded_as_the_floats_are_always),
      cmocka_unit_test(a_last_row_apart),
      cmocka_unit_test(added_up_as_floats_always),
      cmocka_unit_test(decoded_to_halves_always),
      cmocka_unit_test(delivered_to_halves_always),
  };
  return cmocka_run_group_tests_name("halves", tests, encoders_setup, encoders_teardown);
}
