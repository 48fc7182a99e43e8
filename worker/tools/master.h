/* Where ranks meet: the address that rank 0 of several hosts has its coordinator listen at, by the MASTER_ADDR that all
 * of them know it by; and a free port (MASTER_PORT). */
#ifndef ZPS_TOOLS_MASTER_H
#define ZPS_TOOLS_MASTER_H

#include <stddef.h>

#include "common/base/err.h"

/* Writes "HOST:PORT" to `buf`. A number of this host is listened at. Any other name or number may lead here in ways
 * that only other hosts know (/etc/hosts of Debian calls this host 127.0.1.1), so that is every address of its family.
 * `elsewhere`: some ranks are certainly on other hosts, which a loopback address then is an error for. */
zps_err_t zps_master_listen(const char *master, unsigned port, bool elsewhere, char *buf, size_t size,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* ZPS_ERR_INVALID: the text is a loopback address or "localhost", so other hosts cannot mean this one by it. */
zps_err_t zps_master_check(const char *master, struct zps_error *error) ZPS_MUSTCHECK;

/* The first port of first..last, looked through from first + seed % their number on, that no socket of this host holds;
 * 0: none. */
unsigned zps_tools_port_find(unsigned first, unsigned last, unsigned seed) ZPS_MUSTCHECK;
/* A free port outside the range from which the system takes ports by itself, so no later connection comes to hold it.
 * ZPS_ERR_IO: there is none. */
zps_err_t zps_tools_port_free(unsigned *port_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
