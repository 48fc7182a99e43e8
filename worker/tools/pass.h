/* What lets the ranks of a run into its job: the coordinator's key file, and a token made with it. Each run has its
 * own, unless it is given a key file. */
#ifndef ZPS_TOOLS_PASS_H
#define ZPS_TOOLS_PASS_H

#include <limits.h>
#include <stdbool.h>

#include "common/base/err.h"

struct zps_pass {
  const char *key_file;   /* for coordinator.token_key */
  const char *token_file; /* for ZENPS_TOKEN_FILE */
  char own_key[PATH_MAX], token[PATH_MAX];
};

/* Into the folder `dir`, which nobody else may enter, of at most PATH_MAX - 32 bytes; `key_file` is borrowed; NULL:
 * makes a key. */
zps_err_t zps_pass_make(const char *dir, const char *key_file, struct zps_pass *pass,
                        struct zps_error *error) ZPS_MUSTCHECK;

#endif
