#include "worker/tools/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "worker/tools/output.h"

#define HEARD_NS ZPS_NS_PER_S /* how long others may hear of a death ahead of us */

enum { CHILDREN_MAX = 4096, LAST_WORDS_MS = 1000 /* for a reader, once we were asked to stop */ };

struct child {
  struct zps_child pub;
  struct zps_stream streams[2];
};

struct zps_launch {
  bool prefix;
  int signal_fd;
  int asked; /* the first signal that asked for a stop */
  sigset_t old_mask;
  uint64_t n_ended;
  unsigned n_children;
  struct child *children[CHILDREN_MAX];
  unsigned n_outputs; /* 1: stdout and stderr are the same file */
  struct zps_output outputs[2];
};

static bool is_same_file(int a, int b) {
  struct stat stats[2];
  return fstat(a, &stats[0]) == 0 && fstat(b, &stats[1]) == 0 && stats[0].st_dev == stats[1].st_dev &&
         stats[0].st_ino == stats[1].st_ino;
}

zps_err_t zps_launch_create(bool prefix, struct zps_launch **launch_p, struct zps_error *error) {
  struct zps_launch *launch = calloc(1, sizeof *launch);
  if (!launch) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  launch->prefix = prefix;
  sigset_t mask;
  sigemptyset(&mask);
  for (size_t i = 0; i < 4; i++) sigaddset(&mask, (const int[]){SIGCHLD, SIGINT, SIGTERM, SIGHUP}[i]);
  sigprocmask(SIG_BLOCK, &mask, &launch->old_mask);
  launch->signal_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
  if (launch->signal_fd < 0) {
    const zps_err_t code = zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot create a signalfd");
    sigprocmask(SIG_SETMASK, &launch->old_mask, NULL);
    free(launch);
    return code;
  }
  launch->outputs[0].fd = STDOUT_FILENO;
  launch->outputs[1].fd = STDERR_FILENO;
  launch->n_outputs = is_same_file(STDOUT_FILENO, STDERR_FILENO) ? 1 : 2;
  *launch_p = launch;
  return ZPS_OK;
}

void zps_launch_say(struct zps_launch *launch, const char *fmt, ...) {
  char text[1024];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  struct zps_output *const output = &launch->outputs[launch->n_outputs - 1];
  zps_output_add(output, launch, NULL, text, strlen(text));
  zps_output_write(output);
}

/* In the child, between fork and exec. */
static void child_exec(const struct zps_launch *launch, pid_t parent, const int fds[2], char *const *argv,
                       const char *const *env) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  setpgid(0, 0);
  sigprocmask(SIG_SETMASK, &launch->old_mask, NULL);
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd >= 0) dup2(null_fd, 0);
  dup2(fds[0], 1);
  dup2(fds[1], 2);
  for (; *env; env++) putenv((char *)*env);
  execvp(argv[0], argv);
  dprintf(2, "cannot run '%s': %s\n", argv[0], strerror(errno));
  _exit(127);
}

zps_err_t zps_launch_start(struct zps_launch *launch, enum zps_child_kind kind, unsigned number, const char *label,
                           char *const *argv, const char *const *env, const struct zps_child **child_p,
                           struct zps_error *error) {
  if (launch->n_children == CHILDREN_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "too many processes: at most %d can be started", (int)CHILDREN_MAX);
  struct child *child = calloc(1, sizeof *child);
  if (!child) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory starting %s", label);
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  zps_err_t code;
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    code = zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot create pipes for %s", label);
    goto err_close;
  }
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) {
    code = zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot start a process for %s", label);
    goto err_close;
  }
  if (pid == 0) child_exec(launch, parent, (const int[]){out[1], err[1]}, argv, env);
  setpgid(pid, pid); /* parent and child both set it: either may come first */
  close(out[1]);
  close(err[1]);
  child->pub =
      (struct zps_child){.kind = kind, .number = number, .pid = pid, .running = true, .started_ns = zps_clock_ns()};
  snprintf(child->pub.label, sizeof child->pub.label, "%s", label);
  for (int i = 0; i < 2; i++) {
    child->streams[i].fd = i == 0 ? out[0] : err[0];
    child->streams[i].output = &launch->outputs[(unsigned)i < launch->n_outputs ? i : 0];
    child->streams[i].label = launch->prefix ? child->pub.label : NULL;
    fcntl(child->streams[i].fd, F_SETFL, O_NONBLOCK);
  }
  launch->children[launch->n_children++] = child;
  if (child_p) *child_p = &child->pub;
  return ZPS_OK;

