/* Runs of rows, and the rows of a slice that are in them, against the plainest way to pick them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/codec_choice.h"
#include "common/codec/runs.h"

enum { M = 3000, ALL = (1u << ZPS_CODEC_COUNT) - 1 };

static size_t make_runs(struct zps_rng *rng, double density, struct zps_index_run *runs, uint8_t *wanted,
                        uint32_t *n_p) {
  size_t n_runs = 0;
  uint32_t n = 0;
  memset(wanted, 0, M);
  for (uint32_t i = 0; i < M;) {
    if (zps_rng_unit(rng) >= density) {
      i++;
      continue;
    }
    uint32_t len = 1 + (uint32_t)(zps_rng_u64(rng) % 40) * (zps_rng_u64(rng) % 2);
    if (len > M - i) len = M - i;
    runs[n_runs++] = (struct zps_index_run){i, len};
    memset(wanted + i, 1, len);
    n += len;
    i += len;
  }
  *n_p = n;
  return n_runs;
}

static void test_runs_come_back(void **state) {
  (void)state;
  static struct zps_index_run runs[M];
  static uint8_t wanted[M], bytes[M * ZPS_RUN_BYTES_MAX];
  struct zps_rng rng = {.state = 7};
  for (unsigned round = 0; round < 200; round++) {
    uint32_t n, end = 0;
    const size_t n_runs = make_runs(&rng, zps_rng_unit(&rng), runs, wanted, &n);
    uint8_t *to = bytes;
    for (size_t i = 0; i < n_runs; end = runs[i].first + runs[i].n, i++) to = zps_index_run_put(to, end, runs[i]);
    const uint8_t *at = bytes;
    end = 0;
    for (size_t i = 0; i < n_runs; i++) {
      struct zps_index_run run;
      struct zps_error error;
      assert_int_equal(zps_index_run_get(&at, to, end, M, &run, &error), ZPS_OK);
      assert_int_equal(run.first, runs[i].first);
      assert_int_equal(run.n, runs[i].n);
      end = run.first + run.n;
    }
    assert_ptr_equal(at, to);
  }
}

static void expect_bad_run(const char *bytes, size_t len, uint32_t end, uint32_t m, const char *text) {
  const uint8_t *at = (const uint8_t *)bytes;
  struct zps_index_run run;
  struct zps_error error;
  assert_int_equal(zps_index_run_get(&at, at + len, end, m, &run, &error), ZPS_ERR_PROTOCOL);
  if (!strstr(error.text, text)) fail_msg("unexpected text: %s", error.text);
}

static void test_runs_of_strangers(void **state) {
  (void)state;
  expect_bad_run("", 0, 0, 10, "no number");
  expect_bad_run("\x80", 1, 0, 10, "no number");
  expect_bad_run("\x01", 1, 0, 10, "no number");
  expect_bad_run("\x14", 1, 0, 10, "a run of 1 rows, 10 after index 0, in a partition of 10");
  expect_bad_run("\x00", 1, 10, 10, "in a partition of 10");
  expect_bad_run("\x01\x09", 2, 0, 10, "a run of 11 rows");
  expect_bad_run("\x05\x05", 2, 2, 10, "a run of 7 rows, 2 after index 2");
  expect_bad_run("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, 0, 10, "a run of 1 rows"); /* 2^64 + 1 of them */
}

static void test_runs_have_rows(void **state) {
  (void)state;
  const struct zps_index_run runs[] = {{2, 1}, {5, 3}};
  const uint32_t in[] = {2, 5, 7}, before[] = {1}, between[] = {2, 4}, behind[] = {7, 8};
  assert_true(zps_runs_have(runs, 2, in, 3));
  assert_true(zps_runs_have(runs, 0, NULL, 0));
  assert_false(zps_runs_have(runs, 2, before, 1));
  assert_false(zps_runs_have(runs, 2, between, 2));
  assert_false(zps_runs_have(runs, 2, behind, 2));
}

