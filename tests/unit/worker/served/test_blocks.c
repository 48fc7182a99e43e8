/* Gradients to blocks of 256 values and back, through the codecs, against the plain array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/decode.h"
#include "tests/support/oom.h"
#include "tests/unit/codec/codec_reference.h"
#include "worker/served/blocks.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
enum { PARTS = 3 };

/* The blocks that a server would send back to a single rank. */
struct result {
  struct zps_partition part;
  struct zps_slice_view views[PARTS];
  void *slices[PARTS];
};

static void encode(struct zps_encoder *encoder, const struct zps_encode_input *given, struct result *result) {
  struct zps_encode_input input = *given;
  input.part = &result->part;
  assert_int_equal(zps_encoder_scan(encoder, &input, NULL, NULL), ZPS_OK);
  for (uint32_t p = 0; p < PARTS; p++) {
    const uint32_t m = zps_partition_size(&result->part, p), z = zps_encoder_nnz(encoder, p);
    uint64_t bytes;
    assert_int_equal(zps_encoder_choose(encoder, p, 1u << ZPS_CODEC_COO, &bytes), ZPS_CODEC_COO);
    assert_int_equal(bytes, z * (4 + ZPS_BLOCK_VALUES * zps_dtype_size(input.dtype)));
    result->slices[p] = malloc(bytes + 1);
    assert_non_null(result->slices[p]);
    zps_encoder_write(encoder, p, ZPS_CODEC_COO, result->slices[p]);
    assert_int_equal(zps_slice_view_init(&result->views[p], ZPS_CODEC_COO, m, z, ZPS_BLOCK_VALUES, input.dtype,
                                         ZPS_VALUES_RAW, result->slices[p], bytes, NULL),
                     ZPS_OK);
  }
}

static void check_dense(const struct result *result, const struct ref_gradient *gradient) {
  const uint64_t len = gradient->rows * ref_row_bytes(gradient);
  char *const dense = malloc(len); /* no byte behind it may be written */
  assert_non_null(dense);
  zps_decode_dense_clear(dense, len, 0, 1);
  for (uint32_t p = 0; p < PARTS; p++) zps_decode_dense_cut(&result->part, p, &result->views[p], dense, len);
  for (uint64_t row = 0; row < gradient->rows; row++) {
    const uint64_t at = row * ref_row_bytes(gradient);
    if (gradient->present[row])
      assert_memory_equal(dense + at, (const char *)gradient->dense + at, ref_row_bytes(gradient));
    else
      assert_true(ref_is_zero(gradient->dtype, dense + at, gradient->width));
  }
  free(dense);
}

static void check_rows(const struct result *result, const struct zps_tensor_shape *shape,
                       const struct ref_gradient *gradient) {
  uint64_t n = 0, n_present = 0;
  for (uint32_t p = 0; p < PARTS; p++) n += result->views[p].z;
  for (uint64_t row = 0; row < gradient->rows; row++) n_present += gradient->present[row];
  const uint64_t row_bytes = ref_row_bytes(gradient);
  int64_t *const ids = malloc(n * sizeof *ids + 1), *const rows = malloc(n_present * sizeof *rows + 1);
  char *const blocks = malloc(n * ZPS_BLOCK_VALUES * zps_dtype_size(gradient->dtype) + 1);
  char *const values = malloc(n_present * row_bytes + 1);
  assert_true(ids && rows && blocks && values);
  struct zps_decode_scratch scratch = {0};
  assert_int_equal(zps_decode_rows(&result->part, result->views, NULL, &scratch, ids, blocks), ZPS_OK);
  zps_decode_scratch_fini(&scratch);
  assert_int_equal(zps_blocks_rows(shape, ids, blocks, n, NULL, NULL), n_present);
  assert_int_equal(zps_blocks_rows(shape, ids, blocks, n, rows, values), n_present);
  uint64_t at = 0;
  for (uint64_t row = 0; row < gradient->rows; row++) {
    if (!gradient->present[row]) continue;
    assert_int_equal(rows[at], row);
    assert_memory_equal(values + at++ * row_bytes, (const char *)gradient->dense + row * row_bytes, row_bytes);
  }
  free(ids);
  free(rows);
  free(blocks);
  free(values);
}

/* Blocks with a value in them, counted from the plain array: the worker sends these. */
static uint64_t blocks_touched(const struct ref_gradient *gradient) {
  const uint64_t n = gradient->rows * gradient->width, size = zps_dtype_size(gradient->dtype);
  uint64_t touched = 0;
  for (uint64_t at = 0; at < n; at += ZPS_BLOCK_VALUES) {
    const uint64_t len = n - at < ZPS_BLOCK_VALUES ? n - at : ZPS_BLOCK_VALUES;
    touched += !ref_is_zero(gradient->dtype, (const char *)gradient->dense + at * size, len);
  }
  return touched;
}

static void check(struct zps_encoder *encoder, const struct ref_gradient *gradient) {
  const struct zps_tensor_shape shape = {gradient->rows, gradient->width, gradient->dtype};
  struct zps_blocks blocks;
  struct result result;
  zps_blocks_init(&blocks, &shape);
  assert_int_equal(zps_partition_init(&result.part, zps_blocks_count(&shape), PARTS, 1, 7, NULL), ZPS_OK);
  char *const dense = malloc(gradient->rows * ref_row_bytes(gradient)); /* no byte behind it may be read */
  assert_non_null(dense);
  memcpy(dense, gradient->dense, gradient->rows * ref_row_bytes(gradient));
  for (unsigned round = 0; round < 3; round++) { /* memory is used again */
    struct zps_encode_input input = {.value_codec = ZPS_VALUES_RAW};
    if (gradient->row_ids && round != 1)
      assert_int_equal(
          zps_blocks_input(&blocks, gradient->values, gradient->row_ids, gradient->n_entries, &input, NULL), ZPS_OK);
    else
      assert_int_equal(zps_blocks_input(&blocks, dense, NULL, 0, &input, NULL), ZPS_OK);
    encode(encoder, &input, &result);
    assert_int_equal(zps_encoder_total_nnz(encoder), blocks_touched(gradient));
    check_dense(&result, gradient);
    check_rows(&result, &shape, gradient);
    for (uint32_t p = 0; p < PARTS; p++) free(result.slices[p]);
  }
  free(dense);
  zps_blocks_fini(&blocks);
}

