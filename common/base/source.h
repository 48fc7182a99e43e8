/*
 * Files from which programs read text that they keep in memory: traces, corpora, lists of cases. A plain file ends by
 * itself. A pipe need not, so the bytes taken from it are bounded; a device such as /dev/zero or a folder is a mistake.
 */
#ifndef ZPS_BASE_SOURCE_H
#define ZPS_BASE_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* Longest line that is taken: 64 MiB. */
#define ZPS_SOURCE_LINE_MAX ((size_t)1 << 26)

struct zps_source {
  const char *name; /* borrowed */
  uint64_t n_bytes, most_bytes;
};

/* Looks at an open file. `is_packed`: it is decompressed on the way, and so longer than it looks. */
zps_err_t zps_source_init(struct zps_source *source, int fd, const char *name, bool is_packed,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* `n` bytes of text more have come: refused when they are too many. */
zps_err_t zps_source_add(struct zps_source *source, size_t n, struct zps_error *error) ZPS_MUSTCHECK;

#endif
