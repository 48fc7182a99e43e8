/* The work of an encoder on odd input: rows that are not the tensor's, rows that come twice, elements of no size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/codec/encoders.h"

static void bad_rows_are_named(void **state) {
  struct encoders *const encoders = *state;
  enum { N = 100000 };
  static int64_t rows[N];
  static float values[N];
  struct zps_partition part;
  struct zps_error error;
  assert_int_equal(zps_partition_init(&part, 1000, 4, 0, 1, NULL), ZPS_OK);
  struct zps_encode_input input = {.part = &part,
                                   .width = 1,
                                   .dtype = ZPS_DTYPE_F32,
                                   .value_codec = ZPS_VALUES_RAW,
                                   .values = values,
                                   .rows = rows,
                                   .n_entries = N};
  for (unsigned i = 0; i < N; i++) rows[i] = i % 1000;
  rows[99990] = -1;
  rows[60001] = 1000;
  rows[70002] = INT64_MIN;
  for (unsigned threaded = 0; threaded < 2; threaded++) {
    struct zps_workpool *const pool = threaded ? encoders->pool : NULL;
    assert_int_equal(zps_encoder_scan(encoders->ordered, &input, pool, &error), ZPS_ERR_INVALID);
    assert_string_equal(error.text, "row number 1000 at position 60001 of 100000: the tensor has rows 0 to 999");
    assert_int_equal(zps_encoder_scan(encoders->hierarchical, &input, pool, &error), ZPS_ERR_INVALID);
    assert_string_equal(error.text, "row number 1000 at position 60001 of 100000: the tensor has rows 0 to 999");
    assert_int_equal(zps_encoder_total_nnz(encoders->ordered), 0);
    assert_int_equal(zps_encoder_nnz(encoders->ordered, 0), 0);
  }
  rows[60001] = 999;
  rows[70002] = 0;
  assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "row number -1 at position 99990 of 100000: the tensor has rows 0 to 999");
  input.all_rows = true;
  assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "row number -1 at position 99990 of 100000: the tensor has rows 0 to 999");
}

static void repeats_add_up_in_order_of_appearance(void **state) {
  struct encoders *const encoders = *state;
  struct zps_partition part;
  struct zps_slice_view view;
  assert_int_equal(zps_partition_init(&part, 10, 1, 0, 1, NULL), ZPS_OK);
  /* (0 + 1e8) + 1 - 1e8 is 0 in float; any other order gives 1. Row 2: 1 + -1 is dropped; row 3: -0.0 is dropped. */
  int64_t rows[] = {7, 2, 7, 3, 2, 7, 0};
  const float values[] = {1e8f, 1, 1, -0.0f, -1, -1e8f, 5};
  struct zps_encode_input input = {.part = &part,
                                   .width = 1,
                                   .dtype = ZPS_DTYPE_F32,
                                   .value_codec = ZPS_VALUES_RAW,
                                   .values = values,
                                   .rows = rows,
                                   .n_entries = 7};
  uint64_t slice[8], len;
  assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, NULL), ZPS_OK);
  assert_int_equal(zps_encoder_nnz(encoders->ordered, 0), 1);
  len = zps_codec_slice_bytes(ZPS_CODEC_COO, 10, 1, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW);
  assert_int_equal(len, 8);
  zps_encoder_write(encoders->ordered, 0, ZPS_CODEC_COO, slice);
  assert_int_equal(zps_slice_view_init(&view, ZPS_CODEC_COO, 10, 1, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, slice, len, NULL),
                   ZPS_OK);
  assert_true(*(const float *)view.values == 5.0f);
  rows[5] = 8; /* row 7 is 1e8 + 1, row 8 is -1e8 */
  assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, NULL), ZPS_OK);
  assert_int_equal(zps_encoder_nnz(encoders->ordered, 0), 3);
  input.zero_rows = true; /* rows 2 and 3, too */
  for (unsigned i = 0; i < 2; i++) {
    struct zps_encoder *const encoder = i ? encoders->hierarchical : encoders->ordered;
    static const uint32_t wanted[] = {0, 2, 3, 7, 8};
    assert_int_equal(zps_encoder_scan(encoder, &input, NULL, NULL), ZPS_OK);
    assert_int_equal(zps_encoder_nnz(encoder, 0), sizeof wanted / sizeof wanted[0]);
    assert_memory_equal(zps_encoder_indices(encoder, 0), wanted, sizeof wanted);
  }
}

static void no_element_is_an_error(void **state) {
  struct encoders *const encoders = *state;
  struct zps_partition part;
  struct zps_error error;
  assert_int_equal(zps_partition_init(&part, 10, 1, 0, 1, NULL), ZPS_OK);
  struct zps_encode_input input = {.part = &part, .width = 0, .dtype = ZPS_DTYPE_F32, .value_codec = ZPS_VALUES_RAW};
  assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, &error), ZPS_ERR_INVALID);
  input.width = 1;
  input.dtype = (enum zps_dtype)9;
  assert_int_equal(zps_encoder_scan(encoders->ordered, &input, NULL, &error), ZPS_ERR_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_rows_are_named),
      cmocka_unit_test(repeats_add_up_in_order_of_appearance),
      cmocka_unit_test(no_element_is_an_error),
  };
  return cmocka_run_group_tests_name("encode input", tests, encoders_setup, encoders_teardown);
}
