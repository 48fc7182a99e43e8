#include "worker/tools/master.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/route.h"
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
