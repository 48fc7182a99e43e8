/* Slices of successive partitions joined and taken apart again: the same rows and values, with all codecs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/codec_choice.h"
#include "common/codec/join.h"

enum { PARTS = 20, ALL = (1u << ZPS_CODEC_COUNT) - 1 };

struct made {
  uint32_t n, m[PARTS], z[PARTS];
  uint64_t m_all, z_all, bytes; /* of the slices before they are joined */
  uint64_t len[PARTS];
  unsigned char payload[PARTS][ZPS_JOIN_BYTES_MAX + 64], coo[PARTS][ZPS_JOIN_BYTES_MAX];
  struct zps_slice_view views[PARTS];
};

static void make_part(struct made *made, struct zps_rng *rng, uint32_t width, enum zps_dtype dtype,
                      enum zps_value_codec value_codec, double density) {
  const uint32_t i = made->n, m = made->m[i];
  uint32_t *indices = malloc((m + 1) * sizeof *indices), z = 0;
  for (uint32_t index = 0; index < m; index++)
    if (zps_rng_unit(rng) < density && zps_join_fits(made->m_all, made->z_all + z + 1, width, dtype, value_codec))
      indices[z++] = index;
  uint64_t index_bytes;
  const enum zps_codec codec = zps_codec_choose(ALL, m, indices, z, &index_bytes);
  const uint64_t n_values = (uint64_t)z * width, values_bytes = zps_values_bytes(value_codec, dtype, n_values);
  for (uint64_t k = 0; k < values_bytes; k++) made->payload[i][k] = (unsigned char)zps_rng_u64(rng);
  if (value_codec != ZPS_VALUES_RAW && n_values % 2) memset(made->payload[i] + 2 * n_values, 0, 2);
  zps_codec_index_encode(codec, m, indices, z, made->payload[i] + values_bytes);
  memcpy(made->coo[i], made->payload[i], values_bytes);
  memcpy(made->coo[i] + values_bytes, indices, z * sizeof *indices);
  made->z[i] = z;
  made->z_all += z;
  made->len[i] = values_bytes + z * sizeof *indices;
  made->bytes += values_bytes + index_bytes;
  struct zps_error error;
  assert_int_equal(zps_slice_view_init(&made->views[i], codec, m, z, width, dtype, value_codec, made->payload[i],
                                       values_bytes + index_bytes, &error),
                   ZPS_OK);
  made->n++;
  free(indices);
}

static void join(const struct made *made, uint32_t width, enum zps_dtype dtype, enum zps_value_codec value_codec,
                 struct zps_joined *joined) {
  zps_join_init(joined, width, dtype, value_codec);
  for (uint32_t i = 0; i < made->n; i++) zps_join_add(joined, &made->views[i]);
  assert_int_equal(joined->m, made->m_all);
  assert_int_equal(joined->z, made->z_all);
}

static void check_split(const struct made *made, struct zps_split *split) {
  for (uint32_t i = 0; i < made->n; i++) {
    unsigned char coo[ZPS_JOIN_BYTES_MAX];
    assert_int_equal(zps_split_next(split, made->m[i]), made->z[i]);
    assert_int_equal(zps_split_write(split, coo), made->len[i]);
    assert_memory_equal(coo, made->coo[i], made->len[i]);
  }
}

