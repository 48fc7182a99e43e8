/* Sockets that a forked child closes: the peer of a process that is gone hears so though a child of it lives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/forked.h"
#include "tests/support/patience.h"

enum { LONG_MS = PATIENCE_NEVER_MS };

/* A child that says that it is there, and lives on. */
static pid_t fork_child(void) {
  int there[2];
  char byte = 0;
  assert_int_equal(pipe(there), 0);
  const pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    alarm(600);
    if (write(there[1], "!", 1) == 1) pause();
    _exit(0);
  }
  assert_int_equal(read(there[0], &byte, 1), 1);
  close(there[0]);
  close(there[1]);
  return pid;
}

static void end_child(pid_t pid) {
  int status;
  assert_int_equal(kill(pid, SIGKILL), 0);
  assert_int_equal(waitpid(pid, &status, 0), pid);
}

static bool is_at_end(int fd, int wait_ms) {
  struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
  char byte;
  return poll(&poll_fd, 1, wait_ms) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static int listen_at(in_addr_t ip, struct sockaddr_in *name_p) {
  socklen_t len = sizeof *name_p;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_true(fd >= 0);
  *name_p = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(ip)};
  assert_int_equal(bind(fd, (struct sockaddr *)name_p, sizeof *name_p), 0);
  assert_int_equal(listen(fd, 4), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)name_p, &len), 0);
  return fd;
}

/* ends[0] has connected to the listener, ends[1] is what that accepted. */
static void connect_to(int listener, const struct sockaddr_in *name, int ends[2]) {
  struct sockaddr_in there = *name;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(ends[0], (struct sockaddr *)&there, sizeof there), 0);
  ends[1] = accept(listener, NULL, NULL);
  assert_true(ends[1] >= 0);
}

static void test_socket(void **state) {
  (void)state;
  int ends[2], others[2];
  struct zps_forked forked = {0};
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, others), 0);
  zps_forked_close_socket(&forked, ends[0]);
  const pid_t child = fork_child();
  close(ends[0]);
  close(others[0]);
  assert_true(is_at_end(ends[1], LONG_MS));
  assert_false(is_at_end(others[1], 0)); /* the child has this one still */
  end_child(child);
  assert_true(is_at_end(others[1], LONG_MS));
  zps_forked_forget(&forked);
  zps_forked_forget(&forked);
  close(ends[1]);
  close(others[1]);
}

/* The end of a parent's connection is the child's, not the parent's. */
static void test_parent_goes_on(void **state) {
  (void)state;
  int ends[2];
  char byte = 0;
  struct zps_forked forked = {0};
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  zps_forked_close_socket(&forked, ends[0]);
  const pid_t child = fork_child();
  assert_false(is_at_end(ends[1], 0));
  assert_int_equal(write(ends[0], "!", 1), 1);
  assert_int_equal(read(ends[1], &byte, 1), 1);
  end_child(child);
  zps_forked_forget(&forked);
  close(ends[0]);
  close(ends[1]);
}

static void check_addresses(in_addr_t ip) {
  struct sockaddr_in name, other_name;
  int ends[2], others[2];
  const int listener = listen_at(ip, &name), other = listen_at(ip, &other_name);
  struct zps_forked local = {0}, peer = {0};
  /* The accepted end, by the address that it was accepted at. */
  connect_to(listener, &name, ends);
  connect_to(other, &other_name, others);
  zps_forked_close_local(&local, &name, sizeof name);
  pid_t child = fork_child();
  close(ends[1]);
  close(others[1]);
  close(listener);
  assert_true(is_at_end(ends[0], LONG_MS));
  assert_false(is_at_end(others[0], 0));
  end_child(child);
  zps_forked_forget(&local);
  close(ends[0]);
  close(others[0]);
  /* The end that connected, by the address that it connected to. */
  connect_to(other, &other_name, ends);
  other_name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  zps_forked_close_peer(&peer, &other_name, sizeof other_name);
  child = fork_child();
  close(ends[0]);
  assert_true(is_at_end(ends[1], LONG_MS));
  end_child(child);
  zps_forked_forget(&peer);
  close(ends[1]);
  close(other);
}

static void test_addresses(void **state) {
  (void)state;
  check_addresses(INADDR_LOOPBACK);
}

static void test_any_interface(void **state) {
  (void)state;
  check_addresses(INADDR_ANY);
}

static void test_forgotten(void **state) {
  (void)state;
  int ends[2];
  struct zps_forked forked = {0}, same = {0};
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  zps_forked_close_socket(&forked, ends[0]);
  zps_forked_close_socket(&same, ends[0]);
  zps_forked_close_socket(&same, -1); /* is none: the entry is not listed any more */
  zps_forked_forget(&forked);
  const pid_t child = fork_child();
  close(ends[0]);
  assert_false(is_at_end(ends[1], 0));
  end_child(child);
  close(ends[1]);
}

