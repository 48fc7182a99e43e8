/* Arrays of results: an array that was given back serves the next request, and only one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/oom.h"
#include "worker/round/row_arrays.h"

enum { WIDTH = 3, MANY = 1000000 };

static struct zps_row_arrays_pool *pool;

static struct zps_row_arrays take(uint64_t n) {
  struct zps_row_arrays arrays;
  assert_int_equal(zps_row_arrays_take(pool, n, WIDTH * sizeof(float), &arrays), ZPS_OK);
  assert_true(arrays.rows.data && arrays.rows.size_bytes >= n * sizeof(int64_t));
  assert_true(arrays.values.data && arrays.values.size_bytes >= n * WIDTH * sizeof(float));
  memset(arrays.rows.data, 1, n * sizeof(int64_t));
  memset(arrays.values.data, 2, n * WIDTH * sizeof(float));
  return arrays;
}

static int drop_spare(void **state) {
  (void)state;
  zps_row_arrays_pool_drop(pool);
  return 0;
}

static void test_the_next_gets_what_was_given_back(void **state) {
  (void)state;
  struct zps_row_arrays first = take(1000);
  const void *const rows = first.rows.data, *const values = first.values.data;
  struct zps_row_arrays second = take(1000); /* the first is still in use */
  assert_ptr_not_equal(second.rows.data, rows);
  assert_ptr_not_equal(second.values.data, values);
  zps_row_arrays_give(&first);
  assert_null(first.rows.data);
  assert_null(first.values.data);
  struct zps_row_arrays third = take(1010); /* a few more fit, too */
  assert_ptr_equal(third.rows.data, rows);
  assert_ptr_equal(third.values.data, values);
  zps_row_arrays_give(&second);
  zps_row_arrays_give(&third);
}

static void test_they_grow(void **state) {
  (void)state;
  struct zps_row_arrays arrays = take(0);
  zps_row_arrays_give(&arrays);
  arrays = take(MANY);
  zps_row_arrays_give(&arrays);
}

static void test_large_ones_do_not_stay_for_small_results(void **state) {
  (void)state;
  struct zps_row_arrays arrays = take(MANY);
  zps_row_arrays_give(&arrays);
  arrays = take(MANY / 10);
  assert_true(arrays.rows.size_bytes < MANY / 5 * sizeof(int64_t));
  assert_true(arrays.values.size_bytes < MANY / 5 * WIDTH * sizeof(float));
  zps_row_arrays_give(&arrays);
}

/* The leak checker sees arrays that are neither kept nor freed. */
static void test_so_many_are_kept(void **state) {
  (void)state;
  struct zps_row_arrays arrays[ZPS_ROW_ARRAYS_SPARE + 2];
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE + 2; i++) arrays[i] = take(1000);
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE + 2; i++) zps_row_arrays_give(&arrays[i]);
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE; i++) assert_non_null(pool->spare[i].rows.data);
}

static zps_err_t take_and_give(void *ctx) {
  (void)ctx;
  struct zps_row_arrays arrays;
  const zps_err_t err = zps_row_arrays_take(pool, 1000, WIDTH * sizeof(float), &arrays);
  assert_true(err == ZPS_OK || (!arrays.rows.data && !arrays.values.data));
  zps_row_arrays_give(&arrays);
  return err;
}

static void test_no_memory(void **state) {
  (void)state;
  for (long granted = 0; granted < 2; granted++) {
    atomic_store(&oom_granted, granted);
    assert_int_equal(take_and_give(NULL), ZPS_ERR_NOMEM);
    atomic_store(&oom_granted, OOM_UNLIMITED);
    assert_null(pool->spare[0].rows.data);
  }
  assert_int_equal(take_and_give(NULL), ZPS_OK);
}

/* The leak checker sees a pool that stays, and the address sanitizer one that goes too early. */
static void test_arrays_in_use_outlive_the_tensor(void **state) {
  (void)state;
  struct zps_row_arrays_pool *const kept = pool;
  assert_int_equal(zps_row_arrays_pool_create(&pool), ZPS_OK);
  struct zps_row_arrays first = take(1000), second = take(MANY), spare = take(10);
  zps_row_arrays_give(&spare);
  zps_row_arrays_pool_close(pool);
  memset(first.values.data, 3, 1000 * WIDTH * sizeof(float));
  zps_row_arrays_give(&first);
  assert_null(pool->spare[0].rows.data); /* it is closed: nothing is kept */
  memset(second.values.data, 3, MANY * WIDTH * sizeof(float));
  zps_row_arrays_give(&second);
  assert_null(second.pool);
  zps_row_arrays_give(&second); /* there are none any more */
  pool = kept;
}

static int begin(void **state) {
  (void)state;
  return zps_row_arrays_pool_create(&pool) == ZPS_OK ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  zps_row_arrays_pool_close(pool);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_the_next_gets_what_was_given_back, drop_spare),
      cmocka_unit_test_teardown(test_they_grow, drop_spare),
      cmocka_unit_test_teardown(test_large_ones_do_not_stay_for_small_results, drop_spare),
      cmocka_unit_test_teardown(test_so_many_are_kept, drop_spare),
      cmocka_unit_test(test_arrays_in_use_outlive_the_tensor),
      cmocka_unit_test_teardown(test_no_memory, drop_spare)};
  return cmocka_run_group_tests(tests, begin, end);
}
