/* zenpsctl certs: an authority and certificates for a cluster (common/tls), and what one says. It asks no coordinator.
 */
#ifndef ZPS_SERVER_CTL_CERTS_H
#define ZPS_SERVER_CTL_CERTS_H

#include <stdio.h>

#include "common/base/err.h"

/* `argv` begins with the word "certs". ZPS_ERR_INVALID: a word, an option or what a file holds is wrong. */
zps_err_t zps_ctl_certs_run(int argc, char **argv, FILE *out, struct zps_error *error) ZPS_MUSTCHECK;

#endif
