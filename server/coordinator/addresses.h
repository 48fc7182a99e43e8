/* A peer names its address for gradients, and all servers and ranks of its job connect there. So the address must be
 * the peer's own, as its connection shows, or in a network that is known to be for gradients. A peer of this host may
 * name any, since it has several. Addresses of another kind than IP (EFA, Slingshot, Aries, shared memory) are not
 * checked: nothing in them tells the host. */
#ifndef ZPS_SERVER_COORDINATOR_ADDRESSES_H
#define ZPS_SERVER_COORDINATOR_ADDRESSES_H

#include "common/base/origin.h"
#include "proto/control.h"

/* `subnets`: a list (common/base/subnet.h), or NULL. */
bool zps_address_is_of(const struct zps_net_info *fabric, const struct zps_origin *peer, const char *subnets);

/* Where they are not all of the peer: the first one that is not, for errors. Returns `text`, or the first address. */
const char *zps_address_foreign(const struct zps_net_info *fabric, const struct zps_origin *peer, const char *subnets,
                                char *text, size_t size);

/* Can an address be compared with a connection? */
bool zps_address_tells_host(const struct zps_net_info *fabric);
/* Only this host reaches the endpoint. */
bool zps_address_is_local(const struct zps_net_info *fabric);
/* libfabric never frees what it keeps of each connection to the endpoint, whoever made it. Its TCP provider does so
 * before libfabric 1.18, where it is called "net". */
bool zps_address_leaks(const struct zps_net_info *fabric);
#define ZPS_LEAK_REMEDY "use libfabric 1.18 or later, or let no other hosts than the cluster's reach the data port"

#endif
