#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"

static zps_err_t malformed(struct zps_error *error, const char *text) {
  return zps_fail(error, ZPS_ERR_INVALID,
                  "'%.200s' is no address: must be HOST:PORT or [IPV6]:PORT, PORT from 0 to 65535", text);
}

zps_err_t zps_hostport_parse(const char *text, char *host, size_t host_size, uint16_t *port_p,
                             struct zps_error *error) {
  const char *begin = text, *end, *colon;
  if (*text == '[') {
    begin = text + 1;
    end = strchr(begin, ']');
    if (!end || end[1] != ':') return malformed(error, text);
    colon = end + 1;
  } else {
    end = colon = strchr(text, ':');
    if (!colon || strchr(colon + 1, ':')) return malformed(error, text); /* an IPv6 address needs its brackets */
  }
  const size_t len = (size_t)(end - begin), digits = strspn(colon + 1, "0123456789");
  if (len == 0 || digits == 0 || digits > 5 || colon[1 + digits]) return malformed(error, text);
  const unsigned long port = strtoul(colon + 1, NULL, 10);
  if (port > UINT16_MAX) return malformed(error, text);
  if (len >= host_size)
    return zps_fail(error, ZPS_ERR_INVALID, "the host in '%.200s' is %zu bytes long: at most %zu fit", text, len,
                    host_size - 1);
  memcpy(host, begin, len);
  host[len] = '\0';
  *port_p = (uint16_t)port;
  return ZPS_OK;
}
