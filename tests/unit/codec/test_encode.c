#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/order.h"
#include "common/codec/simd/simd.h"
#include "tests/unit/codec/codec_reference.h"
#include "tests/unit/codec/encoders.h"

static const double densities[] = {0, 1e-4, 0.01, 0.3, 1};
static const uint32_t widths[] = {1, 3, 64};
static const enum zps_dtype dtypes[] = {ZPS_DTYPE_F32, ZPS_DTYPE_F64, ZPS_DTYPE_U8};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Which of two NaNs an addition returns is the processor's affair, and the compiler's: one stands for all. */
static void unify_nans(enum zps_dtype dtype, void *values, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    if (dtype == ZPS_DTYPE_F32 && isnan(((float *)values)[i])) ((float *)values)[i] = NAN;
    if (dtype == ZPS_DTYPE_F64 && isnan(((double *)values)[i])) ((double *)values)[i] = NAN;
  }
}

/* The encoded slices of all partitions, one behind another. */
static void *encode_all(struct zps_encoder *encoder, const struct zps_encode_input *input, struct zps_workpool *pool,
                        enum zps_codec codec, uint64_t *len_p) {
  struct zps_error error;
  uint64_t len = 0, total = 0;
  assert_int_equal(zps_encoder_scan(encoder, input, pool, &error), ZPS_OK);
  for (uint32_t p = 0; p < input->part->n_parts; p++) {
    total += zps_encoder_nnz(encoder, p);
    len += (zps_codec_slice_bytes(codec, zps_partition_size(input->part, p), zps_encoder_nnz(encoder, p), input->width,
                                  input->dtype, ZPS_VALUES_RAW) +
            7) &
           ~7ull;
  }
  assert_int_equal(total, zps_encoder_total_nnz(encoder));
  char *const bytes = malloc(len + 1);
  assert_non_null(bytes);
  memset(bytes, 0xee, len + 1);
  uint64_t at = 0;
  for (uint32_t p = 0; p < input->part->n_parts; p++) {
    zps_encoder_write(encoder, p, codec, bytes + at);
    unify_nans(input->dtype, bytes + at, (uint64_t)zps_encoder_nnz(encoder, p) * input->width);
    at += (zps_codec_slice_bytes(codec, zps_partition_size(input->part, p), zps_encoder_nnz(encoder, p), input->width,
                                 input->dtype, ZPS_VALUES_RAW) +
           7) &
          ~7ull;
  }
  assert_int_equal((unsigned char)bytes[len], 0xee);
  *len_p = len;
  return bytes;
}

static void check_all(const struct ref_gradient *gradient, const struct zps_partition *part,
                      struct zps_encoder *encoder, enum zps_codec codec, const char *bytes) {
  struct zps_error error;
  for (uint32_t p = 0; p < part->n_parts; p++) {
    struct zps_slice_view view;
    const uint32_t m = zps_partition_size(part, p), z = zps_encoder_nnz(encoder, p);
    const uint64_t most = zps_codec_slice_bytes(codec, m, z, gradient->width, gradient->dtype, ZPS_VALUES_RAW);
    uint64_t len;
    assert_int_equal(zps_encoder_choose(encoder, p, 1u << codec, &len), codec);
    assert_true(len <= most);
    assert_int_equal(
        zps_slice_view_init(&view, codec, m, z, gradient->width, gradient->dtype, ZPS_VALUES_RAW, bytes, len, &error),
        ZPS_OK);
    ref_assert_slice(part, p, &view, gradient->present, gradient->dense);
    bytes += (most + 7) & ~7ull;
  }
}

