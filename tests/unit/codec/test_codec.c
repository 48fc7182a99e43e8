#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/codec/codec.h"
#include "common/codec/sort.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void names_and_sizes(void **state) {
  (void)state;
  enum zps_dtype dtype;
  static const struct {
    enum zps_dtype dtype;
    const char *name;
    size_t size;
  } dtypes[] = {{ZPS_DTYPE_F32, "f32", 4},
                {ZPS_DTYPE_F64, "f64", 8},
                {ZPS_DTYPE_U8, "u8", 1},
                {ZPS_DTYPE_BF16, "bf16", 2},
                {ZPS_DTYPE_F16, "f16", 2}};
  for (unsigned i = 0; i < COUNT(dtypes); i++) {
    assert_int_equal(zps_dtype_size(dtypes[i].dtype), dtypes[i].size);
    assert_string_equal(zps_dtype_name(dtypes[i].dtype), dtypes[i].name);
    assert_true(zps_dtype_parse(dtypes[i].name, &dtype));
    assert_int_equal(dtype, dtypes[i].dtype);
  }
  assert_int_equal(zps_dtype_size((enum zps_dtype)0), 0);
  assert_int_equal(zps_dtype_size((enum zps_dtype)6), 0);
  assert_int_equal(zps_dtype_size((enum zps_dtype) - 1), 0);
  assert_string_equal(zps_dtype_name((enum zps_dtype)0), "?");
  assert_false(zps_dtype_parse("f17", &dtype));
  assert_false(zps_dtype_parse("", &dtype));
  assert_string_equal(zps_codec_name(ZPS_CODEC_COO), "coo");
  assert_string_equal(zps_codec_name(ZPS_CODEC_BITMAP), "bitmap");
  assert_string_equal(zps_codec_name(ZPS_CODEC_RICE), "rice");
  assert_string_equal(zps_codec_name(ZPS_CODEC_HOLES), "holes");
  assert_string_equal(zps_codec_name(ZPS_CODEC_COO_ANY + 1), "?");
  assert_string_equal(zps_op_name(ZPS_OP_MEAN), "mean");
  assert_string_equal(zps_op_name(ZPS_OP_MAX), "max");
  assert_string_equal(zps_op_name(ZPS_OP_MIN), "min");
  assert_string_equal(zps_op_name(ZPS_OP_SUM), "sum");
  assert_string_equal(zps_op_name((enum zps_op)0), "?");
}

/* The formulas of the paper: 4 bytes an index as COO, one bit a row as hash bitmap. */
static void wire_sizes(void **state) {
  (void)state;
  assert_int_equal(zps_codec_index_bytes(ZPS_CODEC_COO, 1000, 0), 0);
  assert_int_equal(zps_codec_index_bytes(ZPS_CODEC_COO, 1000, 10), 40);
  assert_int_equal(zps_codec_index_bytes(ZPS_CODEC_BITMAP, 0, 0), 0);
  assert_int_equal(zps_codec_index_bytes(ZPS_CODEC_BITMAP, 1, 0), 4);
  assert_int_equal(zps_codec_index_bytes(ZPS_CODEC_BITMAP, 32, 7), 4);
  assert_int_equal(zps_codec_index_bytes(ZPS_CODEC_BITMAP, 33, 33), 8);
  assert_int_equal(zps_codec_index_bytes(ZPS_CODEC_BITMAP, UINT32_MAX, 1), 1ull << 29);
  assert_int_equal(zps_codec_slice_bytes(ZPS_CODEC_COO, 1000, 10, 64, ZPS_DTYPE_F32, ZPS_VALUES_RAW), 10 * 64 * 4 + 40);
  assert_int_equal(zps_codec_slice_bytes(ZPS_CODEC_BITMAP, 100, 10, 3, ZPS_DTYPE_F64, ZPS_VALUES_RAW), 10 * 3 * 8 + 16);
  assert_int_equal(
      zps_codec_slice_bytes(ZPS_CODEC_COO, UINT32_MAX, UINT32_MAX, UINT32_MAX, ZPS_DTYPE_F64, ZPS_VALUES_RAW),
      UINT64_MAX);
}

