#include "common/control/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static zps_err_t bad(const char *text, const char *why, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_INVALID, "address '%.300s': %s, want HOST:PORT, [V6]:PORT or unix:/path", text, why);
}

static zps_err_t too_long(const char *text, const char *what, size_t len, size_t most, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_INVALID, "address '%.300s': the %s has %zu bytes: must have at most %zu", text, what,
                  len, most);
}

zps_err_t zps_address_parse(const char *text, struct zps_address *address_p, struct zps_error *error) {
  struct zps_address address = {0};
  if (strncmp(text, "unix:", 5) == 0) {
    const size_t len = strlen(text + 5);
    if (len == 0) return bad(text, "no path", error);
    if (len >= sizeof address.path)
      return too_long(text, "path of the Unix socket", len, sizeof address.path - 1, error);
    address.is_unix = true;
    memcpy(address.path, text + 5, len);
    *address_p = address;
    return ZPS_OK;
  }
  const char *colon = strrchr(text, ':');
  if (!colon) return bad(text, "no port", error);
  const char *host = text, *end = colon;
  if (*text == '[') {
    if (colon == text + 1 || colon[-1] != ']') return bad(text, "no ']' before the port", error);
    host++;
    end--;
  } else if (memchr(text, ':', (size_t)(colon - text))) {
    return bad(text, "more than one colon and no brackets", error);
  }
  const size_t host_len = (size_t)(end - host), port_len = strlen(colon + 1);
  if (host_len >= sizeof address.host) return too_long(text, "host name", host_len, sizeof address.host - 1, error);
  if (port_len == 0 || port_len != strspn(colon + 1, "0123456789") || port_len > 5 || atoi(colon + 1) > 65535)
    return bad(text, "port is no number up to 65535", error);
  memcpy(address.host, host, host_len);
  memcpy(address.port, colon + 1, port_len);
  *address_p = address;
  return ZPS_OK;
}

/* As /etc/hosts and RFC 6761 have them. */
static bool is_localhost(const char *host) {
  const size_t len = strlen(host), end_len = strlen(".localhost");
  return strcmp(host, "localhost") == 0 || strcmp(host, "localhost.localdomain") == 0 ||
         strcmp(host, "ip6-localhost") == 0 || strcmp(host, "ip6-loopback") == 0 ||
         (len > end_len && strcmp(host + len - end_len, ".localhost") == 0);
}

bool zps_address_is_loopback(const struct zps_address *address) {
  struct in_addr v4;
  struct in6_addr v6;
  if (address->is_unix || is_localhost(address->host)) return true;
  if (inet_pton(AF_INET, address->host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, address->host, &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

void zps_address_print(const struct sockaddr *addr, char *buf, size_t size) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (addr->sa_family == AF_INET) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)addr;
    inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
    snprintf(buf, size, "%s:%u", host, ntohs(v4->sin_port));
  } else if (addr->sa_family == AF_INET6) {
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)addr;
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
    snprintf(buf, size, "[%s]:%u", host, ntohs(v6->sin6_port));
  } else {
    snprintf(buf, size, "unix");
  }
}

zps_err_t zps_address_probe(const char *path, struct zps_error *error) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  const size_t len = strlen(path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || len >= sizeof addr.sun_path) {
    if (fd >= 0) close(fd);
    return zps_fail(error, ZPS_ERR_IO, "unix:%s: cannot make a socket", path);
  }
  memcpy(addr.sun_path, path, len + 1);
  const bool is_refused = connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0 && errno == ECONNREFUSED;
  close(fd);
  return is_refused ? zps_fail(error, ZPS_ERR_CLOSED, "unix:%s: nobody listens there", path) : ZPS_OK;
}
