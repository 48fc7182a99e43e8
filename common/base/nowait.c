#include "common/base/nowait.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { TERMINAL_PIECE = 256 }; /* a terminal that poll() calls writable has about this much room */

/* An open file of our own, which alone is O_NONBLOCK. */
static ssize_t write_own(int fd, const void *data, size_t size) {
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own < 0) {
    if (errno == ENXIO) errno = EPIPE; /* a FIFO without a reader */
    return -1;
  }
  const ssize_t n = write(own, data, size);
  const int why = errno;
  close(own);
  errno = why;
  return n;
}

static ssize_t write_after_look(int fd, const char *data, size_t size, size_t piece) {
  size_t done = 0;
  while (done < size) {
    struct pollfd look = {.fd = fd, .events = POLLOUT};
    if (poll(&look, 1, 0) <= 0) {
      errno = EAGAIN;
      break;
    }
    const ssize_t n = write(fd, data + done, size - done < piece ? size - done : piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += (size_t)n;
  }
  return done > 0 ? (ssize_t)done : -1;
}

static ssize_t write_slow_reader(int fd, const void *data, size_t size, bool is_pipe) {
  const struct iovec piece = {.iov_base = (void *)data, .iov_len = size};
  ssize_t n = pwritev2(fd, &piece, 1, -1, RWF_NOWAIT);
  if (n >= 0 || (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)) return n;
  n = write_own(fd, data, size);
  if (n >= 0 || errno == EAGAIN || errno == EPIPE || errno == EIO) return n;
  return write_after_look(fd, data, size, is_pipe ? PIPE_BUF : TERMINAL_PIECE);
}

static ssize_t write_by_kind(int fd, const void *data, size_t size) {
  struct stat stat;
  if (fstat(fd, &stat) != 0) return -1;
  if (S_ISSOCK(stat.st_mode)) return send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (S_ISFIFO(stat.st_mode) || isatty(fd)) return write_slow_reader(fd, data, size, S_ISFIFO(stat.st_mode));
  return write(fd, data, size);
}

ssize_t zps_write_nowait(int fd, const void *data, size_t size) {
  sigset_t pipe_signal, old, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &old);
  ssize_t n;
  do n = write_by_kind(fd, data, size);
  while (n < 0 && errno == EINTR);
  const int why = errno;
  /* The signal is this thread's own: it is taken back before the program can see it. */
  if (n < 0 && why == EPIPE && !sigismember(&pending, SIGPIPE))
    sigtimedwait(&pipe_signal, NULL, &(const struct timespec){.tv_sec = 0});
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  errno = why;
  return n;
}