/* Slices as Algorithm 1 leaves them are, once in order, the same bytes. */
static void check_any_order(struct encoders *encoders, const struct zps_encode_input *input, const char *bytes) {
  struct zps_encode_input any = *input;
  struct zps_buffer scratch = {0};
  any.any_order = true;
  for (unsigned i = thin_skips_alone(); i < 2; i++) {
    uint64_t len, at = 0;
    char *const same = encode_all(encoders->hierarchical, &any, i ? encoders->pool : NULL, ZPS_CODEC_COO_ANY, &len);
    for (uint32_t p = 0; p < input->part->n_parts; p++) {
      const uint32_t z = zps_encoder_nnz(encoders->hierarchical, p), m = zps_partition_size(input->part, p);
      assert_int_equal(zps_slice_order(m, z, input->width, input->dtype, ZPS_VALUES_RAW, same + at, &scratch, NULL),
                       ZPS_OK);
      at += (zps_codec_slice_bytes(ZPS_CODEC_COO, m, z, input->width, input->dtype, ZPS_VALUES_RAW) + 7) & ~7ull;
    }
    assert_int_equal(at, len);
    ref_assert_same(bytes, same, len);
    const struct zps_hier_stats hashed = zps_encoder_hashed(encoders->hierarchical);
    assert_true(hashed.parallel + hashed.serial >= zps_encoder_total_nnz(encoders->hierarchical));
    free(same);
  }
  zps_buffer_fini(&scratch);
}

/* The slices equal the reference, and are the same bytes from both partitioners with any number of threads and all
 * vector instructions. */
static void check_rows(struct encoders *encoders, const struct ref_gradient *gradient, uint32_t n_parts,
                       uint32_t block_bits, uint64_t seed, bool all_rows) {
  struct zps_partition part;
  struct zps_murmur *const murmur = ref_partition(gradient->rows, n_parts, block_bits, seed, &part);
  struct zps_encode_input input = ref_input(gradient, &part);
  input.all_rows = all_rows;
  for (enum zps_codec codec = ZPS_CODEC_COO; codec < ZPS_CODEC_COUNT; codec++) {
    if (codec != ZPS_CODEC_COO && thin_skips()) continue;
    uint64_t len, other_len;
    void *const bytes = encode_all(encoders->ordered, &input, NULL, codec, &len);
    check_all(gradient, &part, encoders->ordered, codec, bytes);
    struct {
      struct zps_encoder *encoder;
      struct zps_workpool *pool;
    } const others[] = {
        {encoders->ordered, encoders->pool}, {encoders->hierarchical, NULL}, {encoders->hierarchical, encoders->pool}};
    for (unsigned i = 0; i < COUNT(others); i++) {
      if (!others[i].pool && thin_skips_alone()) continue;
      void *const same = encode_all(others[i].encoder, &input, others[i].pool, codec, &other_len);
      assert_int_equal(len, other_len);
      ref_assert_same(bytes, same, len);
      free(same);
    }
    const struct zps_simd *simd;
    for (unsigned i = 0; !thin_skips_alone() && (simd = zps_simd_variant(i)) != NULL; i++) {
      zps_simd_use(simd);
      void *const same = encode_all(encoders->ordered, &input, NULL, codec, &other_len);
      assert_int_equal(len, other_len);
      ref_assert_same(bytes, same, len);
      free(same);
    }
    zps_simd_use(NULL);
    if (codec == ZPS_CODEC_COO && !all_rows) check_any_order(encoders, &input, bytes);
    free(bytes);
  }
  zps_murmur_destroy(murmur);
}

static void check_gradient(struct encoders *encoders, const struct ref_gradient *gradient, uint32_t n_parts,
                           uint32_t block_bits, uint64_t seed) {
  check_rows(encoders, gradient, n_parts, block_bits, seed, false);
}

