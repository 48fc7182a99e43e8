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
#define HEX_BYTES_MAX 64u

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

static int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool zps_hex_read(const char *text, uint8_t *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
    if (low < 0) return false;
    bytes[i] = (uint8_t)(high << 4 | low);
  }
  return true;
}

zps_err_t zps_private_read_hex(const char *path, const char *what, uint8_t *bytes, size_t size, size_t *len_p,
                               struct zps_error *error) {
  char text[HEX_BYTES_MAX * 2 + 3];
  zps_err_t err = zps_private_read(path, what, text, sizeof text, error);
  if (err) return err;
  const size_t n = strcspn(text, "\r\n");
  const bool is_good = n > 0 && n % 2 == 0 && n / 2 <= size && zps_hex_read(text, bytes, n / 2);
  explicit_bzero(text, sizeof text);
  *len_p = n / 2;
  if (is_good) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "%s %.300s: the first line has %zu characters: must be an even number of lower-case hexadecimal "
                  "digits, 2 to %zu",
                  what, path, n, 2 * size);
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
