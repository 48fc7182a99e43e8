#include "server/daemon/ready.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/beside.h"

#define ZPS_LOG_COMPONENT "zenpsd"
#include "common/base/config.h"
#include "common/base/log.h"

static void drop(struct zps_ready *ready, const char *path) {
  unlink(path);
  close(ready->fd);
  ready->fd = -1;
}

/* The file under another name, one that nobody could lay in its way, locked, with the process's number in it. */
static zps_err_t make_beside(struct zps_ready *ready, char beside[PATH_MAX], struct zps_error *error) {
  const zps_err_t err =
      zps_beside_create(ready->path, zps_config_label("control.ready_file"), beside, &ready->fd, error);
  if (err) return err;
  if (fchmod(ready->fd, 0644) == 0 && flock(ready->fd, LOCK_EX | LOCK_NB) == 0 &&
      dprintf(ready->fd, "%ld\n", (long)getpid()) > 0)
    return ZPS_OK;
  zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot lock and write %.300s", zps_config_label("control.ready_file"),
                 beside);
  drop(ready, beside);
  return ZPS_ERR_IO;
}

static zps_err_t remove_stale(const char *path, struct zps_error *error) {
  const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return ZPS_OK;
  const bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
  if (fd >= 0) close(fd);
  if (held)
    return zps_fail(error, ZPS_ERR_BUSY, "%s: %.300s is held by a daemon that runs: each must have a file of its own",
                    zps_config_label("control.ready_file"), path);
  if (unlink(path) == 0) return ZPS_OK;
  return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot remove %.300s, which is there already",
                        zps_config_label("control.ready_file"), path);
}

zps_err_t zps_ready_init(struct zps_ready *ready, const char *path, struct zps_error *error) {
  *ready = (struct zps_ready){.fd = -1};
  if (!path) return ZPS_OK;
  zps_err_t err = remove_stale(path, error);
  if (err) return err;
  ready->path = path;
  char beside[PATH_MAX];
  err = make_beside(ready, beside, error);
  if (!err) drop(ready, beside);
  return err;
}

void zps_ready_set(struct zps_ready *ready, bool is_ready) {
  char beside[PATH_MAX];
  struct zps_error error;
  if (!ready->path || ready->ended || is_ready == (ready->fd >= 0)) return;
  if (!is_ready) {
    drop(ready, ready->path);
  } else if (make_beside(ready, beside, &error)) {
    zps_log_failure(ZPS_LOG_ERROR, &error);
  } else if (rename(beside, ready->path) != 0) {
    zps_log_error("%s: cannot rename %s to %s: %s", zps_config_label("control.ready_file"), beside, ready->path,
                  strerror(errno));
    drop(ready, beside);
  }
}

void zps_ready_end(struct zps_ready *ready) {
  zps_ready_set(ready, false);
  ready->ended = true;
}