static void check_shapes(struct encoders *encoders, uint64_t rows, bool coo) {
  struct zps_rng rng = {.state = rows + coo};
  for (unsigned d = 0; d < COUNT(densities); d++) {
    for (unsigned w = 0; w < COUNT(widths); w++) {
      for (unsigned t = 0; t < COUNT(dtypes); t++) {
        if (thin_skips()) continue;
        struct ref_gradient gradient = (coo ? ref_coo : ref_dense)(&rng, rows, widths[w], dtypes[t], densities[d]);
        check_gradient(encoders, &gradient, 1, 0, 1);
        check_gradient(encoders, &gradient, 16, 3, 2);
        check_gradient(encoders, &gradient, 7, 0, 3);
        check_gradient(encoders, &gradient, 300, d % 2 ? 0 : 10, 4);
        check_gradient(encoders, &gradient, 1, REF_HASHED, 5);
        check_gradient(encoders, &gradient, 16, REF_HASHED, 6);
        ref_free(&gradient);
      }
    }
  }
}

static void dense_equals_the_reference(void **state) {
  check_shapes(*state, 1, false);
  check_shapes(*state, 130, false);
  check_shapes(*state, 5000, false);
}

static void coo_equals_the_reference(void **state) {
  check_shapes(*state, 1, true);
  check_shapes(*state, 130, true);
  check_shapes(*state, 5000, true);
}

/* Long enough to be cut into ranges: several threads take part. */
static void long_gradients_equal_the_reference(void **state) {
  struct zps_rng rng = {.state = 9};
  struct ref_gradient gradient = ref_dense(&rng, 400000, 1, ZPS_DTYPE_F32, 0.02);
  check_gradient(*state, &gradient, 12, 0, 5);
  check_gradient(*state, &gradient, 12, REF_HASHED, 5);
  ref_free(&gradient);
  gradient = ref_coo(&rng, 100000, 2, ZPS_DTYPE_F64, 1.5);
  check_gradient(*state, &gradient, 5, 2, 6);
  check_gradient(*state, &gradient, 5, REF_HASHED, 6);
  ref_free(&gradient);
  gradient = ref_coo(&rng, 300000, 1, ZPS_DTYPE_F32, 0.4);
  check_gradient(*state, &gradient, 2, 0, 7); /* of more indices than are added up at a time */
  ref_free(&gradient);
}

/* Gives a dense gradient of single floats its rows as entries, ascending, and some that are zero among them. */
static void list_rows(struct ref_gradient *gradient) {
  gradient->row_ids = malloc((gradient->rows + 1) * sizeof *gradient->row_ids);
  float *const values = gradient->values = malloc((gradient->rows + 1) * sizeof *values);
  assert_true(gradient->row_ids && values);
  for (uint64_t row = 0; row < gradient->rows; row++) {
    if (!gradient->present[row] && row % 7 != 0) continue;
    gradient->row_ids[gradient->n_entries] = (int64_t)row;
    values[gradient->n_entries++] = ((const float *)gradient->dense)[row];
  }
}

static void ascending_rows_equal_the_reference(void **state) {
  static const uint64_t lengths[] = {1, 600, 70000, 1 << 21};
  struct zps_rng rng = {.state = 10};
  for (unsigned i = 0; i < COUNT(lengths); i++) {
    struct ref_gradient gradient = ref_dense(&rng, lengths[i], 1, ZPS_DTYPE_F32, 0.3);
    list_rows(&gradient);
    check_gradient(*state, &gradient, 2, 0, 7);
    if (i < 3) check_gradient(*state, &gradient, 70, REF_HASHED, 7);
    check_gradient(*state, &gradient, 16, i % 3, 8);
    const uint64_t at = gradient.n_entries / 2; /* the next one is no greater */
    if (at + 1 < gradient.n_entries) {
      const float value = ((float *)gradient.values)[at];
      const int64_t row = gradient.row_ids[at];
      memcpy((float *)gradient.values + at, (float *)gradient.values + at + 1, sizeof value);
      gradient.row_ids[at] = gradient.row_ids[at + 1];
      ((float *)gradient.values)[at + 1] = value;
      gradient.row_ids[at + 1] = row;
      check_gradient(*state, &gradient, 16, i % 3, 8);
    }
    ref_free(&gradient);
  }
}

