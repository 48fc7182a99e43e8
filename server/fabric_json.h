/* The `fabric` object of the control plane: what a process publishes of its fabric endpoint. */
#ifndef ZPS_SERVER_FABRIC_JSON_H
#define ZPS_SERVER_FABRIC_JSON_H

#include "common/control/json.h"
#include "common/net/net.h"

zps_json *zps_fabric_to_json(const struct zps_net_info *fabric);
/* Reads member "fabric" of `object`; max_read does not travel and is left zero. */
zps_err_t zps_fabric_from_json(const zps_json *object, struct zps_net_info *fabric_p,
                               struct zps_error *error) ZPS_MUSTCHECK;

#endif
