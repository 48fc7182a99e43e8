/* Narrow values on their way: encoding, summing and decoding give the results that follow from coding the raw values.
 * */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/decode.h"
#include "common/codec/reduce.h"
#include "common/codec/simd/simd.h"
#include "tests/support/threadless.h"
#include "tests/unit/codec/codec_reference.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { ROWS = 4000, INDICES = 4, PARTS = 3 };

static const enum zps_value_codec codecs[] = {ZPS_VALUES_BF16, ZPS_VALUES_F16, ZPS_VALUES_QSGD2, ZPS_VALUES_QSGD4,
                                              ZPS_VALUES_QSGD8};

struct slice {
  struct zps_slice_view view;
  void *bytes;
};

static void *need(uint64_t bytes) {
  void *const memory = malloc(bytes + 1);
  assert_non_null(memory);
  return memory;
}

static struct slice write_slice(const struct zps_encoder *encoder, const struct zps_encode_input *input, uint32_t p,
                                enum zps_codec codec) {
  const uint32_t m = zps_partition_size(input->part, p), z = zps_encoder_nnz(encoder, p);
  struct slice slice;
  uint64_t len;
  assert_int_equal(zps_encoder_choose(encoder, p, 1u << codec, &len), codec);
  assert_true(len <= zps_codec_slice_bytes(codec, m, z, input->width, input->dtype, input->value_codec));
  slice.bytes = need(len);
  ((unsigned char *)slice.bytes)[len] = 0xee;
  zps_encoder_write(encoder, p, codec, slice.bytes);
  assert_int_equal(((unsigned char *)slice.bytes)[len], 0xee);
  assert_int_equal(zps_slice_view_init(&slice.view, codec, m, z, input->width, input->dtype, input->value_codec,
                                       slice.bytes, len, NULL),
                   ZPS_OK);
  return slice;
}

/* The same rows with the values that the narrow slice stands for. */
static struct slice widened(const struct slice *slice) {
  const struct zps_slice_view *const view = &slice->view;
  const uint64_t n = (uint64_t)view->z * view->width, values_bytes = n * zps_dtype_size(view->dtype);
  struct slice wide = {.view = *view, .bytes = need(values_bytes + view->index_bytes)};
  zps_values_decode(view->value_codec, view->dtype, view->values, n, 0, n, wide.bytes);
  memcpy((char *)wide.bytes + values_bytes, view->index, view->index_bytes);
  wide.view.value_codec = ZPS_VALUES_RAW;
  wide.view.values = wide.bytes;
  wide.view.index = (char *)wide.bytes + values_bytes;
  return wide;
}

static struct ref_gradient make_gradient(struct zps_rng *rng, unsigned i, uint32_t width, enum zps_dtype dtype) {
  static const double densities[] = {0.3, 0.01, 0.9, 0.05};
  return i % 2 ? ref_coo(rng, ROWS, width, dtype, densities[i % 4])
               : ref_dense(rng, ROWS, width, dtype, densities[i % 4]);
}

/* Calls `check` for every codec, dtype and some widths. */
static void for_all(void (*check)(struct zps_rng *rng, enum zps_value_codec codec, enum zps_dtype dtype,
                                  uint32_t width)) {
  static const uint32_t widths[] = {1, 3, 100};
  struct zps_rng rng = {.state = 11};
  for (unsigned c = 0; c < COUNT(codecs); c++)
    for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_F64; dtype++)
      for (unsigned w = 0; w < COUNT(widths); w++) check(&rng, codecs[c], dtype, widths[w]);
}

