#include "server/coordinator/slots.h"

#include <stdlib.h>

struct zps_slots_room *zps_slots_room(const struct zps_slots *slots, struct zps_origin origin, unsigned sort) {
  struct zps_slots_room *room = slots->rooms;
  while (room && !(room->sort == sort && zps_origin_is(&room->origin, &origin))) room = room->next;
  return room;
}

bool zps_slots_take(struct zps_slots *slots, struct zps_slot *slot, struct zps_origin origin, unsigned sort) {
  struct zps_slots_room *room = zps_slots_room(slots, origin, sort);
  if (!room) {
    room = malloc(sizeof *room);
    if (!room) return false;
    *room = (struct zps_slots_room){.slots = slots, .next = slots->rooms, .origin = origin, .sort = sort};
    slots->rooms = room;
  }
  *slot = (struct zps_slot){.room = room, .older = room->newest};
  *(room->newest ? &room->newest->newer : &room->oldest) = slot;
  room->newest = slot;
  room->n++;
  slots->n++;
  return true;
}

void zps_slots_leave(struct zps_slot *slot) {
  struct zps_slots_room *const room = slot->room;
  if (!room) return;
  *(slot->older ? &slot->older->newer : &room->oldest) = slot->newer;
  *(slot->newer ? &slot->newer->older : &room->newest) = slot->older;
  slot->room = NULL;
  room->slots->n--;
  if (--room->n > 0) return;
  struct zps_slots_room **link = &room->slots->rooms;
  while (*link != room) link = &(*link)->next;
  *link = room->next;
  free(room);
}