static void test_join_and_split(void **state) {
  (void)state;
  static const enum zps_dtype dtypes[] = {ZPS_DTYPE_U8, ZPS_DTYPE_F32, ZPS_DTYPE_F64};
  static const double densities[] = {0, 0.001, 0.02, 0.3, 0.97, 1};
  struct zps_rng rng = {.state = 5};
  static struct made made;
  for (unsigned round = 0; round < 3000; round++) {
    const enum zps_dtype dtype = dtypes[zps_rng_below(&rng, 3)];
    const enum zps_value_codec value_codec =
        dtype == ZPS_DTYPE_U8 ? ZPS_VALUES_RAW : (enum zps_value_codec)(ZPS_VALUES_RAW + zps_rng_below(&rng, 3));
    const uint32_t width = 1 + (uint32_t)zps_rng_below(&rng, 4), n = 2 + (uint32_t)zps_rng_below(&rng, PARTS - 1);
    memset(&made, 0, offsetof(struct made, len));
    for (uint32_t i = 0; i < n; i++) { /* some have no rows at all */
      made.m[i] = zps_rng_below(&rng, 4) ? (uint32_t)zps_rng_below(&rng, 400) : 0;
      made.m_all += made.m[i];
    }
    for (uint32_t i = 0; i < n; i++)
      make_part(&made, &rng, width, dtype, value_codec, densities[zps_rng_below(&rng, 6)]);
    struct zps_joined joined;
    join(&made, width, dtype, value_codec, &joined);
    for (unsigned allowed = 1; allowed <= ALL; allowed++) {
      unsigned char out[2 * ZPS_JOIN_BYTES_MAX];
      enum zps_codec codec;
      uint64_t len;
      struct zps_error error;
      struct zps_split split;
      assert_true(zps_join_write(&joined, allowed, out, sizeof out, &codec, &len));
      assert_true(allowed >> codec & 1);
      if (len > 0) assert_false(zps_join_write(&joined, allowed, out, len - 1, &codec, &len));
      void *copy = malloc(len + 1); /* where a sanitizer sees a read too far */
      memcpy(copy, out, len);
      assert_int_equal(
          zps_split_init(&split, codec, made.m_all, (uint32_t)made.z_all, width, dtype, value_codec, copy, len, &error),
          ZPS_OK);
      check_split(&made, &split);
      free(copy);
    }
  }
}

/* In a round of few rows, joining saves the bytes by which the code of each slice is rounded up. */
static void test_joining_saves(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 6};
  static struct made made;
  uint64_t before = 0, after = 0;
  for (unsigned round = 0; round < 50; round++) {
    memset(&made, 0, offsetof(struct made, len));
    for (uint32_t i = 0; i < 4; i++) made.m_all += made.m[i] = 26214;
    for (uint32_t i = 0; i < 4; i++) make_part(&made, &rng, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, 0.001);
    struct zps_joined joined;
    unsigned char out[ZPS_JOIN_BYTES_MAX];
    enum zps_codec codec;
    uint64_t len;
    join(&made, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, &joined);
    assert_true(zps_join_write(&joined, ALL, out, sizeof out, &codec, &len));
    before += made.bytes;
    after += len;
  }
  assert_true(after < before);
}

static void expect_refused(uint32_t codec, uint64_t m, uint32_t nnz, uint64_t len, const char *text) {
  static const uint32_t words[64] = {0, 0, 9, 3};
  struct zps_error error;
  struct zps_split split;
  assert_int_equal(zps_split_init(&split, codec, m, nnz, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, words, len, &error),
                   ZPS_ERR_PROTOCOL);
  if (!strstr(error.text, text)) fail_msg("unexpected text: %s", error.text);
}

static void test_what_no_peer_may_send(void **state) {
  (void)state;
  expect_refused(ZPS_CODEC_COO, 1ull << 32, 2, 16, "of fewer than 2^32 rows");
  expect_refused(ZPS_CODEC_COO, 100000, 513, 513 * 8, "at most 4096 bytes as coo");
  expect_refused(ZPS_CODEC_COO, 10, 2, 17, "as coo take 16");
  expect_refused(ZPS_CODEC_COO, 10, 2, 16, "indices must ascend");
  expect_refused(7, 10, 2, 16, "slice in codec 7");
  assert_true(zps_join_fits(UINT32_MAX, 512, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW));
  assert_false(zps_join_fits(UINT32_MAX, 1, 1 << 20, ZPS_DTYPE_F64, ZPS_VALUES_RAW));
  assert_false(zps_join_fits(10, UINT64_MAX / 5 + 2, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW)); /* the product would wrap */
  assert_true(zps_join_fits(10, 682, 1, ZPS_DTYPE_F32, ZPS_VALUES_BF16));
  assert_false(zps_join_fits(10, 683, 1, ZPS_DTYPE_F32, ZPS_VALUES_F16)); /* 6 bytes each, and 2 of padding */
  assert_false(zps_join_fits(10, 1, 1, ZPS_DTYPE_F32, ZPS_VALUES_QSGD8));
  assert_true(zps_join_fits(1000, ZPS_JOIN_ROWS_MAX, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_join_and_split),
      cmocka_unit_test(test_joining_saves),
      cmocka_unit_test(test_what_no_peer_may_send),
  };
  return cmocka_run_group_tests_name("join", tests, NULL, NULL);
}
