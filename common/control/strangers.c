#include "common/control/strangers.h"

#include <netinet/in.h>
#include <string.h>

#include "common/base/clock.h"

struct zps_place zps_place_of(const struct sockaddr *addr) {
  struct zps_place place = {.is_known = true};
  const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)addr;
  const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)addr;
  if (addr->sa_family == AF_INET) {
    place.bytes[10] = place.bytes[11] = 0xff;
    memcpy(&place.bytes[12], &v4->sin_addr, 4);
  } else if (addr->sa_family == AF_INET6) {
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
    const bool is_loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    memcpy(place.bytes, &v6->sin6_addr, is_mapped || is_loopback ? 16 : 8);
  } else {
    place.is_known = false;
  }
  return place;
}

bool zps_place_is(const struct zps_place *place, const struct zps_place *other) {
  return place->is_known && other->is_known && memcmp(place->bytes, other->bytes, sizeof place->bytes) == 0;
}

void zps_strangers_add(struct zps_strangers *strangers, struct zps_stranger *stranger, struct zps_place place,
                       uint64_t now_ns) {
  *stranger = (struct zps_stranger){.prev = strangers->newest, .place = place, .came_ns = now_ns, .is_listed = true};
  *(strangers->newest ? &strangers->newest->next : &strangers->oldest) = stranger;
  strangers->newest = stranger;
  strangers->n++;
}

void zps_strangers_remove(struct zps_strangers *strangers, struct zps_stranger *stranger) {
  if (!stranger->is_listed) return;
  *(stranger->prev ? &stranger->prev->next : &strangers->oldest) = stranger->next;
  *(stranger->next ? &stranger->next->prev : &strangers->newest) = stranger->prev;
  stranger->is_listed = false;
  strangers->n--;
}

enum zps_strangers_verdict zps_strangers_judge(const struct zps_strangers *strangers, struct zps_stranger *stranger,
                                               uint64_t now_ns, struct zps_stranger **whom_p, unsigned *n_p,
                                               uint64_t *until_ns_p) {
  const struct zps_stranger *oldest_here = NULL;
  unsigned n_here = 0;
  for (const struct zps_stranger *other = strangers->oldest; other; other = other->next) {
    if (!zps_place_is(&other->place, &stranger->place)) continue;
    if (!oldest_here) oldest_here = other;
    n_here++;
  }
  const bool here_is_full = n_here > ZPS_STRANGERS_OF_PLACE_MAX;
  if (!here_is_full && strangers->n <= ZPS_STRANGERS_MAX) return ZPS_STRANGER_FITS;
  const struct zps_stranger *oldest = here_is_full ? oldest_here : strangers->oldest;
  *n_p = (here_is_full ? n_here : strangers->n) - 1;
  *until_ns_p = oldest->came_ns + ZPS_STRANGERS_PATIENCE_MS * ZPS_NS_PER_MS;
  if (now_ns < *until_ns_p) return ZPS_STRANGER_WAITS;
  *whom_p = here_is_full ? stranger : strangers->oldest;
  return here_is_full ? ZPS_STRANGER_GOES : ZPS_STRANGER_MAKES_ROOM;
}
