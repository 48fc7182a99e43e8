/* Single floats of one partition, few or ascending, against sums in a table; and the sort that puts few in order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "common/codec/encode.h"
#include "common/codec/sort.h"

/* ------------------------------------------------------------ the sort */

static void check_sort(uint64_t n, uint64_t key_max) {
  struct zps_rng rng = {n ^ key_max};
  int64_t *keys = malloc((n + 1) * sizeof *keys);
  float *values = malloc((n + 1) * sizeof *values);
  struct zps_sort_entry *a = malloc((n + 1) * sizeof *a), *b = malloc((n + 1) * sizeof *b);
  assert_true(keys && values && a && b);
  for (uint64_t i = 0; i < n; i++) {
    keys[i] = (int64_t)(i % 3 == 0 ? key_max - zps_rng_below(&rng, key_max < 7 ? key_max + 1 : 7)
                                   : zps_rng_below(&rng, key_max + 1));
    values[i] = (float)i;
  }
  const struct zps_sort_entry *sorted = zps_sort_floats(keys, values, n, key_max, a, b);
  assert_true(sorted == a || sorted == b);
  uint8_t *seen = calloc(n + 1, 1);
  assert_non_null(seen);
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t from = (uint64_t)sorted[i].value;
    assert_true(from < n && !seen[from]);
    seen[from] = 1;
    assert_int_equal(sorted[i].key, keys[from]);
    if (i > 0) assert_true(sorted[i - 1].key <= sorted[i].key);
    if (i > 0 && sorted[i - 1].key == sorted[i].key) assert_true(sorted[i - 1].value < sorted[i].value);
  }
  free(seen);
  free(keys);
  free(values);
  free(a);
  free(b);
}

static void floats_are_sorted_stably(void **state) {
  (void)state;
  static const uint64_t lengths[] = {0, 1, 2, 100, 1023, 1024, 5000};
  static const uint64_t most[] = {0, 1, 255, 256, 4095, 4096, (1 << 16) - 1, (1 << 24) - 1, 1 << 24, UINT32_MAX};
  for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
    for (unsigned j = 0; j < sizeof most / sizeof *most; j++) check_sort(lengths[i], most[j]);
}

/* ------------------------------------------------------------ the scan */

struct rig {
  struct zps_partition part;
  struct zps_encoder *encoder;
  struct zps_rng rng;
  uint64_t n;
  int64_t *rows;
  float *values;
};

static void rig_init(struct rig *rig, uint64_t n_rows, uint64_t n) {
  struct zps_error error;
  *rig = (struct rig){.rng = {n_rows + n}, .n = n};
  assert_int_equal(zps_partition_init(&rig->part, n_rows, 1, 0, 7, &error), ZPS_OK);
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &rig->encoder), ZPS_OK);
  rig->rows = malloc((n + 1) * sizeof *rig->rows);
  rig->values = malloc((n + 1) * sizeof *rig->values);
  assert_true(rig->rows && rig->values);
}

static void rig_fini(struct rig *rig) {
  zps_encoder_destroy(rig->encoder);
  free(rig->rows);
  free(rig->values);
}

static zps_err_t scan(struct rig *rig, struct zps_error *error) {
  const struct zps_encode_input input = {.part = &rig->part,
                                         .width = 1,
                                         .dtype = ZPS_DTYPE_F32,
                                         .value_codec = ZPS_VALUES_RAW,
                                         .values = rig->values,
                                         .rows = rig->rows,
                                         .n_entries = rig->n};
  return zps_encoder_scan(rig->encoder, &input, NULL, error);
}

static float odd_value(struct rig *rig) {
  static const float odd[] = {0.0f, -0.0f, INFINITY, 1e-45f, -3.5f, 3.5f};
  const uint64_t i = zps_rng_below(&rig->rng, 12);
  return i < sizeof odd / sizeof *odd ? odd[i] : (float)zps_rng_below(&rig->rng, 1000) - 500.5f;
}

