#include "worker/tools/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PREFIX "zenpsrun."
#define RANDOM "XXXXXX"
#define LOCK "lock"
#define SOCKET "coordinator"

enum { DEPTH_MAX = 2 };

/* ------------------------------------------------------------ what is in it */

static void remove_from(int fd, unsigned depth);

static void remove_one(int fd, const char *name, unsigned depth) {
  if (unlinkat(fd, name, 0) == 0 || depth == 0) return;
  const int below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (below < 0) return;
  remove_from(below, depth - 1);
  unlinkat(fd, name, AT_REMOVEDIR);
}

/* Closes `fd`. The lock stays to the last, so that a folder that is left half empty is found again. */
static void remove_from(int fd, unsigned depth) {
  DIR *const dir = fdopendir(fd);
  if (!dir) {
    close(fd);
    return;
  }
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
        (depth < DEPTH_MAX || strcmp(entry->d_name, LOCK) != 0))
      remove_one(dirfd(dir), entry->d_name, depth);
  closedir(dir);
}

static void remove_all(int parent, const char *name) {
  const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  const int again = dup(fd);
  if (again >= 0) remove_from(again, DEPTH_MAX);
  unlinkat(fd, LOCK, 0);
  close(fd);
  unlinkat(parent, name, AT_REMOVEDIR);
}

/* ------------------------------------------------------------ folders of runs that were killed */

/* The kernel lets go of a lock when its process ends, however it ends. A folder without one may be about to get it. */
static bool is_left(int parent, const char *name) {
  struct stat st;
  char path[NAME_MAX + 8];
  if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || strlen(name) != strlen(PREFIX RANDOM)) return false;
  if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
    return false;
  snprintf(path, sizeof path, "%s/" LOCK, name);
  const int lock = openat(parent, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (lock < 0) return false;
  const bool left = flock(lock, LOCK_EX | LOCK_NB) == 0;
  close(lock);
  return left;
}

static void remove_left(const char *tmp) {
  DIR *const dir = opendir(tmp);
  if (!dir) return;
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
    if (is_left(dirfd(dir), entry->d_name)) remove_all(dirfd(dir), entry->d_name);
  closedir(dir);
}

/* ------------------------------------------------------------ this run's */

static zps_err_t find_tmp(char tmp[PATH_MAX], struct zps_error *error) {
  const char *const said = getenv("TMPDIR");
  const size_t most = sizeof((struct zps_folder *)0)->path - sizeof "/" PREFIX RANDOM;
  const char *const text = said && *said ? said : "/tmp";
  char here[PATH_MAX] = "";
  if (text[0] != '/' && !getcwd(here, sizeof here))
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot tell the folder that this process is in");
  const size_t len = strlen(text) + (here[0] ? strlen(here) + 1 : 0);
  if (len > most)
    return zps_fail(error, ZPS_ERR_INVALID, "TMPDIR is a path of %zu bytes: must have at most %zu", len, most);
  snprintf(tmp, PATH_MAX, "%s%s%s", here, here[0] ? "/" : "", text);
  return ZPS_OK;
}

/* The file has its name once it is locked: no other run can find it unlocked. Some file systems have no locks; a folder
 * there is never taken for one that was left. */
static bool lock_it(struct zps_folder *folder) {
  folder->lock = openat(folder->fd, LOCK ".new", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (folder->lock < 0) return false;
  if (flock(folder->lock, LOCK_EX | LOCK_NB) < 0) return errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK;
  return renameat(folder->fd, LOCK ".new", folder->fd, LOCK) == 0;
}

zps_err_t zps_folder_make(struct zps_folder *folder, struct zps_error *error) {
  char tmp[PATH_MAX];
  *folder = (struct zps_folder){.fd = -1, .lock = -1};
  const zps_err_t err = find_tmp(tmp, error);
  if (err) return err;
  remove_left(tmp);
  snprintf(folder->path, sizeof folder->path, "%.*s/" PREFIX RANDOM,
           (int)(sizeof folder->path - sizeof "/" PREFIX RANDOM), tmp);
  if (!mkdtemp(folder->path)) {
    zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot create a folder for the run (%s; TMPDIR says where)",
                   folder->path);
    folder->path[0] = '\0';
    return ZPS_ERR_IO;
  }
  folder->fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder->fd >= 0 && lock_it(folder)) return ZPS_OK;
  zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot lock the folder of the run (%s; TMPDIR says where)", folder->path);
  zps_folder_remove(folder);
  return ZPS_ERR_IO;
}

/* A socket's path has 107 bytes at most, and in a list of addresses a comma ends it. */
void zps_folder_socket(const struct zps_folder *folder, char *address, size_t size) {
  const size_t most = sizeof((struct sockaddr_un *)0)->sun_path - sizeof "/" SOCKET;
  if (strlen(folder->path) <= most && !strpbrk(folder->path, ",\n"))
    snprintf(address, size, "unix:%s/" SOCKET, folder->path);
  else
    snprintf(address, size, "unix:/proc/%ld/fd/%d/" SOCKET, (long)getpid(), folder->fd);
}

void zps_folder_remove(struct zps_folder *folder) {
  if (!folder->path[0]) return;
  remove_all(AT_FDCWD, folder->path);
  if (folder->lock >= 0) close(folder->lock);
  if (folder->fd >= 0) close(folder->fd);
  folder->path[0] = '\0';
}
