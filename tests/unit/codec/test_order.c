/* Slices in any order become slices in order, or are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/order.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { M_MAX = 5000, WIDTH_MAX = 19 };

struct slice {
  uint32_t m, z, width;
  enum zps_dtype dtype;
  enum zps_value_codec value_codec;
  uint64_t len_bytes;
  unsigned char *ordered, *payload; /* two copies of the rows */
};

static void draw(struct zps_rng *rng, uint32_t m, uint32_t z, uint32_t width, enum zps_dtype dtype,
                 enum zps_value_codec value_codec, struct slice *slice) {
  const uint64_t values_bytes = zps_values_bytes(value_codec, dtype, (uint64_t)z * width);
  const uint64_t each = zps_values_row_bytes(value_codec, dtype, width);
  *slice = (struct slice){m, z, width, dtype, value_codec, values_bytes + 4ull * z, NULL, NULL};
  slice->ordered = calloc(1, slice->len_bytes + 1);
  slice->payload = calloc(1, slice->len_bytes + 1);
  uint32_t *const indices = calloc(m + 1, sizeof *indices), *const order = calloc(z + 1, sizeof *order);
  assert_true(slice->ordered && slice->payload && indices && order);
  uint32_t n = 0;
  for (uint32_t index = 0; index < m; index++)
    if (zps_rng_below(rng, m - index) < z - n) indices[n++] = index;
  assert_int_equal(n, z);
  for (uint64_t i = 0; i < z * each; i++) slice->ordered[i] = (unsigned char)zps_rng_below(rng, 250);
  for (uint32_t i = 0; i < z; i++) {
    const uint32_t at = (uint32_t)zps_rng_below(rng, i + 1);
    order[i] = order[at];
    order[at] = i;
  }
  for (uint32_t i = 0; i < z; i++) {
    memcpy(slice->ordered + values_bytes + 4ull * i, &indices[i], 4);
    memcpy(slice->payload + values_bytes + 4ull * i, &indices[order[i]], 4);
    memcpy(slice->payload + i * each, slice->ordered + order[i] * each, each);
  }
  free(indices);
  free(order);
}

static void drop(struct slice *slice) {
  free(slice->ordered);
  free(slice->payload);
}

static zps_err_t order(struct slice *slice, struct zps_buffer *scratch, struct zps_error *error) {
  return zps_slice_order(slice->m, slice->z, slice->width, slice->dtype, slice->value_codec, slice->payload, scratch,
                         error);
}

static void rows_move_to_their_places(void **state) {
  (void)state;
  static const struct {
    uint32_t m, z;
  } sets[] = {{0, 0}, {1, 0}, {1, 1}, {64, 64}, {65, 64}, {M_MAX, 1}, {M_MAX, 700}, {M_MAX, M_MAX}};
  static const uint32_t widths[] = {1, 2, 3, WIDTH_MAX};
  static const enum zps_value_codec codecs[] = {ZPS_VALUES_RAW, ZPS_VALUES_BF16, ZPS_VALUES_F16};
  struct zps_rng rng = {.state = 2};
  struct zps_buffer scratch = {0};
  struct zps_error error;
  for (unsigned s = 0; s < COUNT(sets); s++)
    for (unsigned w = 0; w < COUNT(widths); w++)
      for (unsigned c = 0; c < COUNT(codecs); c++)
        for (enum zps_dtype dtype = ZPS_DTYPE_F32; dtype <= ZPS_DTYPE_F64; dtype++) {
          struct slice slice;
          draw(&rng, sets[s].m, sets[s].z, widths[w], dtype, codecs[c], &slice);
          for (unsigned again = 0; again < 2; again++) { /* what is in order stays so */
            assert_int_equal(order(&slice, &scratch, &error), ZPS_OK);
            assert_memory_equal(slice.payload, slice.ordered, slice.len_bytes);
          }
          struct zps_slice_view view;
          assert_int_equal(zps_slice_view_init(&view, ZPS_CODEC_COO, slice.m, slice.z, slice.width, dtype, codecs[c],
                                               slice.payload, slice.len_bytes, &error),
                           ZPS_OK);
          drop(&slice);
        }
  zps_buffer_fini(&scratch);
}

