/*
 * Seats of open connections, in rooms: a room has those of one place (an address, a certificate) and one sort (a role).
 * A room has a limit, and so have all rooms together. Pure; the owner says what a seat is for, and who makes room.
 */
#ifndef ZPS_SERVER_COORDINATOR_SEATS_H
#define ZPS_SERVER_COORDINATOR_SEATS_H

#include "common/control/strangers.h"

struct zps_seats_room;

struct zps_seat { /* in its connection; zero: none was taken */
  struct zps_seats_room *room;
  struct zps_seat *older, *newer;
};

struct zps_seats_room { /* one with seats alone */
  struct zps_seats *seats;
  struct zps_seats_room *next;
  struct zps_place place;
  unsigned sort, n;
  struct zps_seat *oldest, *newest;
};

struct zps_seats { /* zero: none are taken */
  struct zps_seats_room *rooms;
  unsigned n;
};

/* False: there is no memory. */
bool zps_seats_take(struct zps_seats *seats, struct zps_seat *seat, struct zps_place place, unsigned sort);
/* A seat that was not taken is left alone. */
void zps_seats_leave(struct zps_seat *seat);
/* NULL: it has no seats. */
struct zps_seats_room *zps_seats_room(const struct zps_seats *seats, struct zps_place place, unsigned sort);

#endif
