/* Scratch memory that grows, below and above the size from which it is mapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/buffer.h"

enum { MIB = 1 << 20 };

static void test_there_is_room_for_what_was_asked(void **state) {
  (void)state;
  static const uint64_t sizes[] = {1, 63, 64, 4096, MIB / 4 - 1, MIB / 4, 4 * MIB - 1, 4 * MIB, 9 * MIB, 33 * MIB, 100};
  struct zps_buffer buffer = {0};
  for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    assert_int_equal(zps_buffer_need(&buffer, sizes[i], 1), ZPS_OK);
    assert_true(buffer.size_bytes >= sizes[i]);
    memset(buffer.data, (int)i, buffer.size_bytes);
    void *const data = buffer.data;
    assert_int_equal(zps_buffer_need(&buffer, sizes[i] / 2, 1), ZPS_OK); /* there is enough */
    assert_ptr_equal(buffer.data, data);
  }
  zps_buffer_fini(&buffer);
  assert_null(buffer.data);
  zps_buffer_fini(&buffer);
}

static void test_what_is_there_stays(void **state) {
  (void)state;
  struct zps_buffer buffer = {0};
  uint64_t n = 0;
  for (uint64_t next = 1; next <= 4 * MIB; next *= 3) { /* 8 bytes each: malloc, mapped, mapped and larger */
    assert_int_equal(zps_buffer_extend(&buffer, next, sizeof(uint64_t)), ZPS_OK);
    uint64_t *const data = buffer.data;
    for (uint64_t i = 0; i < n; i++) assert_int_equal(data[i], i * 7);
    for (; n < next; n++) data[n] = n * 7;
  }
  assert_true(buffer.size_bytes > 8 * MIB);
  zps_buffer_fini(&buffer);
}

static void test_sizes_that_no_machine_has(void **state) {
  (void)state;
  struct zps_buffer buffer = {0};
  assert_int_equal(zps_buffer_need(&buffer, UINT64_MAX / 2, 4), ZPS_ERR_NOMEM);
  assert_int_equal(zps_buffer_need(&buffer, UINT64_MAX / 8, 8), ZPS_ERR_NOMEM);
  assert_int_equal(zps_buffer_need(&buffer, UINT64_MAX / 64, 8), ZPS_ERR_NOMEM);
  assert_null(buffer.data);
  assert_int_equal(zps_buffer_extend(&buffer, 5 * MIB, 1), ZPS_OK);
  memset(buffer.data, 9, 5 * MIB);
  assert_int_equal(zps_buffer_extend(&buffer, UINT64_MAX / 8, 8), ZPS_ERR_NOMEM);
  assert_int_equal(zps_buffer_extend(&buffer, UINT64_MAX / 64, 8), ZPS_ERR_NOMEM);
  assert_int_equal(((unsigned char *)buffer.data)[5 * MIB - 1], 9); /* unchanged */
  zps_buffer_fini(&buffer);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_there_is_room_for_what_was_asked),
      cmocka_unit_test(test_what_is_there_stays),
      cmocka_unit_test(test_sizes_that_no_machine_has),
  };
  return cmocka_run_group_tests_name("buffer", tests, NULL, NULL);
}