/* A tensor of four stripes: whole, and step by step, with the rows of one step written while the next step is scanned.
 * */
struct stripes {
  struct zps_encoder *encoder;
  const struct zps_encode_input *input;
  char *bytes;
  uint32_t scan, n_scans;
  atomic_uint n_failed;
};

static uint64_t slice_room(const struct zps_encode_input *input) {
  return 8 * (uint64_t)zps_partition_size(input->part, 0);
}

/* Partitions of earlier steps, and the step itself. */
static void scan_or_write(void *ctx, unsigned i) {
  struct stripes *const stripes = ctx;
  const uint32_t n_parts = stripes->input->part->n_parts / stripes->n_scans;
  if (i == 0) {
    if (stripes->scan < stripes->n_scans && zps_encoder_scan_next(stripes->encoder, stripes->scan, NULL) != ZPS_OK)
      atomic_fetch_add(&stripes->n_failed, 1);
    return;
  }
  if (stripes->scan == 0) return;
  const uint32_t p = (stripes->scan - 1) * n_parts + i - 1;
  uint64_t len;
  if (zps_encoder_choose(stripes->encoder, p, 1u << ZPS_CODEC_COO, &len) != ZPS_CODEC_COO ||
      len > slice_room(stripes->input))
    atomic_fetch_add(&stripes->n_failed, 1);
  else
    zps_encoder_write(stripes->encoder, p, ZPS_CODEC_COO, stripes->bytes + p * slice_room(stripes->input));
}

static void check_steps(struct encoders *encoders, struct zps_encoder *encoder, const struct zps_encode_input *input) {
  const uint64_t room = slice_room(input), n_parts = input->part->n_parts;
  struct zps_error error;
  struct stripes stripes = {
      .encoder = encoder, .input = input, .n_scans = zps_encoder_scans(input), .bytes = calloc(n_parts, room)};
  char *const whole = calloc(n_parts, room);
  assert_true(stripes.bytes && whole);
  assert_int_equal(stripes.n_scans, 4);
  assert_int_equal(zps_encoder_begin(encoder, input, encoders->pool, &error), ZPS_OK);
  for (; stripes.scan <= stripes.n_scans; stripes.scan++)
    zps_workpool_for(encoders->pool, 1 + (unsigned)n_parts / stripes.n_scans, scan_or_write, &stripes);
  assert_int_equal(stripes.n_failed, 0);
  const uint64_t total = zps_encoder_total_nnz(encoder);
  assert_int_equal(zps_encoder_scan(encoder, input, NULL, &error), ZPS_OK);
  assert_int_equal(total, zps_encoder_total_nnz(encoder));
  for (uint32_t p = 0; p < n_parts; p++) zps_encoder_write(encoder, p, ZPS_CODEC_COO, whole + p * room);
  ref_assert_same(whole, stripes.bytes, n_parts * room);
  free(whole);
  free(stripes.bytes);
}

static void stripes_equal_the_reference(void **state) {
  enum { ROWS = (4 << 20) + 5 * (1 << 16) + 77, PARTS = 44 };
  struct encoders *const encoders = *state;
  struct zps_rng rng = {.state = 11};
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, ROWS, PARTS, 0, 8, NULL), ZPS_OK);
  assert_int_equal(zps_partition_stripes(&part), 4);
  struct ref_gradient gradient = ref_dense(&rng, ROWS, 1, ZPS_DTYPE_F32, 0.01);
  check_gradient(encoders, &gradient, PARTS, 0, 8);
  struct zps_encode_input input = ref_input(&gradient, &part);
  check_steps(encoders, encoders->ordered, &input);
  check_steps(encoders, encoders->hierarchical, &input);
  ref_free(&gradient);
  gradient = ref_coo(&rng, ROWS, 1, ZPS_DTYPE_F32, 0.01);
  check_gradient(encoders, &gradient, PARTS, 0, 8);
  input = ref_input(&gradient, &part);
  assert_int_equal(zps_encoder_scans(&input), 1);
  ref_free(&gradient);
  gradient = ref_dense(&rng, ROWS, 2, ZPS_DTYPE_U8, 0.001);
  check_gradient(encoders, &gradient, PARTS, 0, 9);
  ref_free(&gradient);
}

