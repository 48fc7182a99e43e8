#include "common/base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

zps_err_t zps_secret_make(uint64_t *secret_p) {
  uint64_t word = 0;
  while (word == 0) {
    const ssize_t n = getrandom(&word, sizeof word, 0);
    if (n < 0 && errno != EINTR) return ZPS_ERR_UNSUPPORTED;
    if (n != (ssize_t)sizeof word) word = 0;
  }
  *secret_p = word;
  return ZPS_OK;
}

#define MODE_MAX 0640u

static zps_err_t check(int fd, const char *path, const char *what, size_t size, struct zps_error *error) {
  struct stat stat;
  if (fstat(fd, &stat) != 0)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s %.300s: cannot be looked at", what, path);
  if (!S_ISREG(stat.st_mode)) return zps_fail(error, ZPS_ERR_INVALID, "%s %.300s: is no regular file", what, path);
  const unsigned mode = (unsigned)stat.st_mode & 0777u;
  if (mode & ~MODE_MAX)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%s %.300s: its mode is %04o, but it holds a secret: must be %04o at most (chmod 600)", what, path,
                    mode, MODE_MAX);
  if ((size_t)stat.st_size >= size)
    return zps_fail(error, ZPS_ERR_INVALID, "%s %.300s: has %lld bytes: must have less than %zu", what, path,
                    (long long)stat.st_size, size);
  return ZPS_OK;
}

/* Less than all of what is left of `size`: a file that grows meanwhile is cut. */
static zps_err_t read_all(int fd, const char *path, const char *what, char *text, size_t size,
                          struct zps_error *error) {
  size_t len = 0;
  while (len + 1 < size) {
    const ssize_t n = read(fd, text + len, size - 1 - len);
    if (n == 0) break;
    if (n < 0 && errno != EINTR)
      return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s %.300s: cannot be read", what, path);
    if (n > 0) len += (size_t)n;
  }
  text[len] = '\0';
  return strlen(text) == len ? ZPS_OK : zps_fail(error, ZPS_ERR_INVALID, "%s %.300s: is no text", what, path);
}

zps_err_t zps_private_read(const char *path, const char *what, char *text, size_t size, struct zps_error *error) {
  text[0] = '\0';
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s %.300s: cannot be opened", what, path);
  zps_err_t err = check(fd, path, what, size, error);
  if (!err) err = read_all(fd, path, what, text, size, error);
  if (err) text[0] = '\0';
  close(fd);
  return err;
}

zps_err_t zps_private_create(const char *path, const char *what, const char *text, struct zps_error *error) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && errno == EEXIST)
    return zps_fail(error, ZPS_ERR_BUSY, "%s %.300s: there is a file of this name, which stays as it is", what, path);
  if (fd < 0) return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s %.300s: cannot be created", what, path);
  const size_t len = strlen(text);
  size_t done = 0;
  ssize_t n = 1;
  while (done < len && n > 0) {
    n = write(fd, text + done, len - done);
    if (n > 0) done += (size_t)n;
    if (n < 0 && errno == EINTR) n = 1;
  }
  const int why = done == len && fsync(fd) == 0 ? 0 : errno;
  if (close(fd) == 0 && why == 0) return ZPS_OK;
  unlink(path);
  return zps_fail_errno(error, ZPS_ERR_IO, why ? why : errno, "%s %.300s: cannot be written", what, path);
}
