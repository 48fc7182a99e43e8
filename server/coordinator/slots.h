/*
 * Slots of open connections, in rooms: a room has those of one origin (an address, a certificate) and one sort (a
 * role). A room has a limit, and so have all rooms together. Pure; the owner says what a slot is for, and who makes
 * room.
 */
#ifndef ZPS_SERVER_COORDINATOR_SLOTS_H
#define ZPS_SERVER_COORDINATOR_SLOTS_H

#include "common/base/origin.h"

struct zps_slots_room;

struct zps_slot { /* in its connection; zero: none was taken */
  struct zps_slots_room *room;
  struct zps_slot *older, *newer;
};

struct zps_slots_room { /* one with slots alone */
  struct zps_slots *slots;
  struct zps_slots_room *next;
  struct zps_origin origin;
  unsigned sort, n;
  struct zps_slot *oldest, *newest;
};

struct zps_slots { /* zero: none are taken */
  struct zps_slots_room *rooms;
  unsigned n;
};

/* False: there is no memory. */
bool zps_slots_take(struct zps_slots *slots, struct zps_slot *slot, struct zps_origin origin, unsigned sort);
/* A slot that was not taken is left alone. */
void zps_slots_leave(struct zps_slot *slot);
/* NULL: it has no slots. */
struct zps_slots_room *zps_slots_room(const struct zps_slots *slots, struct zps_origin origin, unsigned sort);

#endif
