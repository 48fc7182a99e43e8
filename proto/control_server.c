#include "proto/control_server.h"

#define JOBS_MAX 65536u

static const struct zps_field server[] = {
    {"name", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_server_spec, name), .min = 1, .max = ZPS_NAME_MAX},
    {"host", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_server_spec, host), .min = 1, .max = ZPS_NAME_MAX},
    {"pid", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_server_spec, pid)},
    {"secret", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_server_spec, secret), .optional = true},
    {"incarnation", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_server_spec, incarnation), .optional = true},
    {"jobs", ZPS_FIELD_HEX, ZPS_FIELD_LIST_AT(struct zps_server_spec, jobs, n_jobs), .n_max = JOBS_MAX,
     .optional = true},
    {"draining", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_server_spec, draining), .optional = true},
    {"fabric", ZPS_FIELD_OBJECT, ZPS_FIELD_AT(struct zps_server_spec, fabric), .by_pointer = true,
     .part = &zps_control_fabric},
};
const struct zps_fields zps_control_server = {.name = "server.register", ZPS_FIELDS_OF(struct zps_server_spec, server)};

zps_err_t zps_control_server_read(const zps_json *params, struct zps_server_spec *spec, struct zps_net_info *fabric,
                                  struct zps_error *error) {
  *fabric = (struct zps_net_info){0};
  *spec = (struct zps_server_spec){.fabric = fabric};
  return zps_fields_complete(&zps_control_server, params, spec, error);
}

static const struct zps_field answer[] = {
    {"server", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_server_answer, server)},
    {"epoch", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_server_answer, epoch)},
    {"incarnation", ZPS_FIELD_HEX, ZPS_FIELD_AT(struct zps_server_answer, incarnation), .optional = true},
    {"jobs", ZPS_FIELD_HEX, ZPS_FIELD_LIST_AT(struct zps_server_answer, jobs, n_jobs), .n_max = JOBS_MAX,
     .optional = true},
    {.type = ZPS_FIELD_PART, ZPS_FIELD_AT(struct zps_server_answer, heartbeat), .part = &zps_control_heartbeat},
};
const struct zps_fields zps_control_server_answer = {.name = "server.register answer",
                                                     ZPS_FIELDS_OF(struct zps_server_answer, answer)};

static const struct zps_field drained[] = {{"jobs", ZPS_FIELD_NUMBER, .size = sizeof(uint32_t)}};
const struct zps_fields zps_control_drained = {.name = "server.drain answer", ZPS_FIELDS_OF(uint32_t, drained)};

/* ------------------------------------------------------------ administrators */

#define REASON                                                                                \
  {                                                                                           \
    "reason", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_admin_call, reason),                    \
        .min = 1, .max = ZPS_KICK_REASON_MAX, .optional = true, .text = "no reason was given" \
  }
static const struct zps_field drain[] = {
    {"name", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_admin_call, name), .min = 1, .max = ZPS_NAME_MAX},
    REASON,
};
const struct zps_fields zps_control_drain = {ZPS_FIELDS_OF(struct zps_admin_call, drain)};

static const struct zps_field rebalance[] = {
    {"name", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_admin_call, name), .min = 1, .max = ZPS_NAME_MAX,
     .optional = true},
    REASON,
};
const struct zps_fields zps_control_rebalance = {.name = "rebalance", ZPS_FIELDS_OF(struct zps_admin_call, rebalance)};

static const struct zps_field kick[] = {
    {"name", ZPS_FIELD_NAME, ZPS_FIELD_AT(struct zps_admin_call, name), .min = 1, .max = ZPS_NAME_MAX},
    {"rank", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_admin_call, rank), .max = ZPS_WORLD_MAX - 1},
    REASON,
};
const struct zps_fields zps_control_kick = {.name = "kick", ZPS_FIELDS_OF(struct zps_admin_call, kick)};
