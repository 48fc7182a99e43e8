/* Secrets: words that nobody can guess, and files that hold secrets. */
#ifndef ZPS_BASE_SECRET_H
#define ZPS_BASE_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* ---- Words: by which a process is known again, ids of jobs, seeds ---- */

/* From the kernel's generator, never 0. ZPS_ERR_UNSUPPORTED, with errno set: this kernel has no such generator. */
zps_err_t zps_secret_make(uint64_t *secret_p) ZPS_MUSTCHECK;

/* Of a job: its servers and ranks know it, and nobody else. */
struct zps_secret {
  uint8_t bytes[16];
};

/* ---- Files: read only where nobody but the owner and the group could have read them ---- */

/* The whole of a file of less than `size` bytes, with a NUL behind it; `what` names it in errors. A symbolic link is
 * followed, as those of a mounted secret are. ZPS_ERR_INVALID: no regular file, too long, or one that others may read
 * or the group may write (more than 0640). ZPS_ERR_IO: it cannot be read. On an error `text` is empty. */
zps_err_t zps_private_read(const char *path, const char *what, char *text, size_t size,
                           struct zps_error *error) ZPS_MUSTCHECK;

/* Reads exactly 2 n lower-case hexadecimal digits. */
bool zps_hex_read(const char *text, uint8_t *bytes, size_t n) ZPS_MUSTCHECK;

/* The first line of such a file, hexadecimal digits of 1 to `size` bytes (64 at most). No error repeats the line. */
zps_err_t zps_private_read_hex(const char *path, const char *what, uint8_t *bytes, size_t size, size_t *len_p,
                               struct zps_error *error) ZPS_MUSTCHECK;

/* A new file that its owner alone can read (0600). ZPS_ERR_BUSY: there is one of this name, which stays as it is. */
zps_err_t zps_private_create(const char *path, const char *what, const char *text,
                             struct zps_error *error) ZPS_MUSTCHECK;

#endif
