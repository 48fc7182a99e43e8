/* Where a peer may have others send to, and read from: the address for gradients that it names goes to all servers and
 * ranks of its job, which connect to it, wherever that is. So it is to be the peer's own, as its connection shows, or
 * in a network that is known to be for gradients. A peer of this host may name any, since it has several; of an address
 * of another kind than IP nothing can be told. */
#ifndef ZPS_SERVER_COORDINATOR_ADDRESSES_H
#define ZPS_SERVER_COORDINATOR_ADDRESSES_H

#include "common/control/strangers.h"
#include "proto/control.h"

/* `subnets`: a list (common/base/subnet.h), or NULL. */
bool zps_address_is_of(const struct zps_net_info *fabric, const struct zps_place *peer, const char *subnets);

#endif
