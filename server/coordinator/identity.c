/* Which server a connection may be: its certificate names it, or several. A process is known again by its secret, and
 * its certificate is looked at each time that it registers. */
#include <unistd.h>

#include "server/coordinator/coordinator_impl.h"

zps_err_t zps_coordinator_may_serve(const struct zps_coordinator_conn *conn, const char *name,
                                    struct zps_error *error) {
  char names[ZPS_TLS_SERVERS_MAX];
  if (zps_rpc_conn_serves(conn->rpc, name, names) != ZPS_TLS_SERVES_NOT) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_REFUSED,
      "its certificate is for servers of the name %s, and it would be server '%.128s': it needs one of its own "
      "(zenpsctl certs init DIR --servers=NAME), or a server.name that fits",
      names, name);
}

zps_err_t zps_coordinator_is_own(const struct zps_coordinator_conn *conn, const char *what, struct zps_error *error) {
  const struct zps_coordinator *coordinator = conn->coordinator;
  if (!coordinator->own || zps_rpc_conn_is_unix(conn->rpc)) return ZPS_OK;
  const struct zps_rpc_listener *const socket = coordinator->socket ? coordinator->socket : coordinator->own;
  return zps_fail(
      error, ZPS_ERR_REFUSED,
      "'%s' is for the user of the coordinator (%lu), over %.120s: a caller over TCP may be any user of this "
      "host. Give that address (zenpsctl -e, control.coordinator), or speak TLS (tls.ca, tls.cert, tls.key)",
      what, (unsigned long)geteuid(), zps_rpc_listener_address(socket));
}
