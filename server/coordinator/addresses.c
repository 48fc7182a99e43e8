#include "server/coordinator/addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "common/base/bundle.h"
#include "common/base/config.h"
#include "common/base/route.h"
#include "common/base/subnet.h"
#include "server/coordinator/coordinator_impl.h"

static bool is_of_sockets(const struct zps_net_info *fabric) {
  return strncmp(fabric->addr_format, "FI_SOCKADDR", strlen("FI_SOCKADDR")) == 0;
}

/* Of rail k. False: it is of another kind, such as EFA's, and does not tell the host. */
static bool ip_of(const struct zps_net_info *fabric, unsigned k, struct sockaddr_storage *addr) {
  size_t len = 0;
  const uint8_t *const bytes = zps_bundle_get(fabric->addr, fabric->addr_len, k, &len);
  if (!bytes || len > sizeof *addr || len < sizeof addr->ss_family) return false;
  if (!is_of_sockets(fabric)) return false;
  memset(addr, 0, sizeof *addr);
  memcpy(addr, bytes, len);
  return (addr->ss_family == AF_INET && len >= sizeof(struct sockaddr_in)) ||
         (addr->ss_family == AF_INET6 && len >= sizeof(struct sockaddr_in6));
}

/* The first rail with an address that is not the peer's; the number of rails: there is none. */
static unsigned foreign_rail(const struct zps_net_info *fabric, const struct zps_origin *peer, const char *subnets) {
  struct sockaddr_storage addr;
  const uint8_t *bytes;
  const unsigned n_rails = zps_bundle_count(fabric->addr, fabric->addr_len);
  if (!peer->is_known || (!ip_of(fabric, 0, &addr) && (n_rails == 1 || !is_of_sockets(fabric)))) return n_rails;
  for (unsigned k = 0; k < n_rails; k++) {
    if (!ip_of(fabric, k, &addr)) return k;
    const struct zps_origin named = zps_origin_of((const struct sockaddr *)&addr);
    const size_t n = zps_subnet_bytes(&addr, &bytes);
    if (!zps_origin_is(&named, peer) && !(subnets && zps_subnets_have(subnets, bytes, n))) return k;
  }
  return n_rails;
}

bool zps_address_is_of(const struct zps_net_info *fabric, const struct zps_origin *peer, const char *subnets) {
  return foreign_rail(fabric, peer, subnets) == zps_bundle_count(fabric->addr, fabric->addr_len);
}

const char *zps_address_foreign(const struct zps_net_info *fabric, const struct zps_origin *peer, const char *subnets,
                                char *text, size_t size) {
  char ip[INET6_ADDRSTRLEN] = "none";
  struct sockaddr_storage addr;
  const uint8_t *bytes;
  const unsigned k = foreign_rail(fabric, peer, subnets);
  if (k == 0) return fabric->address;
  const size_t n = ip_of(fabric, k, &addr) ? zps_subnet_bytes(&addr, &bytes) : 0;
  if (n > 0) inet_ntop(n == 4 ? AF_INET : AF_INET6, bytes, ip, sizeof ip);
  snprintf(text, size, "%s of rail %u", ip, k);
  return text;
}

bool zps_address_tells_host(const struct zps_net_info *fabric) {
  struct sockaddr_storage addr;
  return ip_of(fabric, 0, &addr);
}

bool zps_address_is_local(const struct zps_net_info *fabric) {
  struct sockaddr_storage addr;
  if (strcmp(fabric->provider, "shm") == 0) return true;
  return ip_of(fabric, 0, &addr) && zps_route_is_loopback((const struct sockaddr *)&addr);
}

bool zps_address_leaks(const struct zps_net_info *fabric) {
  return strcmp(fabric->provider, "net") == 0;
}

zps_err_t zps_coordinator_may_name(const struct zps_coordinator_conn *conn, const struct zps_net_info *fabric,
                                   struct zps_error *error) {
  const struct zps_coordinator *coordinator = conn->coordinator;
  const struct zps_origin peer = zps_rpc_conn_place(conn->rpc);
  char foreign[INET6_ADDRSTRLEN + 24];
  if (!coordinator->config.own_addresses || zps_rpc_conn_is_near(conn->rpc) ||
      zps_address_is_of(fabric, &peer, coordinator->subnets))
    return ZPS_OK;
  return zps_fail(error, ZPS_ERR_REFUSED,
                  "the address for gradients, %.90s, is not that of the connection, %.60s, nor in a network that the "
                  "coordinator knows of: %s of the coordinator names such networks, and %s = any takes all. For ranks "
                  "behind NAT set %s = yes, for servers and ranks",
                  zps_address_foreign(fabric, &peer, coordinator->subnets, foreign, sizeof foreign),
                  zps_rpc_conn_peer(conn->rpc), zps_config_label("fabric.subnet"),
                  zps_config_label("coordinator.addresses"), zps_config_label("fabric.encrypt"));
}