/* NaNs, of which an addition may return either, and values that are all -0.0 are other tests' business. */
static void tame(struct ref_gradient *gradient) {
  const uint64_t n = (gradient->row_ids ? gradient->n_entries : gradient->rows) * gradient->width;
  void *const values = gradient->row_ids ? gradient->values : gradient->dense;
  for (uint64_t i = 0; i < n; i++) {
    if (gradient->dtype == ZPS_DTYPE_F32) {
      float *const value = (float *)values + i;
      *value = *value != *value ? 1 : *value + 0.0f;
    } else {
      double *const value = (double *)values + i;
      *value = *value != *value ? 1 : *value + 0.0;
    }
  }
  memset(gradient->present, 0, gradient->rows);
  if (gradient->row_ids) memset(gradient->dense, 0, gradient->rows * ref_row_bytes(gradient));
  for (uint64_t i = 0; gradient->row_ids && i < gradient->n_entries; i++)
    ref_add(gradient->dtype, (char *)gradient->dense + (uint64_t)gradient->row_ids[i] * ref_row_bytes(gradient),
            (const char *)gradient->values + i * ref_row_bytes(gradient), gradient->width);
  for (uint64_t row = 0; row < gradient->rows; row++)
    gradient->present[row] =
        !ref_is_zero(gradient->dtype, (const char *)gradient->dense + row * ref_row_bytes(gradient), gradient->width);
}

static void gradients_survive(void **state) {
  static const struct {
    uint64_t rows;
    uint32_t width;
  } shapes[] = {{1, 1}, {255, 1}, {256, 1}, {257, 1}, {20000, 1}, {10, 100}, {400, 64}, {403, 3}, {7, 1000}, {9, 256}};
  static const double densities[] = {0, 0.01, 0.3, 1};
  struct zps_encoder **const encoders = *state;
  struct zps_rng rng = {.state = 5};
  for (unsigned s = 0; s < COUNT(shapes); s++) {
    for (unsigned d = 0; d < COUNT(densities); d++) {
      for (unsigned i = 0; i < 8; i++) {
        const enum zps_dtype dtype = i & 1 ? ZPS_DTYPE_F64 : ZPS_DTYPE_F32;
        struct ref_gradient gradient =
            (i & 2 ? ref_coo : ref_dense)(&rng, shapes[s].rows, shapes[s].width, dtype, densities[d]);
        tame(&gradient);
        check(encoders[i >> 2], &gradient);
        ref_free(&gradient);
      }
    }
  }
}

static void bad_rows_are_named(void **state) {
  (void)state;
  const struct zps_tensor_shape shape = {1000, 3, ZPS_DTYPE_F32};
  const float values[9] = {0};
  int64_t rows[] = {5, 1000, -1};
  struct zps_blocks blocks;
  struct zps_encode_input input = {0};
  struct zps_error error;
  zps_blocks_init(&blocks, &shape);
  assert_int_equal(zps_blocks_input(&blocks, values, rows, 3, &input, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "row number 1000 at position 1 of 3: the tensor has rows 0 to 999");
  rows[1] = 999;
  assert_int_equal(zps_blocks_input(&blocks, values, rows, 3, &input, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "row number -1 at position 2 of 3: the tensor has rows 0 to 999");
  assert_int_equal(zps_blocks_input(&blocks, values, rows, 2, &input, &error), ZPS_OK);
  assert_int_equal(input.n_entries, 2);
  zps_blocks_fini(&blocks);
}

static zps_err_t make_input(void *ctx) {
  static const int64_t rows[] = {900, 0, 600, 0, 1};
  static const float values[5 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  struct zps_encode_input input = {0};
  const zps_err_t code = zps_blocks_input(ctx, values, rows, 5, &input, NULL);
  if (code == ZPS_OK) assert_int_equal(input.n_entries, 3);
  return code;
}

static void input_made(void *ctx) {
  zps_blocks_fini(ctx);
}

/* The leftovers of a failed attempt do not confuse the next. */
static void missing_memory_is_said(void **state) {
  (void)state;
  const struct zps_tensor_shape shape = {1000, 3, ZPS_DTYPE_F32};
  struct zps_blocks blocks;
  zps_blocks_init(&blocks, &shape);
  oom_sweep(make_input, input_made, &blocks, 1);
}

static int setup(void **state) {
  static struct zps_encoder *encoders[2];
  *state = encoders;
  return zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &encoders[0]) == ZPS_OK &&
                 zps_encoder_create(ZPS_PARTITIONER_HIERARCHICAL, &encoders[1]) == ZPS_OK
             ? 0
             : -1;
}

static int teardown(void **state) {
  struct zps_encoder **const encoders = *state;
  zps_encoder_destroy(encoders[0]);
  zps_encoder_destroy(encoders[1]);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_survive),
      cmocka_unit_test(bad_rows_are_named),
      cmocka_unit_test(missing_memory_is_said),
  };
  return cmocka_run_group_tests_name("blocks", tests, setup, teardown);
}