/* Addresses that are no sockets' are taken, and mean nothing. */
static void test_other_addresses(void **state) {
  (void)state;
  struct zps_forked forked = {0};
  zps_forked_close_local(&forked, "fi_shm://1", 11);
  assert_false(forked.is_listed);
  zps_forked_close_peer(&forked, "", 0);
  assert_false(forked.is_listed);
}

/* A child's list is empty, and its own. */
static void test_child_of_child(void **state) {
  (void)state;
  int ends[2];
  struct zps_forked forked = {0};
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  zps_forked_close_socket(&forked, ends[0]);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    int own[2];
    if (forked.is_listed || socketpair(AF_UNIX, SOCK_STREAM, 0, own) != 0) _exit(1);
    zps_forked_forget(&forked);
    zps_forked_close_socket(&forked, own[0]);
    const pid_t grandchild = fork_child();
    close(own[0]);
    const bool heard = is_at_end(own[1], LONG_MS);
    end_child(grandchild);
    _exit(heard ? 0 : 2);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  zps_forked_forget(&forked);
  close(ends[0]);
  close(ends[1]);
}

/* ---- Keepalive ---- */

static int idle_s_of(int fd) {
  int is_kept = 0, idle_s = 0;
  socklen_t len = sizeof is_kept;
  assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &is_kept, &len), 0);
  assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &len), 0);
  return is_kept ? idle_s : 0;
}

static void test_keepalive(void **state) {
  (void)state;
  struct sockaddr_in ours, theirs, others;
  int accepted[2], made[2], strange[2];
  const int listener = listen_at(INADDR_LOOPBACK, &ours), there = listen_at(INADDR_LOOPBACK, &theirs),
            elsewhere = listen_at(INADDR_LOOPBACK, &others);
  struct zps_forked local = {0}, peer = {0};
  connect_to(listener, &ours, accepted);
  connect_to(there, &theirs, made);
  connect_to(elsewhere, &others, strange);
  zps_forked_close_local(&local, &ours, sizeof ours);
  zps_forked_close_peer(&peer, &theirs, sizeof theirs);
  zps_forked_keep_alive(37, 5);
  assert_int_equal(idle_s_of(accepted[1]), 37);
  assert_int_equal(idle_s_of(made[0]), 37);
  assert_int_equal(idle_s_of(strange[0]) + idle_s_of(strange[1]), 0); /* the program's own */
  assert_int_equal(idle_s_of(listener), 0);
  zps_forked_keep_alive(50, 5); /* once is enough */
  assert_int_equal(idle_s_of(made[0]), 37);
  zps_forked_forget(&local);
  zps_forked_forget(&peer);
  for (int i = 0; i < 2; i++) close(accepted[i]), close(made[i]), close(strange[i]);
  close(listener), close(there), close(elsewhere);
}

/* ---- Ended connections ---- */

static void test_connections_of_several_peers_end(void **state) {
  (void)state;
  enum { PEERS = 3 };
  struct sockaddr_in ours, theirs[PEERS];
  int accepted[2], made[PEERS][2], there[PEERS];
  const int listener = listen_at(INADDR_LOOPBACK, &ours);
  struct zps_forked local = {0}, peers[PEERS] = {{0}};
  connect_to(listener, &ours, accepted);
  for (int i = 0; i < PEERS; i++) {
    there[i] = listen_at(INADDR_LOOPBACK, &theirs[i]);
    connect_to(there[i], &theirs[i], made[i]);
    zps_forked_close_peer(&peers[i], &theirs[i], sizeof theirs[i]);
  }
  const struct zps_forked *const first[] = {&peers[0], &peers[1]}, *const last[] = {&peers[2]};
  zps_forked_end_peers(&local, first, 2); /* `local` is not listed. */
  assert_false(is_at_end(made[0][1], 0));
  zps_forked_close_local(&local, &ours, sizeof ours);
  zps_forked_end_peers(&local, first, 2);
  assert_true(is_at_end(made[0][1], LONG_MS));
  assert_true(is_at_end(made[1][1], LONG_MS));
  assert_false(is_at_end(made[2][1], 0));
  assert_true(is_at_end(accepted[0], LONG_MS)); /* It came from a host that is theirs, too. */
  zps_forked_end_peers(&local, last, 1);
  assert_true(is_at_end(made[2][1], LONG_MS));
  zps_forked_forget(&local);
  for (int i = 0; i < PEERS; i++) {
    zps_forked_forget(&peers[i]);
    close(made[i][0]), close(made[i][1]), close(there[i]);
  }
  close(accepted[0]), close(accepted[1]), close(listener);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keepalive),
      cmocka_unit_test(test_socket),
      cmocka_unit_test(test_parent_goes_on),
      cmocka_unit_test(test_addresses),
      cmocka_unit_test(test_any_interface),
      cmocka_unit_test(test_forgotten),
      cmocka_unit_test(test_other_addresses),
      cmocka_unit_test(test_child_of_child),
      cmocka_unit_test(test_connections_of_several_peers_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
