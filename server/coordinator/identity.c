/* Which server a connection may be: its certificate names it, or several. A process is known again by its secret, and
 * its certificate is looked at each time that it registers. */
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

struct zps_coordinator_served zps_coordinator_served(const struct zps_coordinator *coordinator) {
  char names[ZPS_TLS_SERVERS_MAX];
  struct zps_coordinator_served served = {.first = ""};
  for (const struct zps_coordinator_conn *conn = coordinator->conns; conn; conn = conn->next) {
    const struct zps_member_server *const server = conn->client.server;
    if (!server || !conn->rpc) continue;
    const enum zps_tls_serves serves = zps_rpc_conn_serves(conn->rpc, server->name, names);
    if (serves == ZPS_TLS_SERVES_ANY && served.n_any++ == 0) served.first = server->name;
    if (serves == ZPS_TLS_SERVES_SOME) served.n_some++;
  }
  return served;
}
