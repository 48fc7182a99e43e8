#include "tests/conform/conform_child.h"

#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONTROL_FD = 3 };

/* ---- the child's side ---- */

static void echo(struct conform_node *node, const void *data, size_t len) {
  zps_err_t code = ZPS_ERR_AGAIN;
  for (int i = 0; i < 1000 && code == ZPS_ERR_AGAIN; i++)
    code = zps_net_send(node->ctx, data, len); /* faults go by chance */
  if (code != ZPS_OK) _exit(3);
}

int conform_child_main(int control_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = control_fd + 1; fd < 1024; fd++) close(fd);
  const struct zps_net_config first = conform_config(), config = conform_config_of_second(&first);
  struct conform_node node;
  struct child_hello mine = {0}, theirs;
  conform_node_open(&node, &config);
  uint8_t *memory = malloc(CHILD_MEM_LEN);
  if (!memory) return 1;
  conform_fill(memory, CHILD_SEED, CHILD_MEM_LEN);
  struct zps_net_mem mem = conform_register(&node, memory, CHILD_MEM_LEN);
  const struct zps_net_info *info = zps_net_info(node.net);
  memcpy(mine.addr, info->addr, info->addr_len);
  mine.addr_len = info->addr_len;
  mine.mem_addr = mem.addr;
  mine.mem_key = mem.key;
  if (write(control_fd, &mine, sizeof mine) != sizeof mine || read(control_fd, &theirs, sizeof theirs) != sizeof theirs)
    return 1;
  struct zps_net_peer *peer;
  struct zps_error error;
  if (zps_net_peer_add(node.net, theirs.addr, theirs.addr_len, NULL, &peer, &error) != ZPS_OK) return 1;
  node.ctx = peer;
  node.on_message = echo;
  struct pollfd control = {.fd = control_fd, .events = POLLIN};
  while (poll(&control, 1, 0) == 0) conform_step(CONFORM_NODES(&node));
  conform_node_close(&node);
  free(memory);
  return 0;
}

/* ---- the suite's side ---- */

void conform_child_start(struct child *child, struct conform_node *node) {
  int fds[2];
  char self[4096], fd_text[12];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  assert_true(n > 0);
  self[n] = '\0';
  snprintf(fd_text, sizeof fd_text, "%d", CONTROL_FD);
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  char *const argv[] = {self, (char *)"--child", fd_text, NULL};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fds[1], CONTROL_FD);
  assert_int_equal(posix_spawn(&child->pid, self, &actions, NULL, argv, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(fds[1]);
  child->control_fd = fds[0];
  assert_int_equal(read(child->control_fd, &child->hello, sizeof child->hello), sizeof child->hello);
  struct zps_error error = {0};
  if (zps_net_peer_add(node->net, child->hello.addr, child->hello.addr_len, child, &child->peer, &error) != ZPS_OK)
    fail_msg("%s", error.text);
  struct child_hello mine = {0};
  const struct zps_net_info *info = zps_net_info(node->net);
  memcpy(mine.addr, info->addr, info->addr_len);
  mine.addr_len = info->addr_len;
  assert_int_equal(write(child->control_fd, &mine, sizeof mine), sizeof mine);
}

/* The files that provider shm of a killed process leaves in the file system. */
static void shm_clean(pid_t pid) {
  char pattern[64];
  glob_t found;
  snprintf(pattern, sizeof pattern, "/dev/shm/%d:*", (int)pid);
  if (glob(pattern, 0, NULL, &found) != 0) return;
  for (size_t i = 0; i < found.gl_pathc; i++) unlink(found.gl_pathv[i]);
  globfree(&found);
}

void conform_child_signal(struct child *child, int signal) {
  int status;
  assert_int_equal(kill(child->pid, signal), 0);
  assert_int_equal(waitpid(child->pid, &status, WUNTRACED), child->pid);
  if (signal == SIGSTOP) {
    assert_true(WIFSTOPPED(status));
  } else {
    assert_true(WIFSIGNALED(status));
    shm_clean(child->pid);
    close(child->control_fd);
  }
}

void conform_child_end(struct child *child) {
  int status;
  close(child->control_fd);
  assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("the child ended with status 0x%x", (unsigned)status);
}
