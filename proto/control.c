#include "proto/control.h"

#include "common/base/clock.h"

#define US_MAX (1ull << 53)
#define US(name) \
  { #name, ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_beat, name), .min = 1, .max = US_MAX, .optional = true }
static const struct zps_field beat[] = {
    {"stuck_ms", ZPS_FIELD_NUMBER, ZPS_FIELD_AT(struct zps_beat, stuck_ms), .min = 1, .optional = true},
    US(sent_us),
    US(clock_us),
    US(echo_us),
    US(held_us),
};
const struct zps_fields zps_control_beat = {.name = "heartbeat", ZPS_FIELDS_OF(struct zps_beat, beat)};

zps_json *zps_control_beat_write(const struct zps_beat *from) {
  return zps_fields_write(&zps_control_beat, from);
}

struct zps_beat zps_control_beat_read(const zps_json *params) {
  struct zps_beat read;
  return zps_fields_read(&zps_control_beat, params, &read, NULL) ? (struct zps_beat){.stuck_ms = 0} : read;
}

void zps_beat_hear(struct zps_beat_heard *heard, const zps_json *params, uint64_t now_ns) {
  *heard = (struct zps_beat_heard){.sent_us = zps_control_beat_read(params).sent_us, .came_ns = now_ns};
}

zps_json *zps_beat_next(const struct zps_beat_heard *heard, uint64_t stuck_ms, uint64_t now_ns) {
  struct zps_beat next = {.stuck_ms = stuck_ms};
  if (heard->sent_us) {
    next.clock_us = zps_clock_utc_us();
    next.echo_us = heard->sent_us;
    next.held_us = (now_ns - heard->came_ns) / ZPS_NS_PER_US;
  }
  return zps_control_beat_write(&next);
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