/* z ascending indices below m. */
static uint32_t *draw_indices(struct zps_rng *rng, uint32_t m, double density, uint32_t *z_p) {
  uint32_t *const indices = malloc((m + 1ull) * sizeof *indices), z = 0;
  assert_non_null(indices);
  for (uint32_t index = 0; index < m; index++)
    if (zps_rng_unit(rng) < density) indices[z++] = index;
  *z_p = z;
  return indices;
}

/* Reads with every limit and capacity return the indices that were coded. */
static void check_cursor(const struct zps_slice_view *view, const uint32_t *indices, uint32_t step, uint32_t cap) {
  struct zps_index_cursor cursor;
  uint32_t *const out = malloc(cap * sizeof *out + 1), at = 0; /* nothing behind it may be written */
  assert_non_null(out);
  zps_index_cursor_init(&cursor, view);
  for (uint64_t limit = step; at < view->z; limit += step) {
    const uint32_t end = limit < view->m ? (uint32_t)limit : step % 2 ? UINT32_MAX : view->m;
    for (uint32_t n; (n = zps_index_cursor_read(&cursor, end, out, cap)) > 0;) {
      assert_true(n <= cap);
      assert_memory_equal(out, indices + at, n * sizeof *out);
      assert_true(out[n - 1] < end);
      at += n;
      assert_int_equal(cursor.next, at);
      assert_true(n == cap || at == view->z || indices[at] >= end);
    }
    assert_true(at == view->z || indices[at] >= end);
    assert_int_equal(zps_index_cursor_peek(&cursor), at == view->z ? UINT32_MAX : indices[at]);
  }
  assert_int_equal(zps_index_cursor_read(&cursor, UINT32_MAX, out, cap), 0);
  free(out);
}

/* Reads some indices, passes those up to the next multiple of `stride` that lies ahead, and so on. */
static void check_seek(const struct zps_slice_view *view, const uint32_t *indices, uint32_t stride, uint32_t cap) {
  struct zps_index_cursor cursor;
  uint32_t *const out = malloc(cap * sizeof *out + 1), at = 0; /* nothing behind it may be written */
  assert_non_null(out);
  zps_index_cursor_init(&cursor, view);
  for (uint64_t limit = stride; limit <= view->m; limit += stride) {
    zps_index_cursor_seek(&cursor, (uint32_t)limit);
    while (at < view->z && indices[at] < limit) at++;
    assert_int_equal(cursor.next, at);
    assert_int_equal(zps_index_cursor_peek(&cursor), at == view->z ? UINT32_MAX : indices[at]);
    const uint32_t n = view->z - at < cap ? view->z - at : cap;
    assert_int_equal(zps_index_cursor_read(&cursor, view->m, out, cap), n);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(out[i], indices[at + i]);
    at += n;
  }
  zps_index_cursor_seek(&cursor, view->m);
  assert_int_equal(zps_index_cursor_peek(&cursor), UINT32_MAX);
  free(out);
}

static void sets_survive_coding(void **state) {
  (void)state;
  static const uint32_t sizes[] = {0, 1, 31, 32, 33, 64, 1000, 5003, 40009};
  static const double densities[] = {0, 1e-3, 0.01, 0.3, 0.9, 1};
  struct zps_rng rng = {.state = 2};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    for (unsigned d = 0; d < COUNT(densities); d++) {
      for (enum zps_codec codec = ZPS_CODEC_COO; codec < ZPS_CODEC_COUNT; codec++) {
        uint32_t z;
        uint32_t *const indices = draw_indices(&rng, sizes[s], densities[d], &z);
        /* bytes as values put the index at an odd address */
        const uint64_t len = z + zps_codec_index_exact(codec, sizes[s], indices, z);
        assert_true(len <= zps_codec_slice_bytes(codec, sizes[s], z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW));
        char *const payload = malloc(len + 1);
        struct zps_slice_view view;
        assert_non_null(payload);
        memset(payload, 0xee, len + 1);
        assert_int_equal(zps_codec_index_encode(codec, sizes[s], indices, z, payload + z), len - z);
        assert_int_equal((unsigned char)payload[len], 0xee);
        assert_int_equal(
            zps_slice_view_init(&view, codec, sizes[s], z, 1, ZPS_DTYPE_U8, ZPS_VALUES_RAW, payload, len, NULL),
            ZPS_OK);
        check_cursor(&view, indices, 1, 64);
        check_cursor(&view, indices, 7, 3);
        check_cursor(&view, indices, 32, 64);
        check_cursor(&view, indices, 100, 1);
        check_cursor(&view, indices, 100000, 64);
        check_cursor(&view, indices, 999, 512);
        check_cursor(&view, indices, 100000, 8000);
        check_seek(&view, indices, 1, 1);
        check_seek(&view, indices, 64, 0);
        check_seek(&view, indices, 97, 5);
        check_seek(&view, indices, 1000, 64);
        check_seek(&view, indices, 9001, 1100);
        free(payload);
        free(indices);
      }
    }
  }
}

