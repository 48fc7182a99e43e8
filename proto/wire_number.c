#include "proto/wire_impl.h"

zps_err_t zps_wire_number(struct zps_wire_reader *reader, const char *field, uint64_t most, uint64_t *value_p,
                          struct zps_error *error) {
  const uint8_t *const first = reader->at;
  uint64_t value;
  if (!zps_varint_get(&reader->at, reader->end, &value))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame of %zu bytes, offset %zu: no number where %s is due",
                    reader->type, (size_t)(reader->end - reader->start), (size_t)(first - reader->start), field);
  if (value > most)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, offset %zu: %s is %llu, at most %llu is allowed", reader->type,
                    (size_t)(first - reader->start), field, (unsigned long long)value, (unsigned long long)most);
  *value_p = value;
  return ZPS_OK;
}
