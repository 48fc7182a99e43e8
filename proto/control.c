#include "proto/control.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

zps_json *zps_control_beat_write(uint64_t stuck_ms) {
  zps_json *params = zps_json_object();
  return stuck_ms ? zps_json_set_u64(params, "stuck_ms", stuck_ms) : params;
}

uint64_t zps_control_beat_read(const zps_json *params) {
  return zps_json_opt_u64(params, "stuck_ms", 0);
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

zps_json *zps_control_link_secret_write(zps_json *object, const struct zps_secret *secret) {
  return zps_json_set_bytes(object, "link_secret", secret->bytes, sizeof secret->bytes);
}

zps_err_t zps_control_link_secret_read(const zps_json *object, struct zps_secret *secret, struct zps_error *error) {
  struct zps_secret read;
  size_t len = 0;
  const zps_err_t err = zps_json_get_bytes(object, "link_secret", read.bytes, sizeof read.bytes, &len, error);
  if (err) return err;
  if (len != sizeof read.bytes)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'link_secret' has %zu bytes, want %zu", len, sizeof read.bytes);
  *secret = read;
  return ZPS_OK;
}

zps_json *zps_control_fabric_write(zps_json *object, const struct zps_net_info *from) {
  return zps_json_set(object, "fabric", zps_fields_write(&zps_control_fabric, from));
}

zps_err_t zps_control_fabric_read(const zps_json *object, struct zps_net_info *to, struct zps_error *error) {
  const zps_json *from;
  const zps_err_t err = zps_json_get_object(object, "fabric", &from, error);
  return err ? err : zps_fields_read(&zps_control_fabric, from, to, error);
}

zps_json *zps_control_job_id_write(uint64_t job_id) {
  return zps_json_set_hex(zps_json_object(), "job_id", job_id);
}

zps_err_t zps_control_job_id_read(const zps_json *object, uint64_t *job_id_p, struct zps_error *error) {
  return zps_json_get_hex(object, "job_id", job_id_p, error);
}

zps_err_t zps_control_get_u32(const zps_json *object, const char *key, uint32_t min, uint32_t max, uint32_t *value_p,
                              struct zps_error *error) {
  uint64_t value;
  const zps_err_t err = zps_json_get_u64(object, key, min, max, &value, error);
  if (!err) *value_p = (uint32_t)value;
  return err;
}

zps_err_t zps_control_get_name(const zps_json *object, const char *key, size_t min, size_t max, const char **name_p,
                               struct zps_error *error) {
  const char *text;
  const zps_err_t err = zps_json_get_str(object, key, &text, error);
  if (err) return err;
  const size_t len = strlen(text);
  if (len < min || len > max || zps_text_printable(text, len) != len)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has %zu bytes, want %zu to %zu printable ones", key, len, min,
                    max);
  *name_p = text;
  return ZPS_OK;
}

zps_err_t zps_control_get_text(const zps_json *object, const char *key, size_t min, size_t max, char *buf,
                               struct zps_error *error) {
  const char *text = "";
  const zps_err_t err = zps_control_get_name(object, key, min, max, &text, error);
  if (!err) strcpy(buf, text);
  return err;
}

zps_err_t zps_control_get_u32s(const zps_json *object, const char *key, uint32_t most, uint32_t end,
                               uint32_t **values_p, uint32_t *n_p, struct zps_error *error) {
  const zps_json *array;
  zps_err_t err = zps_json_get_array(object, key, &array, error);
  if (err) return err;
  const size_t n = zps_json_array_len(array);
  if (n == 0 || n > most)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has %zu elements, want 1 to %u", key, n, most);
  uint32_t *values = calloc(n, sizeof *values);
  if (!values) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %zu numbers", n);
  for (size_t i = 0; i < n && !err; i++) {
    uint64_t value = 0;
    err = zps_json_at_u64(array, i, end - 1, &value, error);
    values[i] = (uint32_t)value;
  }
  if (err) {
    free(values);
    return err;
  }
  *values_p = values;
  *n_p = (uint32_t)n;
  return ZPS_OK;
}

zps_json *zps_control_set_u32s(zps_json *object, const char *key, const uint32_t *values, uint32_t n) {
  zps_json *array = zps_json_array();
  for (uint32_t i = 0; i < n; i++) array = zps_json_append_u64(array, values[i]);
  return zps_json_set(object, key, array);
}

zps_err_t zps_control_opt_word(const zps_json *object, const char *key, uint64_t *value_p, struct zps_error *error) {
  *value_p = 0;
  return zps_json_get(object, key) ? zps_json_get_hex(object, key, value_p, error) : ZPS_OK;
}

zps_json *zps_control_set_opt_word(zps_json *object, const char *key, uint64_t value) {
  return value ? zps_json_set_hex(object, key, value) : object;
}