err_close:
  for (int i = 0; i < 2; i++) {
    if (out[i] >= 0) close(out[i]);
    if (err[i] >= 0) close(err[i]);
  }
  free(child);
  return code;
}

static void reap(struct zps_launch *launch) {
  for (unsigned i = 0; i < launch->n_children; i++) {
    struct child *child = launch->children[i];
    int status;
    if (!child->pub.running || waitpid(child->pub.pid, &status, WNOHANG) != child->pub.pid) continue;
    child->pub.running = false;
    child->pub.status = status;
    child->pub.ended = ++launch->n_ended;
    child->pub.ended_ns = zps_clock_ns();
    for (int k = 0; k < 2; k++)
      if (child->streams[k].fd >= 0) zps_stream_read(&child->streams[k]);
  }
}

/* Stays asked: the first signal. */
static int read_signals(struct zps_launch *launch) {
  int asked = 0;
  struct signalfd_siginfo info;
  while (read(launch->signal_fd, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) asked = (int)info.ssi_signo;
  }
  if (asked && !launch->asked) launch->asked = asked;
  return asked;
}

/* Parts of lines that have waited are passed on. Returns for how long to wait, at most `timeout_ms`. */
static int look_at_parts(struct zps_launch *launch, int timeout_ms) {
  const uint64_t now_ns = zps_clock_ns();
  for (unsigned i = 0; i < launch->n_children; i++) {
    for (int k = 0; k < 2; k++) {
      const int ms = zps_stream_look(&launch->children[i]->streams[k], now_ns);
      if (ms >= 0 && (timeout_ms < 0 || ms < timeout_ms)) timeout_ms = ms;
    }
  }
  return timeout_ms;
}

int zps_launch_pump(struct zps_launch *launch, int timeout_ms) {
  struct pollfd fds[3 + 2 * CHILDREN_MAX];
  struct zps_stream *streams[3 + 2 * CHILDREN_MAX];
  nfds_t n = 0;
  timeout_ms = look_at_parts(launch, timeout_ms);
  fds[n++] = (struct pollfd){.fd = launch->signal_fd, .events = POLLIN};
  for (unsigned k = 0; k < launch->n_outputs; k++)
    if (launch->outputs[k].len > 0) fds[n++] = (struct pollfd){.fd = launch->outputs[k].fd, .events = POLLOUT};
  const nfds_t first = n;
  for (unsigned i = 0; i < launch->n_children; i++) {
    for (int k = 0; k < 2; k++) {
      struct zps_stream *const stream = &launch->children[i]->streams[k];
      if (stream->fd < 0 || stream->output->len >= ZPS_OUTPUT_FULL) continue;
      streams[n] = stream;
      fds[n++] = (struct pollfd){.fd = stream->fd, .events = POLLIN};
    }
  }
  if (poll(fds, n, timeout_ms) <= 0) return 0;
  for (unsigned k = 0; k < launch->n_outputs; k++) zps_output_write(&launch->outputs[k]);
  for (nfds_t i = first; i < n; i++)
    if (fds[i].revents) zps_stream_read(streams[i]);
  const int asked = read_signals(launch);
  reap(launch);
  return asked;
}

void zps_launch_signal(struct zps_launch *launch, enum zps_child_kind kind, int signal_number) {
  for (unsigned i = 0; i < launch->n_children; i++) {
    struct zps_child *child = &launch->children[i]->pub;
    if (!child->running || child->kind != kind) continue;
    child->sent = signal_number;
    kill(-child->pid, signal_number);
  }
}

unsigned zps_launch_running(const struct zps_launch *launch, enum zps_child_kind kind) {
  unsigned n = 0;
  for (unsigned i = 0; i < launch->n_children; i++)
    n += launch->children[i]->pub.running && launch->children[i]->pub.kind == kind;
  return n;
}

void zps_launch_stop(struct zps_launch *launch, enum zps_child_kind kind, unsigned grace_ms) {
  const uint64_t deadline_ns = zps_clock_ns() + grace_ms * ZPS_NS_PER_MS;
  while (zps_launch_running(launch, kind) > 0) {
    const uint64_t now_ns = zps_clock_ns();
    if (now_ns >= deadline_ns) zps_launch_signal(launch, kind, SIGKILL);
    zps_launch_pump(launch, now_ns >= deadline_ns ? 100 : (int)((deadline_ns - now_ns) / ZPS_NS_PER_MS) + 1);
  }
}

