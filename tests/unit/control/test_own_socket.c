/* The Unix socket of a user for a loopback address: where it is, and in which folders it is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/control/own_socket.h"

static char tmp[40], folder[80], own[ZPS_OWN_SOCKET_MAX];

static int set_up(void **state) {
  (void)state;
  strcpy(tmp, "/tmp/zenps-own.XXXXXX");
  assert_non_null(mkdtemp(tmp));
  setenv("TMPDIR", tmp, true);
  snprintf(folder, sizeof folder, "%s/zenps-%lu", tmp, (unsigned long)geteuid());
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  if (unlink(folder) < 0) rmdir(folder);
  rmdir(tmp);
  return 0;
}

static void makes(const char *address, const char *name) {
  struct zps_error error;
  struct stat st;
  char wanted[300];
  if (zps_own_socket_make(address, own, &error)) fail_msg("%s: %s", address, error.text);
  assert_int_equal(stat("/proc/self/ns/net", &st), 0);
  snprintf(wanted, sizeof wanted, "unix:%s/%s.%lu", folder, name, (unsigned long)st.st_ino);
  assert_string_equal(own, wanted);
}

static void refuses(zps_err_t code, const char *why) {
  struct zps_error error;
  struct zps_address address;
  assert_int_equal(zps_own_socket_make("127.0.0.1:7077", own, &error), code);
  if (!strstr(error.text, why)) fail_msg("%s: want %s", error.text, why);
  assert_int_equal(zps_address_parse("127.0.0.1:7077", &address, NULL), ZPS_OK);
  assert_false(zps_own_socket_find(&address, own));
}

static void test_one_address_has_one_path(void **state) {
  (void)state;
  struct stat st;
  makes("127.0.0.1:7077", "127.0.0.1:7077");
  makes("localhost:7077", "127.0.0.1:7077");
  makes("[::ffff:127.0.0.1]:07077", "127.0.0.1:7077");
  makes("127.0.0.2:7077", "127.0.0.2:7077");
  makes("[0:0::1]:1", "[::1]:1");
  assert_int_equal(stat(folder, &st), 0);
  assert_int_equal(st.st_mode & 07777, 0700);
  setenv("TMPDIR", "/a-folder-whose-path-leaves-no-room-for-that-of-a-socket-of-107-bytes", true);
  snprintf(folder, sizeof folder, "/tmp/zenps-%lu", (unsigned long)geteuid());
  makes("127.0.0.1:7077", "127.0.0.1:7077");
  setenv("TMPDIR", "relative", true);
  makes("127.0.0.1:7077", "127.0.0.1:7077");
  snprintf(folder, sizeof folder, "%s/zenps-%lu", tmp, (unsigned long)geteuid());
}

static void test_a_folder_that_others_may_enter_is_refused(void **state) {
  (void)state;
  assert_int_equal(mkdir(folder, 0700), 0);
  assert_int_equal(chmod(folder, 0711), 0);
  refuses(ZPS_ERR_REFUSED, "mode 0711: it must be a folder of user ");
}

static void test_a_folder_of_somebody_else_is_refused(void **state) {
  (void)state;
  if (geteuid() != 0) skip();
  assert_int_equal(mkdir(folder, 0700), 0);
  assert_int_equal(chown(folder, 65534, 65534), 0);
  refuses(ZPS_ERR_REFUSED, "is of user 65534 and mode 0700");
}

static void test_a_link_is_refused(void **state) {
  (void)state;
  assert_int_equal(symlink("/root", folder), 0);
  refuses(ZPS_ERR_REFUSED, "Remove it, or set TMPDIR");
}

static void test_a_folder_that_cannot_be_made(void **state) {
  (void)state;
  setenv("TMPDIR", "/proc/self", true);
  refuses(ZPS_ERR_IO, "cannot make the folder /proc/self/zenps-");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(test_one_address_has_one_path),
      TEST(test_a_folder_that_others_may_enter_is_refused),
      TEST(test_a_folder_of_somebody_else_is_refused),
      TEST(test_a_link_is_refused),
      TEST(test_a_folder_that_cannot_be_made),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
