/* The journal as a file. It is replaced by way of a second one: written, synced, renamed, and the folder synced. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/state/store.h"

#define JOURNAL "journal"
#define NEXT "journal.new"

struct file_store {
  struct zps_store_backend backend;
  int folder, journal; /* journal: -1 where there is none yet */
  char path[PATH_MAX];
};

static zps_err_t fail(const struct file_store *store, const char *what, struct zps_error *error) {
  return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot %s", store->path, what);
}

static zps_err_t write_all(const struct file_store *store, int fd, const char *data, size_t len,
                           struct zps_error *error) {
  while (len > 0) {
    const ssize_t n = write(fd, data, len);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(store, "write", error);
    data += n;
    len -= (size_t)n;
  }
  return ZPS_OK;
}

static zps_err_t read_all(const struct file_store *store, char *data, size_t len, struct zps_error *error) {
  while (len > 0) {
    const ssize_t n = read(store->journal, data, len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(store, "read", error);
    if (n == 0) return zps_fail(error, ZPS_ERR_IO, "%s: it has become shorter while it was read", store->path);
    data += n;
    len -= (size_t)n;
  }
  return ZPS_OK;
}

static zps_err_t file_read(struct zps_store_backend *backend, char **data_p, size_t *len_p, struct zps_error *error) {
  const struct file_store *store = (struct file_store *)backend;
  struct stat st = {.st_size = 0};
  if (store->journal >= 0 && fstat(store->journal, &st) < 0) return fail(store, "look at it", error);
  const size_t len = (size_t)st.st_size;
  char *const data = malloc(len + 1);
  if (!data) return zps_fail(error, ZPS_ERR_NOMEM, "%s: no memory to read %zu bytes", store->path, len);
  const zps_err_t err = read_all(store, data, len, error);
  if (err) {
    free(data);
    return err;
  }
  *data_p = data;
  *len_p = len;
  return ZPS_OK;
}

static zps_err_t file_write(struct zps_store_backend *backend, const char *data, size_t len, struct zps_error *error) {
  const struct file_store *store = (struct file_store *)backend;
  return write_all(store, store->journal, data, len, error);
}

static zps_err_t file_sync(struct zps_store_backend *backend, struct zps_error *error) {
  const struct file_store *store = (struct file_store *)backend;
  return fdatasync(store->journal) == 0 ? ZPS_OK : fail(store, "make what was written durable", error);
}

static zps_err_t file_replace(struct zps_store_backend *backend, const char *data, size_t len,
                              struct zps_error *error) {
  struct file_store *store = (struct file_store *)backend;
  const int fd = openat(store->folder, NEXT, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return fail(store, "create " NEXT " beside it", error);
  zps_err_t err = write_all(store, fd, data, len, error);
  if (!err && fsync(fd) < 0) err = fail(store, "make " NEXT " beside it durable", error);
  if (!err && renameat(store->folder, NEXT, store->folder, JOURNAL) < 0) err = fail(store, "replace it", error);
  if (!err && fsync(store->folder) < 0) err = fail(store, "make its folder durable", error);
  if (err) {
    close(fd);
    return err;
  }
  if (store->journal >= 0) close(store->journal);
  store->journal = fd;
  return ZPS_OK;
}

/* Where a full disk tore the tail off, there may be no room for a second file. */
static zps_err_t file_cut(struct zps_store_backend *backend, const char *data, size_t len, struct zps_error *error) {
  const struct file_store *store = (struct file_store *)backend;
  (void)data;
  if (ftruncate(store->journal, (off_t)len) < 0) return fail(store, "cut the torn tail off", error);
  return fsync(store->journal) == 0 ? ZPS_OK : fail(store, "make it durable that the torn tail is cut off", error);
}

static void file_close(struct zps_store_backend *backend) {
  struct file_store *store = (struct file_store *)backend;
  if (store->journal >= 0) close(store->journal);
  if (store->folder >= 0) close(store->folder); /* closing gives up the lock, too */
  free(store);
}

static const struct zps_store_ops file_ops = {.read = file_read,
                                              .write = file_write,
                                              .sync = file_sync,
                                              .replace = file_replace,
                                              .cut = file_cut,
                                              .close = file_close};

/* A new folder is there for good when the one that it is in says so. */
static zps_err_t sync_above(const char *folder, int fd, struct zps_error *error) {
  const int above = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool failed = above < 0 || fsync(above) < 0;
  const zps_err_t err =
      failed ? zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot make the new folder durable", folder) : ZPS_OK;
  if (above >= 0) close(above);
  return err;
}

static zps_err_t open_files(struct file_store *store, const char *folder, struct zps_error *error) {
  const bool is_new = mkdir(folder, 0700) == 0;
  if (!is_new && errno != EEXIST)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot make the folder for the state", folder);
  store->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (store->folder < 0) return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot open the folder", folder);
  if (is_new) {
    const zps_err_t err = sync_above(folder, store->folder, error);
    if (err) return err;
  }
  if (flock(store->folder, LOCK_EX | LOCK_NB) < 0)
    return errno == EWOULDBLOCK ? zps_fail(error, ZPS_ERR_BUSY, "%s: another process keeps its state there", folder)
                                : zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot lock the folder", folder);
  unlinkat(store->folder, NEXT, 0); /* of a process that died before it was done */
  store->journal = openat(store->folder, JOURNAL, O_RDWR | O_APPEND | O_CLOEXEC);
  return store->journal >= 0 || errno == ENOENT ? ZPS_OK : fail(store, "open it", error);
}

zps_err_t zps_store_file_open(const char *folder, struct zps_store_backend **backend_p, struct zps_error *error) {
  struct file_store *store = calloc(1, sizeof *store);
  if (!store) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the state in %s", folder);
  store->backend = (struct zps_store_backend){.ops = &file_ops, .name = store->path};
  store->folder = store->journal = -1;
  zps_err_t err = ZPS_OK;
  if (snprintf(store->path, sizeof store->path, "%s/" JOURNAL, folder) >= (int)sizeof store->path)
    err = zps_fail(error, ZPS_ERR_INVALID, "the path of the folder for the state has %zu bytes: must have at most %zu",
                   strlen(folder), sizeof store->path - sizeof "/" JOURNAL);
  if (!err) err = open_files(store, folder, error);
  if (err) {
    file_close(&store->backend);
    return err;
  }
  *backend_p = &store->backend;
  return ZPS_OK;
}
