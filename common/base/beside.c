#include "common/base/beside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define NAME ".zenps.XXXXXX"

zps_err_t zps_beside_create(const char *path, const char *what, char beside[PATH_MAX], int *fd_p,
                            struct zps_error *error) {
  const char *const slash = strrchr(path, '/');
  const size_t folder_len = slash ? (size_t)(slash - path) + 1 : 0;
  errno = ENAMETOOLONG;
  *fd_p = -1;
  if (strlen(path) < PATH_MAX && folder_len + sizeof NAME <= PATH_MAX && strlen(path + folder_len) <= NAME_MAX) {
    memcpy(beside, path, folder_len);
    strcpy(beside + folder_len, NAME);
    *fd_p = mkostemp(beside, O_CLOEXEC);
  }
  if (*fd_p >= 0) return ZPS_OK;
  if (errno != ENAMETOOLONG)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "%s: cannot create a file beside %s", what, path);
  return zps_fail(error, ZPS_ERR_INVALID,
                  "%s: the path has %zu bytes: must have at most %d, and each name in it %d: %s", what, strlen(path),
                  PATH_MAX - (int)sizeof NAME, NAME_MAX, path);
}
