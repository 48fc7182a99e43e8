#include "worker/tools/master.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/control/address.h"

static bool is_of_this_host(const struct addrinfo *number) {
  const int fd = socket(number->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool is_bound = fd >= 0 && bind(fd, number->ai_addr, number->ai_addrlen) == 0;
  if (fd >= 0) close(fd);
  return is_bound;
}

zps_err_t zps_master_check(const char *master, struct zps_error *error) {
  struct zps_address address = {.is_unix = false};
  snprintf(address.host, sizeof address.host, "%s", master);
  if (!zps_address_is_loopback(&address)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "MASTER_ADDR=%.100s is a loopback address, which leads ranks on other hosts to themselves: set it to "
                  "the name or address by which they reach the host of rank 0",
                  master);
}

zps_err_t zps_master_listen(const char *master, unsigned port, bool elsewhere, char *buf, size_t size,
                            struct zps_error *error) {
  const struct addrinfo number = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
  const struct addrinfo name = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  struct addrinfo *list;
  const zps_err_t err = zps_master_check(master, error);
  if (err && elsewhere) return err;
  if (getaddrinfo(master, "0", &number, &list) == 0) {
    const bool is_here = is_of_this_host(list);
    freeaddrinfo(list);
    if (is_here) {
      snprintf(buf, size, strchr(master, ':') ? "[%s]:%u" : "%s:%u", master, port);
      return ZPS_OK;
    }
  }
  if (err) { /* "localhost" */
    snprintf(buf, size, "%s:%u", master, port);
    return ZPS_OK;
  }
  const int status = getaddrinfo(master, "0", &name, &list);
  if (status != 0)
    return zps_fail(error, ZPS_ERR_INVALID, "MASTER_ADDR=%.200s cannot be looked up here: %s", master,
                    gai_strerror(status));
  bool has_v4 = false;
  for (const struct addrinfo *info = list; info; info = info->ai_next) has_v4 |= info->ai_family == AF_INET;
  freeaddrinfo(list);
  snprintf(buf, size, has_v4 ? "0.0.0.0:%u" : "[::]:%u", port);
  return ZPS_OK;
}

/* ------------------------------------------------------------ a free port */

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