static void check_encode(struct zps_rng *rng, enum zps_value_codec codec, enum zps_dtype dtype, uint32_t width) {
  struct zps_partition part;
  struct zps_encoder *raw, *narrow;
  assert_int_equal(zps_partition_init(&part, ROWS, PARTS, 2, 5, NULL), ZPS_OK);
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &raw), ZPS_OK);
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &narrow), ZPS_OK);
  for (unsigned i = 0; i < INDICES; i++) {
    struct ref_gradient gradient = make_gradient(rng, i, width, dtype);
    struct zps_encode_input input = ref_input(&gradient, &part);
    assert_int_equal(zps_encoder_scan(raw, &input, NULL, NULL), ZPS_OK);
    input.value_codec = codec;
    input.origin = (struct zps_values_origin){.seed = part.seed, .step = 9, .tensor = 2, .rank = i};
    assert_int_equal(zps_encoder_scan(narrow, &input, NULL, NULL), ZPS_OK);
    for (uint32_t p = 0; p < PARTS; p++) {
      struct zps_encode_input raw_input = input;
      raw_input.value_codec = ZPS_VALUES_RAW;
      const struct slice from = write_slice(raw, &raw_input, p, ZPS_CODEC_RICE);
      const struct slice to = write_slice(narrow, &input, p, ZPS_CODEC_RICE);
      const uint64_t n = (uint64_t)from.view.z * width, len = zps_values_bytes(codec, dtype, n);
      void *const expected = need(len);
      zps_values_encode(codec, dtype, from.view.values, n, zps_values_key(&input.origin, p), expected);
      assert_memory_equal(to.view.values, expected, len);
      assert_int_equal(to.view.index_bytes, from.view.index_bytes);
      assert_memory_equal(to.view.index, from.view.index, from.view.index_bytes);
      free(expected);
      free(from.bytes);
      free(to.bytes);
    }
    ref_free(&gradient);
  }
  zps_encoder_destroy(raw);
  zps_encoder_destroy(narrow);
}

static void encoding_codes_the_raw_values(void **state) {
  (void)state;
  for_all(check_encode);
}

/* One slice of each of a few ranks; the last rank has no rows. */
static void make_slices(struct zps_rng *rng, const struct zps_partition *part, enum zps_value_codec codec,
                        enum zps_dtype dtype, uint32_t width, uint32_t p, struct slice *narrow, struct slice *wide) {
  static const enum zps_codec indexes[INDICES] = {ZPS_CODEC_RICE, ZPS_CODEC_COO, ZPS_CODEC_HOLES, ZPS_CODEC_BITMAP};
  struct zps_encoder *encoder;
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &encoder), ZPS_OK);
  for (unsigned i = 0; i < INDICES; i++) {
    struct ref_gradient gradient =
        i == INDICES - 1 ? ref_dense(rng, ROWS, width, dtype, 0) : make_gradient(rng, i, width, dtype);
    struct zps_encode_input input = ref_input(&gradient, part);
    input.value_codec = codec;
    input.origin.rank = i;
    assert_int_equal(zps_encoder_scan(encoder, &input, NULL, NULL), ZPS_OK);
    narrow[i] = write_slice(encoder, &input, p, indexes[i]);
    wide[i] = widened(&narrow[i]);
    ref_free(&gradient);
  }
  zps_encoder_destroy(encoder);
}

static void check_reduce(struct zps_rng *rng, enum zps_value_codec codec, enum zps_dtype dtype, uint32_t width) {
  struct slice narrow[INDICES], wide[INDICES];
  struct zps_slice_view narrow_views[INDICES], wide_views[INDICES];
  struct zps_reduce_scratch *scratch;
  struct zps_partition part;
  assert_int_equal(zps_partition_init(&part, ROWS, 1, 0, 5, NULL), ZPS_OK);
  make_slices(rng, &part, codec, dtype, width, 0, narrow, wide);
  assert_int_equal(zps_reduce_scratch_create(&scratch), ZPS_OK);
  for (unsigned i = 0; i < INDICES; i++) {
    narrow_views[i] = narrow[i].view;
    wide_views[i] = wide[i].view;
  }
  for (enum zps_codec index = ZPS_CODEC_COO; index <= ZPS_CODEC_BITMAP; index++) {
    for (enum zps_op op = ZPS_OP_SUM; op <= ZPS_OP_MEAN; op++) {
      const uint64_t bound = zps_reduce_bound(wide_views, INDICES, index);
      void *const sum = need(bound), *const expected = need(bound);
      uint32_t nnz, expected_nnz;
      uint64_t len, expected_len;
      assert_int_equal(zps_reduce_bound(narrow_views, INDICES, index), bound);
      assert_int_equal(zps_reduce(scratch, narrow_views, INDICES, op, index, NULL, sum, &nnz, &len), ZPS_OK);
      assert_int_equal(
          zps_reduce(scratch, wide_views, INDICES, op, index, NULL, expected, &expected_nnz, &expected_len), ZPS_OK);
      assert_int_equal(nnz, expected_nnz);
      assert_int_equal(len, expected_len);
      assert_memory_equal(sum, expected, len);
      free(sum);
      free(expected);
    }
  }
  for (unsigned i = 0; i < INDICES; i++) {
    free(narrow[i].bytes);
    free(wide[i].bytes);
  }
  zps_reduce_scratch_destroy(scratch);
}

