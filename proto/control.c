#include "proto/control.h"

static const struct zps_field beat[] = {
    {"stuck_ms", ZPS_FIELD_NUMBER, .size = sizeof(uint64_t), .min = 1, .optional = true},
};
const struct zps_fields zps_control_beat = {.name = "heartbeat", ZPS_FIELDS_OF(uint64_t, beat)};

zps_json *zps_control_beat_write(uint64_t stuck_ms) {
  return zps_fields_write(&zps_control_beat, &stuck_ms);
}

/* The beat counts, whatever it says. */
uint64_t zps_control_beat_read(const zps_json *params) {
  uint64_t stuck_ms;
  return zps_fields_read(&zps_control_beat, params, &stuck_ms, NULL) ? 0 : stuck_ms;
}

static const struct zps_field heartbeat[] = {
    {"heartbeat_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_heartbeat, heartbeat_ms), .min = 1,
     .max = ZPS_HEARTBEAT_MAX_MS},
    {"dead_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_heartbeat, dead_ms), .min = 1, .max = ZPS_HEARTBEAT_MAX_MS},
};
const struct zps_fields zps_control_heartbeat = {ZPS_FIELDS_OF(struct zps_heartbeat, heartbeat)};

static const struct zps_field fabric[] = {
    {"provider", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_net_info, provider)},
    {"protocol", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_net_info, protocol)},
    {"addr_format", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_net_info, addr_format)},
    {"domain", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_net_info, domain)},
    {"address", ZPS_FIELD_BYTES, ZPS_FIELD_BYTES_AT(struct zps_net_info, addr, addr_len)},
    {"weak_keys", ZPS_FIELD_FLAG, ZPS_FIELD_AT(struct zps_net_info, weak_keys), .optional = true},
    {"printable", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_net_info, address)},
};
const struct zps_fields zps_control_fabric = {ZPS_FIELDS_OF(struct zps_net_info, fabric)};

static const struct zps_field failure[] = {
    {"error", ZPS_FIELD_CODE, ZPS_FIELD_AT(struct zps_error, code), .optional = true},
    {"why", ZPS_FIELD_TEXT, ZPS_FIELD_AT(struct zps_error, text), .optional = true},
};
const struct zps_fields zps_control_error = {ZPS_FIELDS_OF(struct zps_error, failure)};

static const struct zps_field job_id[] = {{"job_id", ZPS_FIELD_HEX, .size = sizeof(uint64_t)}};
const struct zps_fields zps_control_job_id = {ZPS_FIELDS_OF(uint64_t, job_id)};
