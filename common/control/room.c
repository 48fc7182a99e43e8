#include "common/control/room.h"

#define ROW_BYTES 512u

_Static_assert(ZPS_RPC_LINE_MAX / 16 <= ZPS_JSON_VALUES_MAX, "zps_json_most_bytes() counts 16 bytes a value at least");

static bool fits(const struct zps_room *room, unsigned n_later, size_t bytes) {
  return room->left_bytes >= n_later * (size_t)ZPS_ROOM_KEPT_BYTES + bytes;
}

bool zps_room_has(struct zps_room *room, unsigned n_later) {
  if (fits(room, n_later, ROW_BYTES)) return true;
  room->n_out++;
  return false;
}

zps_json *zps_room_add(struct zps_room *room, unsigned n_later, zps_json *rows, zps_json *row) {
  const size_t bytes = zps_json_most_bytes(row);
  if (rows && row && !fits(room, n_later, bytes)) {
    room->n_out++;
    zps_json_unref(row);
    return rows;
  }
  room->left_bytes -= rows && row ? bytes : 0;
  return zps_json_append(rows, row);
}
