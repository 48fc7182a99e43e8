/* TLS between the processes of a run whose coordinator zenpsrun starts: none where it listens on this host alone, and
 * by the files that the environment names (ZENPS_TLS_CA, ZENPS_TLS_CERT, ZENPS_TLS_KEY) where other hosts are to reach
 * it. */
#ifndef ZPS_TOOLS_SECURE_H
#define ZPS_TOOLS_SECURE_H

#include "common/tls/tls.h"

/* `coordinator`: its address; NULL: at the loopback interface. Daemons and ranks get their part by the environment,
 * which is changed here; *tls_p is for zenpsrun itself, NULL: none. ZPS_ERR_INVALID: others reach it, and the
 * environment names no files. */
zps_err_t zps_secure_run(const char *coordinator, struct zps_tls **tls_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
