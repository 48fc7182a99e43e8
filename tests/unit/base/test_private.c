/* Files that hold secrets: those that others could have read are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/secret.h"

static char folder[] = "/tmp/test_private.XXXXXX", path[sizeof folder + 10], linked[sizeof folder + 10];

static int set_up(void **state) {
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/secret", folder);
  snprintf(linked, sizeof linked, "%s/link", folder);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  unlink(path);
  unlink(linked);
  return rmdir(folder);
}

static void put(const char *text, size_t len, mode_t mode) {
  unlink(path);
  FILE *const file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, len, file), len);
  fclose(file);
  assert_int_equal(chmod(path, mode), 0);
}

static void refused(const char *at, zps_err_t code, const char *says) {
  char text[8] = "before";
  struct zps_error error;
  assert_int_equal(zps_private_read(at, "key", text, sizeof text, &error), code);
  assert_string_equal(text, "");
  if (!strstr(error.text, says)) fail_msg("'%s' does not say '%s'", error.text, says);
}

static void what_others_could_have_read_is_refused(void **state) {
  (void)state;
  static const mode_t bad[] = {0644, 0604, 0602, 0601, 0660, 0650, 0666, 0777};
  char text[8];
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    put("abc", 3, bad[i]);
    refused(path, ZPS_ERR_INVALID, "must be 0640 at most");
  }
  static const mode_t good[] = {0400, 0600, 0440, 0640};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    put("abc", 3, good[i]);
    assert_int_equal(zps_private_read(path, "key", text, sizeof text, NULL), ZPS_OK);
    assert_string_equal(text, "abc");
  }
}

static void what_is_no_short_text_is_refused(void **state) {
  (void)state;
  char text[8];
  put("1234567", 7, 0600);
  assert_int_equal(zps_private_read(path, "key", text, sizeof text, NULL), ZPS_OK);
  assert_string_equal(text, "1234567");
  put("12345678", 8, 0600);
  refused(path, ZPS_ERR_INVALID, "has 8 bytes: must have less than 8");
  put("a\0b", 3, 0600);
  refused(path, ZPS_ERR_INVALID, "is no text");
  refused(folder, ZPS_ERR_INVALID, "is no regular file");
  refused("/dev/zero", ZPS_ERR_INVALID, "is no regular file");
  refused("/nowhere/secret", ZPS_ERR_IO, "cannot be opened");
}

/* Mounted secrets are links. */
static void a_link_is_followed(void **state) {
  (void)state;
  char text[8];
  put("abc", 3, 0600);
  assert_int_equal(symlink(path, linked), 0);
  assert_int_equal(zps_private_read(linked, "key", text, sizeof text, NULL), ZPS_OK);
  assert_string_equal(text, "abc");
}

static void a_new_file_is_its_owners_alone(void **state) {
  (void)state;
  char text[8];
  struct zps_error error;
  struct stat stat_of;
  const mode_t before = umask(0);
  unlink(path);
  assert_int_equal(zps_private_create(path, "key", "abc", &error), ZPS_OK);
  umask(before);
  assert_int_equal(stat(path, &stat_of), 0);
  assert_int_equal(stat_of.st_mode & 0777, 0600);
  assert_int_equal(zps_private_create(path, "key", "xyz", &error), ZPS_ERR_BUSY);
  assert_int_equal(zps_private_read(path, "key", text, sizeof text, NULL), ZPS_OK);
  assert_string_equal(text, "abc");
  assert_int_equal(zps_private_create("/nowhere/secret", "key", "abc", &error), ZPS_ERR_IO);
  unlink(linked);
  assert_int_equal(symlink("/tmp/test_private_elsewhere", linked), 0);
  assert_int_equal(zps_private_create(linked, "key", "abc", &error), ZPS_ERR_BUSY);
  assert_int_equal(access("/tmp/test_private_elsewhere", F_OK), -1);
}

static void no_hex(const char *text, const char *says) {
  uint8_t bytes[4];
  size_t len;
  struct zps_error error;
  put(text, strlen(text), 0600);
  assert_int_equal(zps_private_read_hex(path, "key", bytes, sizeof bytes, &len, &error), ZPS_ERR_INVALID);
  if (!strstr(error.text, says)) fail_msg("'%s' does not say '%s'", error.text, says);
  assert_null(strstr(error.text, "0a1b"));
}

static void the_first_line_is_bytes(void **state) {
  (void)state;
  uint8_t bytes[4];
  size_t len;
  struct zps_error error;
  put("0a1bff\r\n# a note\n", 17, 0600);
  assert_int_equal(zps_private_read_hex(path, "key", bytes, sizeof bytes, &len, &error), ZPS_OK);
  assert_int_equal(len, 3);
  assert_memory_equal(bytes, "\x0a\x1b\xff", 3);
  put("0a1bff00", 8, 0600);
  assert_int_equal(zps_private_read_hex(path, "key", bytes, sizeof bytes, &len, &error), ZPS_OK);
  assert_int_equal(len, 4);
  no_hex("", "has 0 characters");
  no_hex("\n0a1b", "has 0 characters");
  no_hex("0a1b0", "has 5 characters: must be an even number of lower-case hexadecimal digits, 2 to 8");
  no_hex("0a1b0A", "has 6 characters");
  no_hex("0x0a1b", "has 6 characters");
  no_hex("0a1bff0011", "has 10 characters");
  put("0a1b", 4, 0644);
  assert_int_equal(zps_private_read_hex(path, "key", bytes, sizeof bytes, &len, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "must be 0640 at most"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_others_could_have_read_is_refused),
      cmocka_unit_test(what_is_no_short_text_is_refused),
      cmocka_unit_test(a_link_is_followed),
      cmocka_unit_test(a_new_file_is_its_owners_alone),
      cmocka_unit_test(the_first_line_is_bytes),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
