/*
 * The bytes that a file holds, decompressed where its name ends in .xz or .gz. A build may lack either decompressor.
 */
#ifndef ZPS_TOOLS_UNPACK_H
#define ZPS_TOOLS_UNPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/base/err.h"

struct zps_tools_unpack;

/* Whether the name is that of a compressed file. */
bool zps_tools_unpack_wanted(const char *path);
/* `file` and `path` stay the caller's and must outlive the object. ZPS_ERR_UNSUPPORTED: this build lacks the
 * decompressor. */
zps_err_t zps_tools_unpack_create(FILE *file, const char *path, struct zps_tools_unpack **unpack_p,
                                  struct zps_error *error) ZPS_MUSTCHECK;
/* Up to `room` bytes; *end_p becomes true with the last of them. ZPS_ERR_IO: the file cannot be read, or is damaged. */
zps_err_t zps_tools_unpack_read(struct zps_tools_unpack *unpack, void *out, size_t room, size_t *got_p, bool *end_p,
                                struct zps_error *error) ZPS_MUSTCHECK;
void zps_tools_unpack_destroy(struct zps_tools_unpack *unpack); /* NULL is allowed */

#endif
