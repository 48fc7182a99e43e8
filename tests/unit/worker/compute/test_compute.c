/* Each instruction that adds, codes or delivers against the slow and obvious way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "tests/unit/worker/compute/compute_rig.h"

static void check_sum(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  const uint32_t n = 1 + compute_draw(rig, 4);
  const enum zps_form form = (enum zps_form)compute_draw(rig, 3);
  const bool dense = form == ZPS_FORM_ALL;
  struct compute_ref *const expected = calloc(1, sizeof *expected);
  uint32_t streams[4];
  expected->lo = lo;
  expected->hi = hi;
  for (uint32_t i = 0; i < hi - lo; i++) expected->present[i] = dense;
  for (uint32_t k = 0; k < n; k++) {
    struct compute_ref *const ref = compute_draw_in(rig, k, lo, hi);
    streams[k] = zps_program_recv(&rig->program, 0, k, lo, hi);
    for (uint32_t i = 0; i < hi - lo; i++) {
      if (!ref->present[i]) continue;
      expected->present[i] = true;
      for (uint32_t j = 0; j < rig->compute.width; j++) {
        const double sum = expected->values[i][j] + ref->values[i][j];
        expected->values[i][j] = rig->compute.dtype == ZPS_DTYPE_F32 ? (double)(float)sum : sum;
      }
    }
    free(ref);
  }
  zps_program_sum(&rig->program, streams, n, form);
  const struct zps_slice_view view = compute_run(rig);
  compute_check_rows(rig, &view, expected);
  if (dense) assert_int_equal(view.z, view.m);
  free(expected);
}

static void check_own(struct compute_rig *rig, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_ref(rig, 0, hi);
  const struct zps_compute *const compute = &rig->compute;
  const uint32_t width = compute->width;
  int64_t rows[ROWS_MAX];
  double values[ROWS_MAX * WIDTH_MAX];
  const bool coo = compute_draw(rig, 2) == 0;
  const enum zps_form form = (enum zps_form)compute_draw(rig, 3);
  const bool dense = form == ZPS_FORM_ALL;
  struct zps_own_input input = {.n_rows = hi, .width = width, .dtype = compute->dtype, .values = values};
  for (uint64_t at = hi; at > 0; at--) { /* COO: descending */
    const uint64_t row = at - 1, to = coo ? input.n_entries : row;
    bool zero = true;
    for (uint32_t j = 0; j < width; j++) zero = zero && ref->values[row][j] == 0;
    if (zero) {
      ref->present[row] = false;
      if (!dense || coo) memset(ref->values[row], 0, sizeof ref->values[row]);
    }
    if (coo && zero) continue;
    rows[input.n_entries++] = (int64_t)row;
    for (uint32_t j = 0; j < width; j++) compute_store(compute->dtype, values, to * width + j, ref->values[row][j]);
  }
  if (coo) input.rows = rows;
  const uint64_t a = compute_draw(rig, (uint32_t)hi + 1), b = a + compute_draw(rig, (uint32_t)(hi - a) + 1);
  struct compute_ref *const piece = calloc(1, sizeof *piece);
  piece->lo = a;
  piece->hi = b;
  for (uint64_t row = a; row < b; row++) {
    piece->present[row - a] = ref->present[row] || dense;
    memcpy(piece->values[row - a], ref->values[row], sizeof piece->values[0]);
  }
  zps_program_own(&rig->program, a, b, form);
  const bool scan = zps_own_must_scan(&rig->program, &input);
  assert_int_equal(scan, form == ZPS_FORM_SPARSE || coo);
  assert_int_equal(zps_own_begin(rig->own, &input, scan, NULL, NULL), ZPS_OK);
  const struct zps_slice_view view = compute_run(rig);
  compute_check_rows(rig, &view, piece);
  if (dense) assert_int_equal(view.z, view.m);
  free(piece);
  free(ref);
}

static void check_narrow(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_in(rig, 0, lo, hi);
  const uint32_t m = (uint32_t)(hi - lo), width = rig->compute.width, bits = 2u << compute_draw(rig, 3);
  const uint32_t in = zps_program_recv(&rig->program, 0, 0, lo, hi);
  zps_program_narrow(&rig->program, in, zps_values_of_bits(bits), ZPS_FORM_ALL);
  const struct zps_slice_view view = compute_run(rig);
  assert_int_equal(view.z, m);
  assert_int_equal(zps_values_level_bits(view.value_codec), bits);
  double all[ROWS_MAX * WIDTH_MAX], coded[ROWS_MAX * WIDTH_MAX + 64];
  for (uint32_t i = 0; i < m * width; i++) compute_store(rig->compute.dtype, all, i, ref->values[i / width][i % width]);
  zps_values_encode(view.value_codec, rig->compute.dtype, all, (uint64_t)m * width,
                    zps_values_key(&rig->compute.origin, (uint32_t)lo), coded);
  assert_memory_equal(view.values, coded, zps_values_bytes(view.value_codec, rig->compute.dtype, (uint64_t)m * width));
  free(ref);
}