/* A slice of random rows in `codec`; the values are counted from 1. */
static uint64_t make_slice(struct zps_rng *rng, double density, enum zps_codec codec, uint32_t width,
                           enum zps_value_codec value_codec, unsigned char *out, uint8_t *has, uint32_t *z_p) {
  uint32_t indices[M], z = 0;
  for (uint32_t i = 0; i < M; i++) {
    has[i] = zps_rng_unit(rng) < density;
    if (has[i]) indices[z++] = i;
  }
  const uint64_t n = (uint64_t)z * width, bytes = zps_values_bytes(value_codec, ZPS_DTYPE_F32, n);
  memset(out, 0, bytes);
  for (uint64_t i = 0; i < n; i++) {
    if (value_codec == ZPS_VALUES_RAW)
      ((uint32_t *)out)[i] = (uint32_t)i + 1;
    else
      ((uint16_t *)out)[i] = (uint16_t)(i % 30000 + 1);
  }
  *z_p = z;
  return bytes + zps_codec_index_encode(codec, M, indices, z, out + bytes);
}

static void check_pick(struct zps_rng *rng, enum zps_codec codec, uint32_t width, enum zps_value_codec value_codec) {
  static unsigned char slice[M * 3 * 4 + 4 * M + 64], out[sizeof slice];
  static struct zps_index_run runs[M];
  static uint8_t has[M], wanted[M];
  uint32_t z, n_wanted, indices[M], from = 0, n = 0;
  struct zps_buffer scratch = {0};
  struct zps_slice_view view, back;
  struct zps_picked picked;
  struct zps_error error;
  const uint64_t len = make_slice(rng, zps_rng_unit(rng), codec, width, value_codec, slice, has, &z);
  const size_t n_runs = make_runs(rng, zps_rng_unit(rng) / 4, runs, wanted, &n_wanted);
  assert_int_equal(zps_slice_view_init(&view, codec, M, z, width, ZPS_DTYPE_F32, value_codec, slice, len, &error),
                   ZPS_OK);
  assert_int_equal(zps_pick(&view, runs, n_runs, ALL, &scratch, out, &picked), ZPS_OK);
  assert_true(picked.len_bytes <= zps_pick_bound(ALL, &view, n_wanted));
  assert_int_equal(zps_slice_view_init(&back, picked.codec, M, picked.nnz, width, ZPS_DTYPE_F32, value_codec, out,
                                       picked.len_bytes, &error),
                   ZPS_OK);
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, &back);
  while (zps_index_cursor_read(&cursor, M, indices + cursor.next, M - cursor.next) > 0) continue;
  assert_true(zps_runs_have(runs, n_runs, indices, picked.nnz));
  const uint64_t row_bytes = zps_values_row_bytes(value_codec, ZPS_DTYPE_F32, width);
  for (uint32_t i = 0; i < M; i++) {
    if (has[i] && wanted[i]) {
      assert_int_equal(indices[n], i);
      assert_memory_equal(out + n * row_bytes, slice + from * row_bytes, row_bytes);
      n++;
    }
    from += has[i];
  }
  assert_int_equal(n, picked.nnz);
  zps_buffer_fini(&scratch);
}

static void test_picked_rows_are_those_wanted(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 11};
  for (unsigned round = 0; round < 60; round++)
    for (unsigned codec = 0; codec < ZPS_CODEC_COUNT; codec++)
      for (uint32_t width = 1; width <= 3; width++) {
        check_pick(&rng, (enum zps_codec)codec, width, ZPS_VALUES_RAW);
        check_pick(&rng, (enum zps_codec)codec, width, ZPS_VALUES_BF16);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs_come_back), cmocka_unit_test(test_runs_of_strangers),
                                     cmocka_unit_test(test_runs_have_rows),
                                     cmocka_unit_test(test_picked_rows_are_those_wanted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
