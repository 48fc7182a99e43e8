/* New files that are to take the place of others: written beside them, then renamed. */
#ifndef ZPS_BASE_BESIDE_H
#define ZPS_BASE_BESIDE_H

#include <limits.h>

#include "common/base/err.h"

/* Creates a file in the folder of `path`, for this user alone, by a name that nobody could guess and so put a link at.
 * That name is short, so that `path` may be as long as the system allows. Writes it to `beside`; *fd_p is the caller's to
 * close. `what` is the option that names `path`. */
zps_err_t zps_beside_create(const char *path, const char *what, char beside[PATH_MAX], int *fd_p,
                            struct zps_error *error) ZPS_MUSTCHECK;

#endif