/* The rows that it has, under the same index. */
static void check_narrow_rows(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_in(rig, 0, lo, hi);
  const enum zps_value_codec codec = ZPS_VALUES_BF16 + compute_draw(rig, 5);
  const enum zps_dtype dtype = rig->compute.dtype;
  const uint32_t m = (uint32_t)(hi - lo), width = rig->compute.width;
  const uint32_t in = zps_program_recv(&rig->program, 0, 0, lo, hi);
  zps_program_narrow(&rig->program, in, codec, ZPS_FORM_SPARSE);
  const struct zps_slice_view view = compute_run(rig);
  assert_int_equal(view.value_codec, codec);
  assert_int_equal(view.z, rig->ins[0].view.z);
  assert_int_equal(view.codec, rig->ins[0].view.codec);
  double list[ROWS_MAX * WIDTH_MAX], coded[ROWS_MAX * WIDTH_MAX + 64];
  uint64_t n_values = 0;
  for (uint32_t i = 0; i < m; i++)
    for (uint32_t j = 0; ref->present[i] && j < width; j++) compute_store(dtype, list, n_values++, ref->values[i][j]);
  assert_int_equal(n_values, (uint64_t)view.z * width);
  zps_values_encode(codec, dtype, list, n_values, zps_values_key(&rig->compute.origin, ~(uint32_t)lo), coded);
  assert_memory_equal(view.values, coded, zps_values_bytes(codec, dtype, n_values));
  struct zps_index_cursor cursor;
  zps_index_cursor_init(&cursor, &view);
  for (uint32_t i = 0, index; i < m; i++) {
    if (!ref->present[i]) continue;
    assert_int_equal(zps_index_cursor_read(&cursor, view.m, &index, 1), 1);
    assert_int_equal(index, i);
  }
  free(ref);
}

static void check_result(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  struct compute_ref *const ref = compute_draw_in(rig, 0, lo, hi);
  const enum zps_dtype dtype = rig->compute.dtype;
  const uint32_t width = rig->compute.width, m = (uint32_t)(hi - lo);
  const unsigned divisor = 1 + compute_draw(rig, 3);
  double dense[ROWS_MAX * WIDTH_MAX], values[ROWS_MAX * WIDTH_MAX], factor = 1.0 / divisor, room;
  int64_t rows[ROWS_MAX];
  compute_store(dtype, &room, 0, factor);
  factor = compute_load(dtype, &room, 0);
  uint64_t n_rows;
  memset(dense, 0xff, sizeof dense);
  const struct zps_compute_result to = {.dtype = dtype,
                                        .dense = (char *)dense - lo * width * zps_dtype_size(dtype),
                                        .lo = lo,
                                        .hi = hi,
                                        .divisor = divisor};
  assert_int_equal(zps_compute_result_dense(rig->scratch, &rig->ins[0], 1, &to, &n_rows), ZPS_OK);
  assert_int_equal(n_rows, rig->ins[0].view.z);
  const bool skip_zeros = compute_draw(rig, 2) == 0;
  const uint32_t n = zps_compute_result_rows(&rig->ins[0], dtype, divisor, skip_zeros, rows, values);
  uint32_t next = 0;
  for (uint32_t i = 0; i < m; i++) {
    bool zero = true;
    for (uint32_t j = 0; j < width; j++) zero = zero && ref->values[i][j] == 0;
    const bool listed = ref->present[i] && !(skip_zeros && zero);
    if (listed) assert_int_equal(rows[next], (int64_t)(lo + i));
    for (uint32_t j = 0; j < width; j++) {
      compute_store(dtype, &room, 0, divisor == 1 ? ref->values[i][j] : ref->values[i][j] * factor);
      const double want = compute_load(dtype, &room, 0);
      assert_true(compute_load(dtype, dense, (uint64_t)i * width + j) == want);
      if (listed) assert_true(compute_load(dtype, values, (uint64_t)next * width + j) == want);
    }
    next += listed;
  }
  assert_int_equal(n, next);
  free(ref);
}

static void own_at_zero(struct compute_rig *rig, uint64_t lo, uint64_t hi) {
  check_own(rig, hi - lo + 1);
}

static void test_sum(void **state) {
  (void)state;
  compute_any_stream(check_sum);
}

static void test_own(void **state) {
  (void)state;
  compute_any_stream(own_at_zero);
}

static void test_narrow(void **state) {
  (void)state;
  compute_any_stream(check_narrow);
  compute_any_stream(check_narrow_rows);
}

static void test_result(void **state) {
  (void)state;
  compute_any_stream(check_result);
}

static void test_vectors(void **state) {
  (void)state;
  struct compute_rig rig;
  compute_rig_init(&rig);
  rig.compute.op = ZPS_OP_MEAN;
  const double doubles[] = {1.5, -2, 1e300};
  zps_program_vector(&rig.program, doubles, 3);
  struct zps_slice_view view = compute_run(&rig);
  double copy[3];
  memcpy(copy, doubles, sizeof copy);
  zps_compute_doubles(&view, copy);
  assert_memory_equal(copy, doubles, sizeof copy);
  view.values = copy;
  rig.ins[0] = rig.ins[1] = (struct zps_compute_in){0, 3, view};
  const uint32_t ins[] = {0, 0};
  zps_program_sum(&rig.program, ins, 2, ZPS_FORM_SPARSE);
  view = compute_run(&rig);
  for (uint32_t i = 0; i < 3; i++) assert_true(compute_vector_at(&view, i) == 2 * doubles[i]);
  compute_rig_fini(&rig);
}

static zps_err_t make_scratch(void *ctx) {
  return zps_compute_scratch_create(ctx);
}

static void drop_scratch(void *ctx) {
  zps_compute_scratch_destroy(*(struct zps_compute_scratch **)ctx);
}

static zps_err_t make_own(void *ctx) {
  return zps_own_create(ctx);
}

static void drop_own(void *ctx) {
  zps_own_destroy(*(struct zps_own **)ctx);
}

static void test_oom(void **state) {
  (void)state;
  struct zps_compute_scratch *scratch = NULL;
  struct zps_own *own = NULL;
  oom_sweep(make_scratch, drop_scratch, &scratch, 2);
  oom_sweep(make_own, drop_own, &own, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sum),    cmocka_unit_test(test_own),     cmocka_unit_test(test_narrow),
      cmocka_unit_test(test_result), cmocka_unit_test(test_vectors), cmocka_unit_test(test_oom),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
