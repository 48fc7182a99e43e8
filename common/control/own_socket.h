/*
 * The Unix socket by which processes of one user reach that user's coordinator at a loopback address, such as
 * 127.0.0.1:7077. Over TCP a coordinator cannot tell which user of the host calls. Over this socket the kernel says so,
 * and nobody else may enter its folder.
 *
 * The path follows from the address, so that it need not be given: $TMPDIR/zenps-UID/ADDRESS.NUMBER, with the number of
 * the network namespace, since an address of the loopback interface means another place in another one. In place of a
 * TMPDIR that is unset, relative or too long for a socket's path there is /tmp.
 */
#ifndef ZPS_CONTROL_OWN_SOCKET_H
#define ZPS_CONTROL_OWN_SOCKET_H

#include <stdbool.h>

#include "common/control/address.h"

#define ZPS_OWN_SOCKET_MAX 200u /* of its address, with the NUL; the path has 107 bytes at most */

/* The address "unix:PATH" of this user's socket for `address`, a number or name of the loopback interface with a port.
 * Makes the folder. ZPS_ERR_REFUSED: a folder of its name belongs to somebody else, or others may enter it.
 * ZPS_ERR_IO: it cannot be made. */
zps_err_t zps_own_socket_make(const char *address, char own[ZPS_OWN_SOCKET_MAX], struct zps_error *error) ZPS_MUSTCHECK;
/* Whether there is such a socket in a folder that this user alone may enter; then `own` has its path without "unix:".
 * Nobody need listen there any more. */
bool zps_own_socket_find(const struct zps_address *address, char own[ZPS_OWN_SOCKET_MAX]);

#endif
