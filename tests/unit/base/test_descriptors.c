/* The limit on open files and connections: raised, and never lowered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/resource.h>

#include "common/base/descriptors.h"

static void test_wanted(void **state) {
  (void)state;
  assert_int_equal(zps_descriptors_wanted(1024, 4096), 4096);
  assert_int_equal(zps_descriptors_wanted(1024, 1048576), ZPS_DESCRIPTORS_ENOUGH);
  assert_int_equal(zps_descriptors_wanted(1024, RLIM_INFINITY), ZPS_DESCRIPTORS_ENOUGH);
  assert_int_equal(zps_descriptors_wanted(1024, 1024), 1024);
  assert_int_equal(zps_descriptors_wanted(500000, 1048576), 500000);
}

static void test_raised(void **state) {
  (void)state;
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = 64;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const unsigned long wanted = zps_descriptors_wanted(64, limit.rlim_max);
  assert_int_equal(zps_descriptors_raise(), wanted);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  assert_int_equal(limit.rlim_cur, wanted);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_wanted),
      cmocka_unit_test(test_raised),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
