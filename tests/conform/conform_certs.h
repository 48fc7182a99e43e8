/* Certificates for the suite's ends: one that may be a server and a rank, in a folder of the program's own. */
#ifndef ZPS_TESTS_CONFORM_CERTS_H
#define ZPS_TESTS_CONFORM_CERTS_H

#include "common/tls/tls.h"

/* The identity, made by the first process and read by its children; NULL: it cannot be made, and a text says why. */
struct zps_tls *conform_certs_open(void);
void conform_certs_close(struct zps_tls *tls);

#endif
