/* A TCP port that ranks can meet at. */
#ifndef ZPS_TOOLS_PORT_H
#define ZPS_TOOLS_PORT_H

#include "common/base/err.h"

/* The first port of first..last, looked through from first + seed % their number on, that no socket of this host holds;
 * 0: none. */
unsigned zps_tools_port_find(unsigned first, unsigned last, unsigned seed) ZPS_MUSTCHECK;
/* One that nothing holds, outside the range from which the system takes ports by itself: so no connection that is made
 * from now on comes to hold it. ZPS_ERR_IO: there is none. */
zps_err_t zps_tools_port_free(unsigned *port_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
