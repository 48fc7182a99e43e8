#include "common/base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the printable character at `c`, or 0. */
static size_t character(const uint8_t *c, size_t len) {
  if (c[0] < 0x80) return c[0] >= 0x20 && c[0] != 0x7f;
  const size_t n = c[0] >= 0xf0 ? 4 : c[0] >= 0xe0 ? 3 : 2;
  if (c[0] < 0xc2 || c[0] > 0xf4 || n > len) return 0;
  uint32_t value = c[0] & (0x7fu >> n);
  for (size_t i = 1; i < n; i++) {
    if ((c[i] & 0xc0) != 0x80) return 0;
    value = value << 6 | (c[i] & 0x3fu);
  }
  static const uint32_t smallest[] = {0, 0, 0xa0, 0x800, 0x10000}; /* below 0xa0: control characters */
  if (value < smallest[n] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
  return n;
}

size_t zps_text_printable(const char *text, size_t len) {
  const uint8_t *c = (const uint8_t *)text;
  size_t at = 0;
  while (at < len) {
    const size_t n = character(c + at, len - at);
    if (n == 0) break;
    at += n;
  }
  return at;
}

void zps_text_sanitize(char *text, size_t len) {
  for (size_t at = zps_text_printable(text, len); at < len; at += zps_text_printable(text + at, len - at))
    text[at++] = '?';
}

zps_err_t zps_text_check_name(const char *what, const char *name, size_t max_bytes, struct zps_error *error) {
  const size_t len = strlen(name), printable = zps_text_printable(name, len);
  if (len > 0 && len <= max_bytes && printable == len) return ZPS_OK;
  if (printable == len)
    return zps_fail(error, ZPS_ERR_INVALID, "%s name \"%.140s%s\" has %zu bytes; it must have 1 to %zu", what, name,
                    len > 140 ? "..." : "", len, max_bytes);
  return zps_fail(
      error, ZPS_ERR_INVALID,
      "%s name \"%.140s%s\" has %zu bytes, and byte %zu is 0x%02x; it must have 1 to %zu, of printable UTF-8", what,
      name, len > 140 ? "..." : "", len, printable, (unsigned char)name[printable], max_bytes);
}

void zps_text_add(char *text, size_t size, const char *fmt, ...) {
  const size_t len = strlen(text);
  va_list args;
  va_start(args, fmt);
  vsnprintf(text + len, size - len, fmt, args);
  va_end(args);
}

bool zps_text_word(const char **list, char *word, size_t size) {
  while (**list == ',' || **list == ' ') (*list)++;
  const char *const start = *list;
  size_t n = strcspn(start, ",");
  *list += n;
  if (n == 0) return false;
  while (start[n - 1] == ' ') n--;
  snprintf(word, size, "%.*s", (int)n, start);
  return true;
}
