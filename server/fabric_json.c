#include "server/fabric_json.h"

#include <string.h>

#include "common/base/text.h"

zps_json *zps_fabric_to_json(const struct zps_net_info *fabric) {
  zps_json *object = zps_json_object();
  object = zps_json_set_str(object, "provider", fabric->provider);
  object = zps_json_set_str(object, "protocol", fabric->protocol);
  object = zps_json_set_str(object, "addr_format", fabric->addr_format);
  object = zps_json_set_str(object, "domain", fabric->domain);
  object = zps_json_set_bytes(object, "address", fabric->addr, fabric->addr_len);
  return zps_json_set_str(object, "printable", fabric->address);
}

static zps_err_t get_text(const zps_json *object, const char *key, char *buf, size_t size, struct zps_error *error) {
  const char *text;
  const zps_err_t err = zps_json_get_str(object, key, &text, error);
  if (err) return err;
  const size_t len = strlen(text);
  if (len >= size || zps_text_printable(text, len) != len)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' of 'fabric' must be at most %zu printable bytes", key,
                    size - 1);
  memcpy(buf, text, len + 1);
  return ZPS_OK;
}

zps_err_t zps_fabric_from_json(const zps_json *object, struct zps_net_info *fabric_p, struct zps_error *error) {
  const zps_json *from;
  struct zps_net_info fabric = {0};
  zps_err_t err = zps_json_get_object(object, "fabric", &from, error);
  if (!err) err = get_text(from, "provider", fabric.provider, sizeof fabric.provider, error);
  if (!err) err = get_text(from, "protocol", fabric.protocol, sizeof fabric.protocol, error);
  if (!err) err = get_text(from, "addr_format", fabric.addr_format, sizeof fabric.addr_format, error);
  if (!err) err = get_text(from, "domain", fabric.domain, sizeof fabric.domain, error);
  if (!err) err = get_text(from, "printable", fabric.address, sizeof fabric.address, error);
  if (!err) err = zps_json_get_bytes(from, "address", fabric.addr, sizeof fabric.addr, &fabric.addr_len, error);
  if (!err) *fabric_p = fabric;
  return err;
}
