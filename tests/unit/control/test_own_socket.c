/* The Unix socket of a user for a loopback address: where it is, in which folders it is not, and what goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/control/own_socket.h"
#include "tests/support/logs.h"

static char tmp[40], session[60], folder[80], own[ZPS_OWN_SOCKET_MAX], found[ZPS_OWN_SOCKET_MAX];

static int set_up(void **state) {
  (void)state;
  strcpy(tmp, "/tmp/zenps-own.XXXXXX");
  assert_non_null(mkdtemp(tmp));
  setenv("TMPDIR", tmp, true);
  unsetenv("XDG_RUNTIME_DIR");
  snprintf(session, sizeof session, "%s/session", tmp);
  snprintf(folder, sizeof folder, "%s/zenps-%lu", tmp, (unsigned long)geteuid());
  logs_start();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  char command[80];
  logs_finish();
  snprintf(command, sizeof command, "rm -rf %s", tmp);
  return system(command);
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

static int binds(const char *path) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(strlen(path) < sizeof addr.sun_path);
  memcpy(addr.sun_path, path, strlen(path) + 1);
  assert_true(fd >= 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
  return fd;
}

static bool finds(const char *path) {
  struct zps_address address;
  assert_int_equal(zps_address_parse("127.0.0.1:7077", &address, NULL), ZPS_OK);
  const bool is_found = zps_own_socket_find(&address, found);
  if (is_found) assert_string_equal(found, path);
  return is_found;
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
}

static void test_the_folder_of_the_session_comes_first(void **state) {
  (void)state;
  assert_int_equal(mkdir(session, 0700), 0);
  setenv("XDG_RUNTIME_DIR", session, true);
  snprintf(folder, sizeof folder, "%s/zenps-%lu", session, (unsigned long)geteuid());
  makes("127.0.0.1:7077", "127.0.0.1:7077");
  const int fd = binds(own + strlen("unix:"));
  assert_true(finds(own + strlen("unix:")));
  close(fd);
}

/* As su leaves it, and as a container may set it. */
static void test_a_session_of_others_is_passed_over(void **state) {
  (void)state;
  setenv("XDG_RUNTIME_DIR", session, true);
  makes("127.0.0.1:7077", "127.0.0.1:7077");
  assert_int_equal(mkdir(session, 0755), 0);
  makes("127.0.0.1:7077", "127.0.0.1:7077");
}

/* The socket is then in a folder of this user alone whose name nobody foresees, and is found there. */
static void falls_back(const char *why) {
  char spare[ZPS_OWN_SOCKET_MAX], awaited[ZPS_OWN_SOCKET_MAX];
  struct zps_error error;
  struct stat st;
  logs_allow(ZPS_LOG_WARN, why);
  assert_int_equal(zps_own_socket_await("127.0.0.1:7077", 1, awaited, &error), ZPS_ERR_TIMEOUT);
  assert_non_null(strstr(error.text, why));
  if (zps_own_socket_make("127.0.0.1:7077", own, &error)) fail_msg("%s", error.text);
  assert_int_equal(strncmp(own + strlen("unix:"), folder, strlen(folder)), 0);
  assert_int_equal(own[strlen("unix:") + strlen(folder)], '.');
  strcpy(spare, own);
  *strrchr(spare, '/') = '\0';
  assert_int_equal(stat(spare + strlen("unix:"), &st), 0);
  assert_int_equal(st.st_mode & 07777, 0700);
  strcpy(spare, own);
  if (zps_own_socket_make("127.0.0.1:7077", own, &error)) fail_msg("%s", error.text);
  assert_string_equal(own, spare); /* one such folder is enough */
  assert_false(finds(""));
  const int fd = binds(own + strlen("unix:"));
  assert_true(finds(own + strlen("unix:")));
  if (zps_own_socket_await("127.0.0.1:7077", 1, awaited, &error)) fail_msg("%s", error.text);
  assert_string_equal(awaited, own);
  close(fd);
}

static void test_a_folder_that_others_may_enter_is_passed_over(void **state) {
  (void)state;
  assert_int_equal(mkdir(folder, 0700), 0);
  assert_int_equal(chmod(folder, 0711), 0);
  falls_back("mode 0711: it must be a folder of user ");
}