static void sums_are_of_what_was_sent(void **state) {
  const struct zps_simd *simd;
  (void)state;
  for (unsigned i = 0; (simd = zps_simd_variant(i)) != NULL; i++) {
    zps_simd_use(simd);
    for_all(check_reduce);
  }
  zps_simd_use(NULL);
}

static void check_decode(struct zps_rng *rng, enum zps_value_codec codec, enum zps_dtype dtype, uint32_t width) {
  struct slice narrow[PARTS][INDICES], wide[PARTS][INDICES];
  struct zps_slice_view narrow_views[PARTS], wide_views[PARTS];
  struct zps_partition part;
  const uint64_t row_bytes = width * zps_dtype_size(dtype), dense_bytes = ROWS * row_bytes;
  assert_int_equal(zps_partition_init(&part, ROWS, PARTS, 1, 6, NULL), ZPS_OK);
  for (uint32_t p = 0; p < PARTS; p++) make_slices(rng, &part, codec, dtype, width, p, narrow[p], wide[p]);
  for (unsigned i = 0; i < INDICES; i++) {
    char *const dense = need(dense_bytes), *const expected = need(dense_bytes);
    int64_t rows[ROWS], expected_rows[ROWS];
    uint64_t n = 0;
    zps_decode_dense_clear(dense, dense_bytes, 0, 1);
    zps_decode_dense_clear(expected, dense_bytes, 0, 1);
    for (uint32_t p = 0; p < PARTS; p++) {
      narrow_views[p] = narrow[p][i].view;
      wide_views[p] = wide[p][i].view;
      n += wide_views[p].z;
      zps_decode_dense(&part, p, &narrow_views[p], dense);
      zps_decode_dense(&part, p, &wide_views[p], expected);
    }
    assert_memory_equal(dense, expected, dense_bytes);
    struct zps_decode_scratch scratch = {0}; /* of the first, used again */
    assert_int_equal(zps_decode_rows(&part, narrow_views, NULL, &scratch, rows, dense), ZPS_OK);
    assert_int_equal(zps_decode_rows(&part, wide_views, NULL, &scratch, expected_rows, expected), ZPS_OK);
    zps_decode_scratch_fini(&scratch);
    assert_memory_equal(rows, expected_rows, n * sizeof *rows);
    assert_memory_equal(dense, expected, n * row_bytes);
    free(dense);
    free(expected);
  }
  for (uint32_t p = 0; p < PARTS; p++) {
    for (unsigned i = 0; i < INDICES; i++) {
      free(narrow[p][i].bytes);
      free(wide[p][i].bytes);
    }
  }
}

static void results_are_what_was_published(void **state) {
  (void)state;
  for_all(check_decode);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(encoding_codes_the_raw_values),
      cmocka_unit_test(sums_are_of_what_was_sent),
      cmocka_unit_test(results_are_what_was_published),
  };
  return cmocka_run_group_tests_name("values_path", tests, NULL, NULL);
}
