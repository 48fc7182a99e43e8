/* Base64 (RFC 4648), as keys and values travel. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/state/etcd_wire.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *zps_etcd_base64(const char *data, size_t len) {
  char *const text = len < SIZE_MAX / 2 ? malloc((len + 2) / 3 * 4 + 1) : NULL;
  if (!text) return NULL;
  char *to = text;
  const unsigned char *const from = (const unsigned char *)data;
  for (size_t i = 0; i < len; i += 3) {
    const size_t n = len - i < 3 ? len - i : 3;
    const uint32_t word =
        (uint32_t)from[i] << 16 | (n > 1 ? (uint32_t)from[i + 1] << 8 : 0) | (n > 2 ? from[i + 2] : 0);
    *to++ = digits[word >> 18];
    *to++ = digits[word >> 12 & 63];
    *to++ = n > 1 ? digits[word >> 6 & 63] : '=';
    *to++ = n > 2 ? digits[word & 63] : '=';
  }
  *to = '\0';
  return text;
}

static int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static bool decode(const char *text, size_t n_digits, char *to) {
  uint32_t word = 0;
  unsigned bits = 0;
  for (size_t i = 0; i < n_digits; i++) {
    const int digit = digit_of(text[i]);
    if (digit < 0) return false;
    word = word << 6 | (uint32_t)digit;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    *to++ = (char)(word >> bits & 255);
  }
  return (word & ((1u << bits) - 1)) == 0; /* bits that are left over say nothing */
}

char *zps_etcd_unbase64(const char *text, size_t *len_p) {
  const size_t size = strlen(text);
  size_t n_digits = size;
  while (n_digits > 0 && size - n_digits < 2 && text[n_digits - 1] == '=') n_digits--;
  *len_p = SIZE_MAX;
  if (size % 4 != 0) return NULL;
  const size_t len = n_digits / 4 * 3 + (n_digits % 4 ? n_digits % 4 - 1 : 0);
  char *const data = malloc(len + 1);
  if (!data) {
    *len_p = 0;
    return NULL;
  }
  if (!decode(text, n_digits, data)) {
    free(data);
    return NULL;
  }
  data[len] = '\0';
  *len_p = len;
  return data;
}