static void test_a_folder_of_somebody_else_is_passed_over(void **state) {
  (void)state;
  if (geteuid() != 0) skip();
  assert_int_equal(mkdir(folder, 0700), 0);
  assert_int_equal(chown(folder, 65534, 65534), 0);
  falls_back("is of user 65534 and mode 0700");
}

static void test_a_link_is_passed_over(void **state) {
  (void)state;
  assert_int_equal(mkdir(session, 0700), 0);
  assert_int_equal(symlink(session, folder), 0);
  falls_back("it must be a folder of user");
}

static void test_a_spare_folder_of_somebody_else_is_passed_over(void **state) {
  (void)state;
  char spare[90];
  assert_int_equal(mkdir(folder, 0711), 0);
  snprintf(spare, sizeof spare, "%s.aaaaaa", folder);
  assert_int_equal(mkdir(spare, 0777), 0);
  assert_int_equal(chmod(spare, 0777), 0);
  falls_back("mode 0711");
  assert_null(strstr(own, ".aaaaaa"));
}

static void test_a_folder_that_cannot_be_made(void **state) {
  (void)state;
  struct zps_error error;
  setenv("TMPDIR", "/proc/self", true);
  assert_int_equal(zps_own_socket_make("127.0.0.1:7077", own, &error), ZPS_ERR_IO);
  assert_non_null(strstr(error.text, "cannot make the folder /proc/self/zenps-"));
  assert_non_null(strstr(error.text, "Set TMPDIR to a folder of this user"));
}

static void is_there(const char *path, bool wanted) {
  struct stat st;
  if ((lstat(path, &st) == 0) != wanted) fail_msg("%s is %s", path, wanted ? "gone" : "still there");
}

static void test_sockets_of_killed_processes_go(void **state) {
  (void)state;
  char killed[ZPS_OWN_SOCKET_MAX], lives[ZPS_OWN_SOCKET_MAX], elsewhere[ZPS_OWN_SOCKET_MAX], file[100];
  makes("127.0.0.1:1", "127.0.0.1:1");
  strcpy(killed, own + strlen("unix:"));
  makes("127.0.0.1:2", "127.0.0.1:2");
  strcpy(lives, own + strlen("unix:"));
  snprintf(elsewhere, sizeof elsewhere, "%s/127.0.0.1:1.7", folder);
  snprintf(file, sizeof file, "%s/notes%s", folder, strrchr(own, '.'));
  close(binds(killed));
  close(binds(elsewhere));
  const int fd = binds(lives); /* It does not listen yet. */
  fclose(fopen(file, "w"));
  makes("127.0.0.1:3", "127.0.0.1:3");
  is_there(killed, false);
  is_there(lives, true);
  is_there(elsewhere, true); /* of a network namespace that cannot be looked into */
  is_there(file, true);
  close(fd);
}

/* One that was killed has left its socket in a folder that comes first. */
static void test_a_socket_in_use_is_preferred(void **state) {
  (void)state;
  char killed[ZPS_OWN_SOCKET_MAX];
  makes("127.0.0.1:7077", "127.0.0.1:7077");
  strcpy(killed, own + strlen("unix:"));
  assert_int_equal(chmod(folder, 0711), 0);
  logs_allow(ZPS_LOG_WARN, "mode 0711");
  assert_int_equal(zps_own_socket_make("127.0.0.1:7077", own, NULL), ZPS_OK);
  assert_int_equal(chmod(folder, 0700), 0);
  close(binds(killed));
  assert_true(finds(killed));
  const int fd = binds(own + strlen("unix:"));
  assert_true(finds(own + strlen("unix:")));
  close(fd);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(test_one_address_has_one_path),
      TEST(test_the_folder_of_the_session_comes_first),
      TEST(test_a_session_of_others_is_passed_over),
      TEST(test_a_folder_that_others_may_enter_is_passed_over),
      TEST(test_a_folder_of_somebody_else_is_passed_over),
      TEST(test_a_link_is_passed_over),
      TEST(test_a_spare_folder_of_somebody_else_is_passed_over),
      TEST(test_a_folder_that_cannot_be_made),
      TEST(test_sockets_of_killed_processes_go),
      TEST(test_a_socket_in_use_is_preferred),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
