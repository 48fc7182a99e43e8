/* The sources of text for programs: the refused ones, and the number of bytes taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/machine.h"
#include "common/base/source.h"

static void refused(const char *path, const char *says) {
  struct zps_source source;
  struct zps_error error;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(zps_source_init(&source, fd, path, false, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, says);
  close(fd);
}

static void devices_and_folders_are_refused(void **state) {
  (void)state;
  refused("/dev/zero", "/dev/zero is a device: must be a file or a pipe");
  refused("/dev/urandom", "/dev/urandom is a device: must be a file or a pipe");
  refused("/", "/ is a folder: must be a file or a pipe");
}

static void a_plain_file_may_be_long(void **state) {
  (void)state;
  struct zps_source source;
  FILE *const file = tmpfile();
  assert_non_null(file);
  assert_int_equal(zps_source_init(&source, fileno(file), "f", false, NULL), ZPS_OK);
  for (int i = 0; i < 10; i++) assert_int_equal(zps_source_add(&source, (size_t)1 << 40, NULL), ZPS_OK);
  fclose(file);
}

static void what_may_go_on_for_ever_is_bounded(void **state) {
  (void)state;
  struct zps_source pipe_source, packed;
  struct zps_error error;
  int ends[2];
  FILE *const file = tmpfile();
  assert_non_null(file);
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(zps_source_init(&pipe_source, ends[0], "p", false, NULL), ZPS_OK);
  assert_in_range(pipe_source.most_bytes, 1, 256 << 20);
  assert_true(pipe_source.most_bytes <= zps_machine_memory_bytes() / 8);
  assert_int_equal(zps_source_add(&pipe_source, (size_t)pipe_source.most_bytes, NULL), ZPS_OK);
  assert_int_equal(zps_source_add(&pipe_source, 1, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "p goes on after "));
  assert_int_equal(zps_source_init(&packed, fileno(file), "f.xz", true, NULL), ZPS_OK);
  assert_int_equal(packed.most_bytes, zps_machine_memory_bytes() / 4);
  close(ends[0]);
  close(ends[1]);
  fclose(file);
}

/* A stream in memory has no descriptor, and ends. */
static void what_is_no_file_at_all_is_taken(void **state) {
  (void)state;
  struct zps_source source;
  assert_int_equal(zps_source_init(&source, -1, "text", false, NULL), ZPS_OK);
  assert_int_equal(zps_source_add(&source, (size_t)1 << 40, NULL), ZPS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(devices_and_folders_are_refused),
      cmocka_unit_test(a_plain_file_may_be_long),
      cmocka_unit_test(what_may_go_on_for_ever_is_bounded),
      cmocka_unit_test(what_is_no_file_at_all_is_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
