#include "server/coordinator/seats.h"

#include <stdlib.h>

struct zps_seats_room *zps_seats_room(const struct zps_seats *seats, struct zps_place place, unsigned sort) {
  struct zps_seats_room *room = seats->rooms;
  while (room && !(room->sort == sort && zps_place_is(&room->place, &place))) room = room->next;
  return room;
}

bool zps_seats_take(struct zps_seats *seats, struct zps_seat *seat, struct zps_place place, unsigned sort) {
  struct zps_seats_room *room = zps_seats_room(seats, place, sort);
  if (!room) {
    room = malloc(sizeof *room);
    if (!room) return false;
    *room = (struct zps_seats_room){.seats = seats, .next = seats->rooms, .place = place, .sort = sort};
    seats->rooms = room;
  }
  *seat = (struct zps_seat){.room = room, .older = room->newest};
  *(room->newest ? &room->newest->newer : &room->oldest) = seat;
  room->newest = seat;
  room->n++;
  seats->n++;
  return true;
}

void zps_seats_leave(struct zps_seat *seat) {
  struct zps_seats_room *const room = seat->room;
  if (!room) return;
  *(seat->older ? &seat->older->newer : &room->oldest) = seat->newer;
  *(seat->newer ? &seat->newer->older : &room->newest) = seat->older;
  seat->room = NULL;
  room->seats->n--;
  if (--room->n > 0) return;
  struct zps_seats_room **link = &room->seats->rooms;
  while (*link != room) link = &(*link)->next;
  *link = room->next;
  free(room);
}
