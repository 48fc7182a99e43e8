#include "worker/tools/port.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST 20000u
#define LAST 32767u

static bool can_bind(int family, unsigned port) {
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
  const struct sockaddr *const at = family == AF_INET6 ? (const struct sockaddr *)&six : (const struct sockaddr *)&four;
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return family == AF_INET6; /* a host without it */
  const int only = 1;
  if (family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  const bool bound = bind(fd, at, family == AF_INET6 ? sizeof six : sizeof four) == 0;
  close(fd);
  return bound;
}

unsigned zps_tools_port_find(unsigned first, unsigned last, unsigned seed) {
  const unsigned n = last - first + 1;
  for (unsigned i = 0; i < n; i++) {
    const unsigned port = first + (seed % n + i) % n;
    if (can_bind(AF_INET, port) && can_bind(AF_INET6, port)) return port;
  }
  return 0;
}

zps_err_t zps_tools_port_free(unsigned *port_p, struct zps_error *error) {
  unsigned low = LAST + 1, high = 60999, first = FIRST, last = LAST, seed = 0;
  FILE *const file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
  if (file) {
    if (fscanf(file, "%u %u", &low, &high) != 2) low = LAST + 1;
    fclose(file);
  }
  if (low > FIRST) {
    if (low <= LAST) last = low - 1;
  } else if (high < 65535) {
    first = high + 1;
    last = 65535;
  }
  if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed) seed = (unsigned)getpid();
  *port_p = zps_tools_port_find(first, last, seed);
  if (*port_p) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_IO,
                  "no TCP port of %u to %u is free for the ranks to meet at (MASTER_PORT): set MASTER_PORT to one that "
                  "is",
                  first, last);
}
