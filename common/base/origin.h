/* Where a client comes from: the name that its connections and jobs are counted under. */
#ifndef ZPS_BASE_ORIGIN_H
#define ZPS_BASE_ORIGIN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* An IPv4 address; the 64 bits that an IPv6 network gives one host to choose from; or a name. Unix sockets have no
 * address. */
struct zps_origin {
  bool is_known;
  uint8_t bytes[16];
};
struct zps_origin zps_origin_of(const struct sockaddr *addr);
/* Names of two kinds, and names and addresses, are never equal. */
enum zps_origin_kind { ZPS_ORIGIN_UNIX, ZPS_ORIGIN_CERTIFICATE, ZPS_ORIGIN_TOKEN };
struct zps_origin zps_origin_named(enum zps_origin_kind kind, const char *name);
/* False where one of them is not known. */
bool zps_origin_is(const struct zps_origin *origin, const struct zps_origin *other);

#endif
