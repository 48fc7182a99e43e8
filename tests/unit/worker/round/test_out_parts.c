/* A list or an array, dealt out to parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "worker/round/out_parts.h"

enum { ROW_BYTES = 4 };
#define PART(base, rows, how) \
  { .struct_size = sizeof(zenps_part_t), .row_base = (base), .n_rows = (rows), .layout = (how) }

/* Views, a copy and a dense part, with rows before, between and behind them that no part has. */
static void test_rows(void **state) {
  (void)state;
  int64_t rows[] = {0, 3, 5, 9, 10, 12, 20, 24, 29, 40}, copied[4];
  float values[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, copied_values[4], dense[11] = {[10] = 77};
  zenps_part_t parts[] = {PART(3, 7, ZENPS_ROWS), PART(10, 10, ZENPS_DENSE), PART(20, 0, ZENPS_ROWS),
                          PART(20, 9, ZENPS_ROWS), PART(35, 2, ZENPS_ROWS)};
  parts[1].values = dense;
  parts[3].row_ids = copied;
  parts[3].values = copied_values;
  parts[3].capacity = 2;
  memset(dense, 0xee, 10 * sizeof *dense);
  struct zps_out_parts out = {.parts = parts, .n = 5};
  struct zps_error error;
  assert_int_equal(zps_out_parts_rows(&out, ROW_BYTES, rows, values, 10, &error), ZPS_OK);
  assert_int_equal(parts[0].nnz, 3);
  assert_ptr_equal(parts[0].row_ids, rows + 1);
  assert_ptr_equal(parts[0].values, values + 1);
  assert_true(rows[1] == 0 && rows[2] == 2 && rows[3] == 6);
  for (unsigned i = 0; i < 10; i++) assert_true(dense[i] == (i == 0 ? 4.0f : i == 2 ? 5.0f : 0));
  assert_true(dense[10] == 77);
  assert_int_equal(parts[2].nnz, 0);
  assert_int_equal(parts[3].nnz, 2);
  assert_true(copied[0] == 0 && copied[1] == 4 && copied_values[0] == 6 && copied_values[1] == 7);
  assert_int_equal(parts[4].nnz, 0);
  assert_int_equal(out.copied_bytes, 2 * ROW_BYTES + 2 * (ROW_BYTES + sizeof(int64_t)));
  assert_true(rows[0] == 0 && rows[8] == 29 && rows[9] == 40);
}

/* The first part that is too small is named; all know what they need, and nothing else has changed. */
static void test_no_room(void **state) {
  (void)state;
  int64_t rows[] = {0, 1, 2, 3}, small[1] = {-7};
  float values[4] = {0}, small_values[1];
  zenps_part_t parts[] = {PART(0, 2, ZENPS_ROWS), PART(2, 2, ZENPS_ROWS), PART(4, 9, ZENPS_ROWS)};
  parts[1].row_ids = small;
  parts[1].values = small_values;
  parts[1].capacity = 1;
  struct zps_out_parts out = {.parts = parts, .n = 3};
  struct zps_error error;
  assert_int_equal(zps_out_parts_rows(&out, ROW_BYTES, rows, values, 4, &error), ZPS_ERR_TRUNCATED);
  assert_string_equal(error.text, "part 1 of the result has 2 rows, but the caller's arrays hold 1");
  assert_true(parts[0].nnz == 2 && parts[1].nnz == 2 && parts[2].nnz == 0);
  assert_null(parts[0].row_ids);
  assert_true(small[0] == -7 && rows[3] == 3);
  assert_int_equal(out.copied_bytes, 0);
}

static void test_dense(void **state) {
  (void)state;
  const float values[] = {0, 1, 2, 3, 4, 5};
  float one[2] = {0}, two[1] = {0};
  zenps_part_t parts[] = {PART(1, 2, ZENPS_DENSE), PART(3, 0, ZENPS_DENSE), PART(5, 1, ZENPS_DENSE)};
  parts[0].values = one;
  parts[2].values = two;
  struct zps_out_parts out = {.parts = parts, .n = 3};
  zps_out_parts_dense(&out, ROW_BYTES, values);
  assert_true(one[0] == 1 && one[1] == 2 && two[0] == 5);
  assert_int_equal(out.copied_bytes, 3 * ROW_BYTES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_no_room),
      cmocka_unit_test(test_dense),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
