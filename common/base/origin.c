#include "common/base/origin.h"

#include <netinet/in.h>
#include <string.h>

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
