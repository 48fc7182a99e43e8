/*
 * Several fabric addresses in one: those of a process's rails, in their order. One address alone is no bundle, but
 * itself.
 *
 *   ff 5a 52, the number of addresses; of each: its length in a byte, and its bytes
 */
#ifndef ZPS_BASE_BUNDLE_H
#define ZPS_BASE_BUNDLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ZPS_BUNDLE_HEAD = 4, ZPS_BUNDLE_MAX = 4 };

/* The place of part i; NULL: these bytes are no bundle of more than i addresses. */
static inline const uint8_t *zps_bundle_at(const uint8_t *bytes, size_t len, unsigned i, size_t *len_p) {
  const uint8_t *found = NULL;
  if (len < ZPS_BUNDLE_HEAD || memcmp(bytes, "\xff\x5a\x52", 3) != 0 || bytes[3] < 2 || bytes[3] > ZPS_BUNDLE_MAX)
    return NULL;
  size_t at = ZPS_BUNDLE_HEAD;
  for (unsigned k = 0; k < bytes[3]; k++) {
    if (at == len || bytes[at] == 0 || bytes[at] > len - at - 1) return NULL;
    if (k == i) *len_p = bytes[at];
    if (k == i) found = bytes + at + 1;
    at += 1u + bytes[at];
  }
  return at == len ? found : NULL;
}

/* Address i of `bytes`, which are a bundle or one address; NULL: there are fewer. */
static inline const uint8_t *zps_bundle_get(const uint8_t *bytes, size_t len, unsigned i, size_t *len_p) {
  size_t first_len;
  if (zps_bundle_at(bytes, len, 0, &first_len)) return zps_bundle_at(bytes, len, i, len_p);
  *len_p = len;
  return i == 0 ? bytes : NULL;
}

static inline unsigned zps_bundle_count(const uint8_t *bytes, size_t len) {
  size_t part;
  return zps_bundle_at(bytes, len, 0, &part) ? bytes[3] : 1;
}

/* Adds an address at the end of a bundle of *len_p bytes; 0: of none so far. Returns 0 where there is no room. */
static inline int zps_bundle_add(uint8_t *bundle, size_t *len_p, size_t size, const uint8_t *bytes, size_t len) {
  const size_t at = *len_p ? *len_p : ZPS_BUNDLE_HEAD;
  if (len == 0 || len > 255 || size < at || size - at < 1 + len) return 0;
  if (*len_p == 0) memcpy(bundle, "\xff\x5a\x52\x00", ZPS_BUNDLE_HEAD);
  bundle[3]++;
  bundle[at] = (uint8_t)len;
  memcpy(bundle + at + 1, bytes, len);
  *len_p = at + 1 + len;
  return 1;
}

#endif
