/* The security of a run whose coordinator zenpsrun starts: TLS between its processes, and the token of its ranks. */
#ifndef ZPS_TOOLS_SECURE_H
#define ZPS_TOOLS_SECURE_H

#include <limits.h>

#include "common/base/err.h"
#include "common/tls/tls.h"

/* ---- TLS. Daemons and ranks get their part by the environment, which is changed here ---- */

/* By the files that the environment names; none where the coordinator listens on this host alone and gradients are not
 * encrypted. `coordinator`: its address; NULL: at the loopback interface. *tls_p is for zenpsrun itself, NULL: none.
 * ZPS_ERR_INVALID: files are needed, and the environment names none. */
zps_err_t zps_secure_run(const char *coordinator, bool encrypts, struct zps_tls **tls_p,
                         struct zps_error *error) ZPS_MUSTCHECK;
/* By certificates of the run's own, in the folder `dir`. For encrypted gradients of a run on this host. */
zps_err_t zps_secure_own(const char *dir, struct zps_tls **tls_p, struct zps_error *error) ZPS_MUSTCHECK;

/* ---- The coordinator's key file, and a token made with it. Each run has its own, unless it is given a key file ----
 */

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
