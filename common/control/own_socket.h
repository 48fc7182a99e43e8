/*
 * The Unix socket by which processes of one user reach that user's coordinator at a loopback address, such as
 * 127.0.0.1:7077. Over TCP a coordinator cannot tell which user of the host calls. Over this socket the kernel says so,
 * and nobody else may enter its folder.
 *
 * The path is FOLDER/ADDRESS.NUMBER. NUMBER is that of the network namespace, since a loopback address means another
 * place in another one. FOLDER is the first usable one of
 *
 *     $XDG_RUNTIME_DIR/zenps-UID   $TMPDIR/zenps-UID   /run/user/UID/zenps-UID   $TMPDIR/zenps-UID.XXXXXX
 *
 * Another user may take a name in TMPDIR beforehand. So the last name is random. /tmp takes the place of an unset,
 * relative or overlong TMPDIR. Clients look for the socket in all of
 * these folders. So a process without XDG_RUNTIME_DIR finds the coordinator of a login session.
 */
#ifndef ZPS_CONTROL_OWN_SOCKET_H
#define ZPS_CONTROL_OWN_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/control/address.h"

#define ZPS_OWN_SOCKET_MAX 200u /* of its address, with the NUL; the path has 107 bytes at most */

/* Gives the address "unix:PATH" of this user's socket for `address`, a number or name of the loopback interface with a
 * port. Makes the folder, and removes sockets of killed processes from all of these folders. Logs a warning when
 * somebody has taken the expected name. ZPS_ERR_REFUSED, ZPS_ERR_IO: no folder can be had. */
zps_err_t zps_own_socket_make(const char *address, char own[ZPS_OWN_SOCKET_MAX], struct zps_error *error) ZPS_MUSTCHECK;
/* The same address, for another process than the one that makes the socket. Where that process had to choose a folder
 * that nobody foresees, waits for the socket. ZPS_ERR_TIMEOUT: there is none in time. */
zps_err_t zps_own_socket_await(const char *address, uint64_t timeout_ms, char own[ZPS_OWN_SOCKET_MAX],
                               struct zps_error *error) ZPS_MUSTCHECK;
/* Whether there is such a socket in a folder that this user alone may enter; then `own` has its path without "unix:".
 * Prefers one that a process has. If there is none, nobody need listen at the one that is found. */
bool zps_own_socket_find(const struct zps_address *address, char own[ZPS_OWN_SOCKET_MAX]);

#endif