static void expect_refused(uint32_t codec, uint32_t m, uint32_t nnz, const void *payload, uint64_t len,
                           const char *text) {
  struct zps_slice_view view = {.z = 77};
  struct zps_error error = {.code = ZPS_OK};
  assert_int_equal(zps_slice_view_init(&view, codec, m, nnz, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, payload, len, &error),
                   ZPS_ERR_PROTOCOL);
  assert_string_equal(error.text, text);
  assert_int_equal(view.z, 77);
}

static void wrong_slices_are_named(void **state) {
  (void)state;
  const uint32_t repeated[] = {0, 0, 0, 3, 5, 5}, falling[] = {0, 0, 0, 3, 9, 8}, beyond[] = {0, 0, 0, 3, 5, 10};
  const uint32_t few[] = {0, 0, 0, 0x03}, padding[] = {0, 0, 0, 0x403};
  expect_refused(4, 10, 3, repeated, 24, "slice in codec 4: must be 0 (coo), 1 (bitmap), 2 (rice) or 3 (holes)");
  expect_refused(0, 10, 11, repeated, 24, "slice of 11 rows in a partition of 10");
  expect_refused(0, 10, 3, repeated, 23, "slice of 23 bytes: 3 of 10 rows of 1 x f32 as coo take 24");
  expect_refused(1, 10, 3, few, 20, "slice of 20 bytes: 3 of 10 rows of 1 x f32 as bitmap take 16");
  expect_refused(0, 10, 3, repeated, 24, "coo slice: index 5 at position 2 follows 5: indices must ascend");
  expect_refused(0, 10, 3, falling, 24, "coo slice: index 8 at position 2 follows 9: indices must ascend");
  expect_refused(0, 10, 3, beyond, 24, "coo slice: index 10 at position 2: the partition has indices 0 to 9");
  expect_refused(1, 10, 3, few, 16, "bitmap slice: 2 bits are set, 3 rows were announced");
  expect_refused(1, 10, 3, padding, 16, "bitmap slice: a bit is set beyond the partition's 10 indices");
  struct zps_slice_view view;
  assert_int_equal(zps_slice_view_init(&view, 0, 10, 0, 0, ZPS_DTYPE_F32, ZPS_VALUES_RAW, NULL, 0, NULL),
                   ZPS_ERR_INVALID);
  assert_int_equal(zps_slice_view_init(&view, 0, 10, 0, 1, (enum zps_dtype)0, ZPS_VALUES_RAW, NULL, 0, NULL),
                   ZPS_ERR_INVALID);
  assert_int_equal(zps_slice_check_sizes(0, UINT32_MAX, UINT32_MAX, UINT32_MAX, ZPS_DTYPE_F64, ZPS_VALUES_RAW, 5, NULL),
                   ZPS_ERR_PROTOCOL);
}

/* For any bytes of a peer: the slice is refused, or the cursor yields z ascending indices below m without reading
 * elsewhere (which the address sanitizer watches: payloads end where their memory ends). */
