#include "common/control/strangers.h"

#include <netinet/in.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"

struct zps_origin zps_origin_of(const struct sockaddr *addr) {
  struct zps_origin origin = {.is_known = true};
  const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)addr;
  const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)addr;
  if (addr->sa_family == AF_INET) {
    origin.bytes[10] = origin.bytes[11] = 0xff;
    memcpy(&origin.bytes[12], &v4->sin_addr, 4);
  } else if (addr->sa_family == AF_INET6) {
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
    const bool is_loopback = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    memcpy(origin.bytes, &v6->sin6_addr, is_mapped || is_loopback ? 16 : 8);
  } else {
    origin.is_known = false;
  }
  return origin;
}

/* Names are given by whoever makes certificates and tokens, so nobody searches for two of one hash. */
struct zps_origin zps_origin_named(enum zps_origin_kind kind, const char *name) {
  struct zps_origin origin = {.is_known = true};
  uint64_t hash[2] = {zps_hash_mix64((uint64_t)kind + 1), zps_hash_mix64((uint64_t)kind + 257)};
  for (; *name; name++) {
    hash[0] = zps_hash_mix64(hash[0] ^ (uint8_t)*name);
    hash[1] = zps_hash_mix64(hash[1] + (uint8_t)*name + 1);
  }
  memcpy(origin.bytes, hash, sizeof origin.bytes);
  return origin;
}

bool zps_origin_is(const struct zps_origin *origin, const struct zps_origin *other) {
  return origin->is_known && other->is_known && memcmp(origin->bytes, other->bytes, sizeof origin->bytes) == 0;
}

void zps_strangers_add(struct zps_strangers *strangers, struct zps_stranger *stranger, struct zps_origin origin,
                       uint64_t now_ns) {
  *stranger = (struct zps_stranger){.prev = strangers->newest, .origin = origin, .came_ns = now_ns, .is_listed = true};
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

enum zps_strangers_verdict zps_strangers_judge(const struct zps_strangers *strangers,
                                               const struct zps_stranger *stranger, uint64_t read_ns,
                                               struct zps_stranger **whom_p, unsigned *n_p, uint64_t *until_ns_p) {
  /* The oldest first, of those that have said nothing [0], and of all others [1]. */
  struct zps_stranger *here[2] = {NULL, NULL}, *all[2] = {NULL, NULL};
  unsigned n_here = 0;
  for (struct zps_stranger *other = strangers->oldest; other; other = other->next) {
    if (!all[other->has_spoken]) all[other->has_spoken] = other;
    if (!zps_origin_is(&other->origin, &stranger->origin)) continue;
    if (!here[other->has_spoken]) here[other->has_spoken] = other;
    n_here++;
  }
  const bool here_is_full = n_here > ZPS_STRANGERS_OF_ORIGIN_MAX;
  if (!here_is_full && strangers->n <= ZPS_STRANGERS_MAX) return ZPS_STRANGER_FITS;
  struct zps_stranger *const *const among = here_is_full ? here : all;
  *whom_p = among[0] ? among[0] : among[1];
  *n_p = (here_is_full ? n_here : strangers->n) - 1;
  *until_ns_p = (*whom_p)->came_ns + ZPS_STRANGERS_PATIENCE_MS * ZPS_NS_PER_MS;
  return read_ns < *until_ns_p ? ZPS_STRANGER_WAITS : ZPS_STRANGER_MAKES_ROOM;
}
