#include "common/control/json_bounds.h"

#include <string.h>

/* The position after the string that begins at `at`. */
static size_t end_of_string(const char *text, size_t len, size_t at) {
  for (at++; at < len && text[at] != '"'; at++)
    if (text[at] == '\\') at++;
  return at;
}

zps_err_t zps_json_check_bounds(const char *text, size_t len, struct zps_error *error) {
  size_t depth = 0, n_values = 1;
  for (size_t at = 0; at < len; at++) {
    switch (text[at]) {
      case '"':
        at = end_of_string(text, len, at);
        break;
      case '[':
      case '{':
        n_values++;
        if (++depth <= ZPS_JSON_DEPTH_MAX) break;
        return zps_fail(error, ZPS_ERR_PROTOCOL,
                        "JSON at byte %zu of %zu: more than %u arrays and objects inside each other", at, len,
                        ZPS_JSON_DEPTH_MAX);
      case ']':
      case '}':
        if (depth > 0) depth--;
        break;
      case ',':
        n_values++;
        break;
      default:
        break;
    }
    if (n_values > ZPS_JSON_VALUES_MAX)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "JSON at byte %zu of %zu: more than %u values", at, len,
                      ZPS_JSON_VALUES_MAX);
  }
  return ZPS_OK;
}