static void hostile_payloads_do_no_harm(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 6};
  unsigned accepted = 0;
  for (unsigned i = 0; i < 20000; i++) {
    const enum zps_codec codec = (enum zps_codec)zps_rng_below(&rng, ZPS_CODEC_COUNT);
    const uint32_t m = (uint32_t)zps_rng_below(&rng, 200);
    uint32_t z;
    uint32_t *const indices = draw_indices(&rng, m, zps_rng_unit(&rng), &z);
    const uint64_t len = 4ull * z + zps_codec_index_exact(codec, m, indices, z);
    unsigned char *const payload = malloc(len ? len : 1);
    struct zps_slice_view view;
    struct zps_error error;
    assert_non_null(payload);
    memset(payload, 0, len);
    zps_codec_index_encode(codec, m, indices, z, payload + 4ull * z);
    const uint64_t index_len = len - 4ull * z;
    for (uint64_t n = zps_rng_below(&rng, 4); n > 0 && index_len > 0; n--)
      payload[4ull * z + zps_rng_below(&rng, index_len)] ^= (unsigned char)(1u << zps_rng_below(&rng, 8));
    uint32_t said_m = m, said_z = z, said_codec = codec;
    uint64_t said_len = len;
    switch (zps_rng_below(&rng, 8)) {
      case 0:
        said_m = (uint32_t)zps_rng_u64(&rng);
        break;
      case 1:
        said_z = (uint32_t)zps_rng_below(&rng, 300);
        break;
      case 2:
        said_codec = (uint32_t)zps_rng_below(&rng, 6);
        break;
      case 3:
        said_len = zps_rng_below(&rng, len + 1);
        break;
      case 4:
        said_m = m + (uint32_t)zps_rng_below(&rng, 3) - 1;
        break;
      default:
        break;
    }
    const zps_err_t code = zps_slice_view_init(&view, said_codec, said_m, said_z, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW,
                                               payload, said_len, &error);
    if (code == ZPS_OK) {
      struct zps_index_cursor cursor;
      uint32_t index, n = 0;
      uint64_t last = 0;
      accepted++;
      zps_index_cursor_init(&cursor, &view);
      for (; zps_index_cursor_read(&cursor, said_m, &index, 1) == 1; n++) {
        assert_true(index < said_m && (n == 0 || index > last));
        last = index;
      }
      assert_int_equal(n, said_z);
    } else {
      assert_int_equal(code, ZPS_ERR_PROTOCOL);
      assert_int_equal(error.code, ZPS_ERR_PROTOCOL);
    }
    free(payload);
    free(indices);
  }
  assert_true(accepted > 1000 && accepted < 19000);
}

static uint64_t fingerprint(uint64_t key, uint64_t value) {
  return zps_hash_mix64(key ^ zps_hash_mix64(value));
}

static void sorting_is_stable(void **state) {
  (void)state;
  static const uint64_t sizes[] = {0, 1, 2, 32, 33, 500, 20000};
  static const uint64_t ranges[] = {1, 2, 300, 1u << 20, UINT64_MAX};
  struct zps_rng rng = {.state = 5};
  for (unsigned s = 0; s < COUNT(sizes); s++) {
    struct zps_sort_pair *const pairs = malloc((2 * sizes[s] + 1) * sizeof *pairs);
    assert_non_null(pairs);
    for (unsigned r = 0; r < COUNT(ranges); r++) {
      uint64_t sum = 0;
      for (uint64_t i = 0; i < sizes[s]; i++) {
        pairs[i] = (struct zps_sort_pair){.key = zps_rng_below(&rng, ranges[r]), .value = i};
        sum += fingerprint(pairs[i].key, i);
      }
      zps_sort_pairs(pairs, pairs + sizes[s], sizes[s]);
      for (uint64_t i = 0; i < sizes[s]; i++) {
        sum -= fingerprint(pairs[i].key, pairs[i].value);
        if (i == 0) continue;
        assert_true(pairs[i - 1].key <= pairs[i].key);
        assert_true(pairs[i - 1].key < pairs[i].key || pairs[i - 1].value < pairs[i].value);
      }
      assert_true(sum == 0); /* no pair was lost */
    }
    free(pairs);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_and_sizes),
      cmocka_unit_test(wire_sizes),
      cmocka_unit_test(sets_survive_coding),
      cmocka_unit_test(wrong_slices_are_named),
      cmocka_unit_test(hostile_payloads_do_no_harm),
      cmocka_unit_test(sorting_is_stable),
  };
  return cmocka_run_group_tests_name("codec", tests, NULL, NULL);
}
