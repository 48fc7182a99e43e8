/*
 * The folder of a run, for this user alone: its coordinator's socket and state, its key and token. It is made below
 * TMPDIR (else /tmp), and goes with the run. The next run of the same user removes the folders there whose
 * zenpsrun was killed.
 */
#ifndef ZPS_TOOLS_FOLDER_H
#define ZPS_TOOLS_FOLDER_H

#include <limits.h>
#include <stddef.h>

#include "common/base/err.h"

struct zps_folder {
  char path[PATH_MAX - 32]; /* absolute; "": there is none */
  int fd;                   /* the folder, by which its socket is reached where the path is too long for one */
  int lock;                 /* locked for as long as this process lives */
};

/* ZPS_ERR_INVALID: TMPDIR is too long. ZPS_ERR_IO: the folder cannot be made. */
zps_err_t zps_folder_make(struct zps_folder *folder, struct zps_error *error) ZPS_MUSTCHECK;
/* The address of a Unix socket in it, for this user's processes while this process lives. `size`: 108 at least. */
void zps_folder_socket(const struct zps_folder *folder, char *address, size_t size);
/* With all that is in it. One that was not made is left alone. */
void zps_folder_remove(struct zps_folder *folder);

#endif
