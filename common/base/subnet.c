#include "common/base/subnet.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

enum { TOKEN_MAX = 64 };

struct subnet {
  int family;
  uint8_t addr[16];
  unsigned bits;
};

size_t zps_subnet_bytes(const void *sockaddr, const uint8_t **bytes_p) {
  const struct sockaddr *const addr = sockaddr;
  if (addr->sa_family == AF_INET) {
    *bytes_p = (const uint8_t *)&((const struct sockaddr_in *)sockaddr)->sin_addr;
    return 4;
  }
  if (addr->sa_family == AF_INET6) {
    *bytes_p = (const uint8_t *)&((const struct sockaddr_in6 *)sockaddr)->sin6_addr;
    return 16;
  }
  return 0;
}

static zps_err_t parse(const char *token, struct subnet *subnet_p, struct zps_error *error) {
  char text[TOKEN_MAX], *slash, *end;
  snprintf(text, sizeof text, "%s", token);
  slash = strchr(text, '/');
  if (slash) *slash = '\0';
  subnet_p->family = strchr(text, ':') ? AF_INET6 : AF_INET;
  const unsigned max_bits = subnet_p->family == AF_INET ? 32 : 128;
  unsigned long bits = max_bits;
  bool ok = inet_pton(subnet_p->family, text, subnet_p->addr) == 1;
  if (ok && slash) {
    bits = strtoul(slash + 1, &end, 10);
    ok = slash[1] >= '0' && slash[1] <= '9' && *end == '\0' && bits <= max_bits;
  }
  if (!ok)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "the fabric's subnet \"%s\" (fabric.subnet, ZENPS_SUBNET) is not one: give ADDRESS/BITS such as "
                    "10.0.0.0/8 or fd00::/8",
                    token);
  subnet_p->bits = (unsigned)bits;
  return ZPS_OK;
}

static bool contains(const struct subnet *subnet, const uint8_t *addr) {
  const unsigned whole = subnet->bits / 8, rest = subnet->bits % 8;
  if (memcmp(addr, subnet->addr, whole) != 0) return false;
  return rest == 0 || ((addr[whole] ^ subnet->addr[whole]) >> (8 - rest)) == 0;
}

zps_err_t zps_subnets_check(const char *list, struct zps_error *error) {
  char token[TOKEN_MAX];
  struct subnet subnet;
  while (zps_text_word(&list, token, sizeof token)) {
    const zps_err_t code = parse(token, &subnet, error);
    if (code != ZPS_OK) return code;
  }
  return ZPS_OK;
}

bool zps_subnets_have(const char *list, const uint8_t *bytes, size_t n_bytes) {
  char token[TOKEN_MAX];
  struct subnet subnet;
  if (n_bytes != 4 && n_bytes != 16) return false;
  while (zps_text_word(&list, token, sizeof token))
    if (parse(token, &subnet, NULL) == ZPS_OK && (subnet.family == AF_INET) == (n_bytes == 4) &&
        contains(&subnet, bytes))
      return true;
  return false;
}
