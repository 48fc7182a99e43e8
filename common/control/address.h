/* Addresses of the control plane: "HOST:PORT", "[V6]:PORT", "unix:/path". */
#ifndef ZPS_CONTROL_ADDRESS_H
#define ZPS_CONTROL_ADDRESS_H

#include <sys/socket.h>
#include <sys/un.h>

#include "common/base/err.h"

struct zps_address {
  bool is_unix;
  char host[256]; /* may be empty: every address of this host, for listening */
  char port[6];
  char path[sizeof((struct sockaddr_un *)0)->sun_path];
};

zps_err_t zps_address_parse(const char *text, struct zps_address *address_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Whether no other host can reach it: "localhost" and names like it, a number of the loopback network, a Unix socket. Other names are not
 * looked up. */
bool zps_address_is_loopback(const struct zps_address *address);
/* "10.0.0.7:41234", "[::1]:41234", or "unix". */
void zps_address_print(const struct sockaddr *addr, char *buf, size_t size);

/* Whether a process listens at a Unix socket. ZPS_ERR_CLOSED: nobody does, so its process was killed. ZPS_ERR_IO: it
 * cannot be tried. */
zps_err_t zps_address_probe(const char *path, struct zps_error *error) ZPS_MUSTCHECK;

#endif
