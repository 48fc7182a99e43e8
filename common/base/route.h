/* The address of this host on the way to another one. No packet is sent. */
#ifndef ZPS_BASE_ROUTE_H
#define ZPS_BASE_ROUTE_H

#include <stdbool.h>
#include <sys/socket.h>

/* What this host sends from when it sends to `host`, a name or a number; a name is looked up, for 2 s at
 * most. IPv4 comes first where a name has both. Where that is a loopback address, or the name has no route, it is
 * what the default route sends from. False: there is none. */
bool zps_route_source(const char *host, struct sockaddr_storage *source_p);
/* Whether no other host reaches this IP address. */
bool zps_route_is_loopback(const struct sockaddr *address);

#endif
