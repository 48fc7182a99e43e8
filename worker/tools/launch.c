#include "worker/tools/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

#define HEARD_NS ZPS_NS_PER_S /* how long others may hear of a death ahead of us */

enum { CHILDREN_MAX = 4096, LINE_BYTES = 8192 };

/* One of a child's two output streams; a line longer than the buffer is passed on in parts. */
struct stream {
  int fd, out_fd;
  size_t len;
  char buf[LINE_BYTES];
};

struct child {
  struct zps_child pub;
  struct stream streams[2];
};

struct zps_launch {
  bool prefix;
  int signal_fd;
  sigset_t old_mask;
  uint64_t n_ended;
  unsigned n_children;
  struct child *children[CHILDREN_MAX];
};

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
  *launch_p = launch;
  return ZPS_OK;
}

static void write_all(int fd, const char *data, size_t len) {
  while (len > 0) {
    const ssize_t n = write(fd, data, len);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return; /* the output has no reader: nothing better can be done with it */
    data += n;
    len -= (size_t)n;
  }
}

static void forward_line(const struct zps_launch *launch, const struct child *child, const struct stream *stream,
                         const char *line, size_t len) {
  char out[LINE_BYTES + sizeof child->pub.label + 4];
  size_t at = 0;
  if (launch->prefix) at = (size_t)snprintf(out, sizeof out, "[%s] ", child->pub.label);
  memcpy(out + at, line, len);
  at += len;
  out[at++] = '\n';
  write_all(stream->out_fd, out, at); /* one write per line, so that lines of different children do not mix */
}

static void stream_close(const struct zps_launch *launch, const struct child *child, struct stream *stream) {
  if (stream->fd < 0) return;
  if (stream->len > 0) forward_line(launch, child, stream, stream->buf, stream->len);
  stream->len = 0;
  close(stream->fd);
  stream->fd = -1;
}

static void stream_read(const struct zps_launch *launch, const struct child *child, struct stream *stream) {
  for (;;) {
    const ssize_t n = read(stream->fd, stream->buf + stream->len, sizeof stream->buf - stream->len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      stream_close(launch, child, stream);
      return;
    }
    stream->len += (size_t)n;
    char *start = stream->buf, *end = stream->buf + stream->len, *newline;
    while ((newline = memchr(start, '\n', (size_t)(end - start)))) {
      forward_line(launch, child, stream, start, (size_t)(newline - start));
      start = newline + 1;
    }
    stream->len = (size_t)(end - start);
    memmove(stream->buf, start, stream->len);
    if (stream->len == sizeof stream->buf) {
      forward_line(launch, child, stream, stream->buf, stream->len);
      stream->len = 0;
    }
  }
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
  setpgid(pid, pid); /* also in the child: either may come first */
  close(out[1]);
  close(err[1]);
  child->pub =
      (struct zps_child){.kind = kind, .number = number, .pid = pid, .running = true, .started_ns = zps_clock_ns()};
  snprintf(child->pub.label, sizeof child->pub.label, "%s", label);
  for (int i = 0; i < 2; i++) {
    child->streams[i].fd = i == 0 ? out[0] : err[0];
    child->streams[i].out_fd = i + 1;
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
      if (child->streams[k].fd >= 0) stream_read(launch, child, &child->streams[k]);
  }
}

int zps_launch_pump(struct zps_launch *launch, int timeout_ms) {
  struct pollfd fds[1 + 2 * CHILDREN_MAX];
  struct {
    struct child *child;
    struct stream *stream;
  } owners[1 + 2 * CHILDREN_MAX];
  nfds_t n = 0;
  fds[n++] = (struct pollfd){.fd = launch->signal_fd, .events = POLLIN};
  for (unsigned i = 0; i < launch->n_children; i++) {
    for (int k = 0; k < 2; k++) {
      struct child *child = launch->children[i];
      if (child->streams[k].fd < 0) continue;
      owners[n].child = child;
      owners[n].stream = &child->streams[k];
      fds[n++] = (struct pollfd){.fd = child->streams[k].fd, .events = POLLIN};
    }
  }
  if (poll(fds, n, timeout_ms) <= 0) return 0;
  for (nfds_t i = 1; i < n; i++)
    if (fds[i].revents) stream_read(launch, owners[i].child, owners[i].stream);
  int asked = 0;
  struct signalfd_siginfo info;
  while (read(launch->signal_fd, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) asked = (int)info.ssi_signo;
  }
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

void zps_launch_destroy(struct zps_launch *launch) {
  if (!launch) return;
  for (int kind = ZPS_CHILD_RANK; kind <= ZPS_CHILD_COORDINATOR; kind++) {
    zps_launch_signal(launch, (enum zps_child_kind)kind, SIGKILL);
    zps_launch_stop(launch, (enum zps_child_kind)kind, 0);
  }
  for (unsigned i = 0; i < launch->n_children; i++) {
    for (int k = 0; k < 2; k++) stream_close(launch, launch->children[i], &launch->children[i]->streams[k]);
    free(launch->children[i]);
  }
  close(launch->signal_fd);
  sigprocmask(SIG_SETMASK, &launch->old_mask, NULL);
  free(launch);
}