static void all_rows_are_sent_with_their_zeros(void **state) {
  static const uint64_t sizes[] = {1, 130, 5000};
  struct zps_rng rng = {.state = 10};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    for (unsigned i = 0; i < 12; i++) {
      if (thin_skips()) continue;
      const uint32_t width = i % 2 ? 1 : 5;
      const enum zps_dtype dtype = dtypes[i % COUNT(dtypes)];
      struct ref_gradient gradient = (i < 6 ? ref_dense : ref_coo)(&rng, sizes[s], width, dtype, i % 4 ? 0.1 : 0);
      memset(gradient.present, true, gradient.rows);
      check_rows(*state, &gradient, 1, 31, i, true);
      check_rows(*state, &gradient, 16, 3, i, true);
      check_rows(*state, &gradient, 300, 0, i, true);
      check_rows(*state, &gradient, 9, REF_HASHED, i, true);
      ref_free(&gradient);
    }
  }
}

/* They take no byte for the index, and are coded as any other values are. */
static void all_rows_are_values_alone(void **state) {
  struct encoders *const encoders = *state;
  enum { ROWS = 1000, WIDTH = 3, BITS = 5, PARTS = 3 };
  struct zps_rng rng = {.state = 11};
  struct zps_partition part;
  struct ref_gradient gradient = ref_dense(&rng, ROWS, WIDTH, ZPS_DTYPE_F32, 0.1);
  assert_int_equal(zps_partition_init(&part, ROWS, PARTS, BITS, 1, NULL), ZPS_OK);
  struct zps_encode_input input = ref_input(&gradient, &part);
  input.all_rows = true;
  static float list[ROWS * WIDTH];
  static unsigned char slice[ROWS * WIDTH * 4], expected[ROWS * WIDTH * 4];
  for (enum zps_value_codec codec = ZPS_VALUES_RAW; codec <= ZPS_VALUES_F16; codec++) {
    input.value_codec = codec;
    assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, NULL), ZPS_OK);
    for (uint32_t p = 0; p < PARTS; p++) {
      const uint32_t m = zps_partition_size(&part, p);
      uint64_t bytes;
      assert_int_equal(zps_encoder_choose(encoders->ordered, p, zps_codec_push_set(ZPS_CODEC_AUTO), &bytes),
                       ZPS_CODEC_HOLES);
      assert_int_equal(bytes, zps_values_bytes(codec, ZPS_DTYPE_F32, (uint64_t)m * WIDTH));
      for (uint32_t local = 0; local < m; local++)
        memcpy(list + local * WIDTH, (const float *)gradient.dense + zps_partition_row(&part, p, local) * WIDTH,
               WIDTH * sizeof *list);
      zps_values_encode(codec, ZPS_DTYPE_F32, list, (uint64_t)m * WIDTH, zps_values_key(&input.origin, p), expected);
      zps_encoder_write(encoders->ordered, p, ZPS_CODEC_HOLES, slice);
      assert_memory_equal(slice, expected, bytes);
    }
  }
  ref_free(&gradient);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dense_equals_the_reference),         cmocka_unit_test(coo_equals_the_reference),
      cmocka_unit_test(long_gradients_equal_the_reference), cmocka_unit_test(stripes_equal_the_reference),
      cmocka_unit_test(ascending_rows_equal_the_reference), cmocka_unit_test(all_rows_are_sent_with_their_zeros),
      cmocka_unit_test(all_rows_are_values_alone),
  };
  return cmocka_run_group_tests_name("encode", tests, encoders_setup, encoders_teardown);
}