static void check_scan(struct rig *rig) {
  struct zps_error error;
  float *sums = calloc(rig->part.rows, sizeof *sums), *got = malloc((rig->n + 1) * sizeof *got);
  assert_true(sums && got);
  for (uint64_t i = 0; i < rig->n; i++) sums[rig->rows[i]] += rig->values[i];
  assert_int_equal(scan(rig, &error), ZPS_OK);
  const uint32_t nnz = zps_encoder_nnz(rig->encoder, 0), *const indices = zps_encoder_indices(rig->encoder, 0);
  zps_encoder_values(rig->encoder, 0, 0, nnz, got);
  uint32_t at = 0;
  for (uint64_t row = 0; row < rig->part.rows; row++) {
    if (sums[row] == 0) continue;
    assert_true(at < nnz);
    assert_int_equal(indices[at], row);
    if (!isnan(sums[row])) assert_memory_equal(&got[at], &sums[row], sizeof *got);
    if (isnan(sums[row])) assert_true(isnan(got[at]));
    at++;
  }
  assert_int_equal(at, nnz);
  assert_int_equal(zps_encoder_total_nnz(rig->encoder), nnz);
  free(sums);
  free(got);
}

static void few_rows_add_up(void **state) {
  (void)state;
  static const uint64_t lengths[] = {0, 1, 2, 31, 500, 2000, 4000};
  for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    for (unsigned repeats = 0; repeats < 2; repeats++) {
      struct rig rig;
      rig_init(&rig, 1 << 21, lengths[i]);
      for (uint64_t j = 0; j < rig.n; j++) {
        rig.rows[j] = (int64_t)zps_rng_below(&rig.rng, repeats ? 1 + rig.n / 3 : rig.part.rows);
        rig.values[j] = odd_value(&rig);
      }
      check_scan(&rig);
      rig_fini(&rig);
    }
  }
}

static void ascending_rows_are_as_they_are(void **state) {
  (void)state;
  static const uint64_t steps[] = {1, 2, 100};
  for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
    struct rig rig;
    rig_init(&rig, 20000, 20000 / steps[i]);
    for (uint64_t j = 0; j < rig.n; j++) {
      rig.rows[j] = (int64_t)(j * steps[i] + zps_rng_below(&rig.rng, steps[i]));
      rig.values[j] = odd_value(&rig);
    }
    check_scan(&rig);
    rig.rows[rig.n / 2] = rig.rows[rig.n / 2 - 1]; /* they do not ascend */
    check_scan(&rig);
    rig_fini(&rig);
  }
}

static void bad_rows_are_named(void **state) {
  (void)state;
  static const int64_t bad[] = {-1, 1 << 21, INT64_MAX, INT64_MIN};
  for (unsigned ascending = 0; ascending < 2; ascending++) {
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
      struct rig rig;
      struct zps_error error;
      rig_init(&rig, 1 << 21, 1000);
      for (uint64_t j = 0; j < rig.n; j++) {
        rig.rows[j] = (int64_t)(ascending ? j : rig.n - j);
        rig.values[j] = 1;
      }
      const uint64_t at = bad[i] < 0 ? 0 : 999;
      rig.rows[at] = bad[i];
      char want[80];
      snprintf(want, sizeof want, "row number %lld at position %llu of 1000", (long long)bad[i],
               (unsigned long long)at);
      assert_int_equal(scan(&rig, &error), ZPS_ERR_INVALID);
      assert_non_null(strstr(error.text, want));
      assert_int_equal(zps_encoder_nnz(rig.encoder, 0), 0);
      rig.rows[at] = 5; /* the encoder goes on after the error */
      check_scan(&rig);
      rig_fini(&rig);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(floats_are_sorted_stably),
      cmocka_unit_test(few_rows_add_up),
      cmocka_unit_test(ascending_rows_are_as_they_are),
      cmocka_unit_test(bad_rows_are_named),
  };
  cmocka_set_message_output(CM_OUTPUT_TAP);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