static bool was_killed(const struct zps_child *child) {
  return WIFSIGNALED(child->status) && WTERMSIG(child->status) != child->sent;
}

const struct zps_child *zps_launch_first_failure(const struct zps_launch *launch, enum zps_child_kind kind,
                                                 uint64_t ended) {
  const struct zps_child *first = NULL, *killed = NULL;
  for (unsigned i = 0; i < launch->n_children; i++) {
    const struct zps_child *child = &launch->children[i]->pub;
    if (child->kind != kind || child->running || child->status == 0 || child->ended <= ended) continue;
    if (!first || child->ended < first->ended) first = child;
    if (was_killed(child) && (!killed || child->ended < killed->ended)) killed = child;
  }
  return killed && killed->ended_ns - first->ended_ns <= HEARD_NS ? killed : first;
}

const struct zps_child *zps_launch_next_end(const struct zps_launch *launch, enum zps_child_kind kind, uint64_t ended) {
  const struct zps_child *next = NULL;
  for (unsigned i = 0; i < launch->n_children; i++) {
    const struct zps_child *child = &launch->children[i]->pub;
    if (child->kind != kind || child->running || child->ended <= ended) continue;
    if (!next || child->ended < next->ended) next = child;
  }
  return next;
}

const char *zps_child_end_text(const struct zps_child *child, char *buf, size_t size) {
  if (WIFSIGNALED(child->status)) {
    snprintf(buf, size, "was killed by signal %d (%s)", WTERMSIG(child->status), strsignal(WTERMSIG(child->status)));
  } else {
    snprintf(buf, size, "exited with code %d", WEXITSTATUS(child->status));
  }
  return buf;
}

/* What is left to print goes out before the end, however long its reader takes; once we were asked to stop, it has
 * LAST_WORDS_MS. */
static void print_rest(struct zps_launch *launch) {
  uint64_t end_ns = 0;
  for (;;) {
    bool is_waiting = false;
    struct pollfd fds[3] = {{.fd = launch->signal_fd, .events = POLLIN}, {.fd = -1}, {.fd = -1}};
    for (unsigned i = 0; i < launch->n_children; i++)
      for (int k = 0; k < 2; k++)
        if (launch->children[i]->streams[k].fd >= 0) zps_stream_read(&launch->children[i]->streams[k]);
    for (unsigned k = 0; k < launch->n_outputs; k++) {
      zps_output_write(&launch->outputs[k]);
      if (launch->outputs[k].len == 0) continue;
      is_waiting = true;
      fds[1 + k] = (struct pollfd){.fd = launch->outputs[k].fd, .events = POLLOUT};
    }
    if (!is_waiting) return;
    read_signals(launch);
    const uint64_t now_ns = zps_clock_ns();
    if (launch->asked && end_ns == 0) end_ns = now_ns + LAST_WORDS_MS * ZPS_NS_PER_MS;
    if (end_ns > 0 && now_ns >= end_ns) return;
    poll(fds, 3, end_ns > 0 ? (int)((end_ns - now_ns) / ZPS_NS_PER_MS) + 1 : -1);
  }
}

static void tell_lost(struct zps_launch *launch) {
  for (unsigned k = 0; k < launch->n_outputs; k++) {
    const struct zps_output *const output = &launch->outputs[k];
    const size_t n = output->n_lost + output->len;
    if (n > 0)
      zps_launch_say(launch, "zenpsrun: %zu bytes for %s were dropped: %s\n", n, k == 0 ? "stdout" : "stderr",
                     output->why ? strerror(output->why) : "its reader did not keep up");
  }
}

void zps_launch_destroy(struct zps_launch *launch) {
  if (!launch) return;
  for (int kind = ZPS_CHILD_RANK; kind <= ZPS_CHILD_COORDINATOR; kind++) {
    zps_launch_signal(launch, (enum zps_child_kind)kind, SIGKILL);
    zps_launch_stop(launch, (enum zps_child_kind)kind, 0);
  }
  print_rest(launch);
  for (unsigned i = 0; i < launch->n_children; i++)
    for (int k = 0; k < 2; k++) zps_stream_close(&launch->children[i]->streams[k]);
  print_rest(launch);
  tell_lost(launch);
  for (unsigned i = 0; i < launch->n_children; i++) free(launch->children[i]);
  close(launch->signal_fd);
  sigprocmask(SIG_SETMASK, &launch->old_mask, NULL);
  free(launch);
}