/* Nothing has moved then. */
static void wrong_indices_are_named(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 9};
  struct zps_buffer scratch = {0};
  for (unsigned round = 0; round < 200; round++) {
    struct slice slice;
    struct zps_error error;
    draw(&rng, 1000, 200, 2, ZPS_DTYPE_F32, ZPS_VALUES_RAW, &slice);
    const uint64_t values_bytes = 200 * 8, bad = zps_rng_below(&rng, 200);
    uint32_t wrong = 1000 + (uint32_t)zps_rng_below(&rng, UINT32_MAX - 1000);
    const bool twice = round % 2;
    if (twice) memcpy(&wrong, slice.payload + values_bytes + (bad + 1) % 200 * 4, 4);
    memcpy(slice.payload + values_bytes + bad * 4, &wrong, 4);
    unsigned char *const before = malloc(slice.len_bytes);
    assert_non_null(before);
    memcpy(before, slice.payload, slice.len_bytes);
    assert_int_equal(order(&slice, &scratch, &error), ZPS_ERR_PROTOCOL);
    char says[64];
    snprintf(says, sizeof says, "index %u at position", wrong);
    assert_non_null(strstr(error.text, says));
    assert_non_null(strstr(error.text, twice ? "is there twice" : "has indices 0 to 999"));
    assert_memory_equal(slice.payload, before, slice.len_bytes);
    free(before);
    drop(&slice);
  }
  zps_buffer_fini(&scratch);
}

/* Only a server that expects it takes one. */
static void nobody_else_takes_them(void **state) {
  (void)state;
  uint32_t payload[4] = {0};
  struct zps_slice_view view;
  struct zps_error error;
  assert_int_equal(zps_slice_check_sizes(ZPS_CODEC_COO_ANY, 9, 1, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, 8, &error),
                   ZPS_ERR_PROTOCOL);
  assert_int_equal(
      zps_slice_view_init(&view, ZPS_CODEC_COO_ANY, 9, 1, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, payload, 8, &error),
      ZPS_ERR_PROTOCOL);
  assert_string_equal(zps_codec_name(ZPS_CODEC_COO_ANY), "coo-any");
}

static void the_paper_pushes_them(void **state) {
  (void)state;
  assert_true(zps_order_is_any(ZPS_PARTITIONER_HIERARCHICAL, ZPS_CODEC_PAPER, ZPS_VALUES_RAW));
  assert_true(zps_order_is_any(ZPS_PARTITIONER_HIERARCHICAL, ZPS_CODEC_PAPER, ZPS_VALUES_BF16));
  assert_false(zps_order_is_any(ZPS_PARTITIONER_HIERARCHICAL, ZPS_CODEC_PAPER, ZPS_VALUES_QSGD4));
  assert_false(zps_order_is_any(ZPS_PARTITIONER_HIERARCHICAL, ZPS_CODEC_AUTO, ZPS_VALUES_RAW));
  assert_false(zps_order_is_any(ZPS_PARTITIONER_MURMUR, ZPS_CODEC_PAPER, ZPS_VALUES_RAW));
  uint64_t bytes;
  const uint32_t indices[] = {5, 2, 9};
  assert_int_equal(zps_codec_choose(ZPS_CODEC_ANY_ORDER, 10, indices, 3, &bytes), ZPS_CODEC_COO_ANY);
  assert_int_equal(bytes, 12);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_move_to_their_places),
      cmocka_unit_test(wrong_indices_are_named),
      cmocka_unit_test(nobody_else_takes_them),
      cmocka_unit_test(the_paper_pushes_them),
  };
  return cmocka_run_group_tests_name("order", tests, NULL, NULL);
}
