/* The room that the tables of an answer have together: a line. Rows without room are left out, and counted, so that
 * there is an answer in any case. */
#ifndef ZPS_CONTROL_ROOM_H
#define ZPS_CONTROL_ROOM_H

#include "common/control/rpc.h"

#define ZPS_ROOM_BYTES (ZPS_RPC_LINE_MAX - (64u << 10)) /* All but the envelope of a message. */
#define ZPS_ROOM_KEPT_BYTES (256u << 10)                /* What a table leaves for each later one. */

struct zps_room {
  size_t left_bytes;
  unsigned long n_out; /* rows left out */
};

/* Whether a table that leaves `n_later` later ones their part has room for one more row. False: the row is counted as
 * left out, and need not be made. */
bool zps_room_has(struct zps_room *room, unsigned n_later);
/* Appends `row` to `rows`, or leaves it out. Both are consumed. NULL: no memory, as one of them was. */
zps_json *zps_room_add(struct zps_room *room, unsigned n_later, zps_json *rows, zps_json *row);

#endif
