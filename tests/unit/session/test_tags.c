/* The numbers by which a process knows its links. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/session/tags.h"
#include "tests/support/oom.h"

static void test_tags(void **state) {
  (void)state;
  enum { N = 300 };
  struct zps_tags tags = {0};
  int owners[N];
  uint32_t tag;
  assert_null(zps_tags_find(&tags, 0));
  for (unsigned i = 0; i < N; i++) {
    assert_int_equal(zps_tags_get(&tags, &owners[i], &tag), ZPS_OK);
    assert_int_equal(tag, i);
  }
  for (unsigned i = 0; i < N; i++) assert_ptr_equal(zps_tags_find(&tags, i), &owners[i]);
  assert_null(zps_tags_find(&tags, N));
  assert_null(zps_tags_find(&tags, UINT32_MAX));
  for (unsigned i = 0; i < 65; i++) zps_tags_put(&tags, 200 - i);
  assert_null(zps_tags_find(&tags, 200));
  assert_int_equal(zps_tags_get(&tags, &owners[0], &tag), ZPS_OK); /* the one that has rested longest */
  assert_int_equal(tag, 200);
  assert_ptr_equal(zps_tags_find(&tags, 200), &owners[0]);
  assert_int_equal(zps_tags_get(&tags, &owners[1], &tag), ZPS_OK); /* 64 go on resting */
  assert_int_equal(tag, N);
  zps_tags_put(&tags, N);
  assert_int_equal(zps_tags_get(&tags, &owners[1], &tag), ZPS_OK);
  assert_int_equal(tag, 199);
  zps_tags_fini(&tags);
}

static zps_err_t sweep_tags(void *ctx) {
  uint32_t tag;
  return zps_tags_get(ctx, ctx, &tag);
}

static void sweep_tags_end(void *ctx) {
  zps_tags_fini(ctx);
}

static void test_out_of_memory(void **state) {
  (void)state;
  struct zps_tags tags = {0};
  oom_sweep(sweep_tags, sweep_tags_end, &tags, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tags),
      cmocka_unit_test(test_out_of_memory),
  };
  return cmocka_run_group_tests_name("tags", tests, NULL, NULL);
}
