#include "common/control/addresses.h"

#include <stdio.h>
#include <string.h>

#include "common/control/address.h"

#define BLANKS " \t"

/* The item from `text` on, of `len` bytes, without the blanks around it. */
static zps_err_t add(struct zps_addresses *addresses, const char *text, size_t len, struct zps_error *error) {
  const unsigned number = addresses->n + 1;
  char *const to = addresses->text[addresses->n];
  struct zps_address parsed;
  struct zps_error why;
  const size_t before = strspn(text, BLANKS) < len ? strspn(text, BLANKS) : len;
  text += before;
  len -= before;
  while (len > 0 && strchr(BLANKS, text[len - 1])) len--;
  if (len == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "address %u of the list is empty, want HOST:PORT, [V6]:PORT or unix:/path",
                    number);
  if (len >= ZPS_ADDRESS_TEXT_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "address %u of the list has %zu bytes: must have at most %u", number, len,
                    ZPS_ADDRESS_TEXT_MAX - 1);
  memcpy(to, text, len);
  to[len] = '\0';
  if (zps_address_parse(to, &parsed, &why) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_INVALID, "address %u of the list: %s", number, why.text);
  for (unsigned i = 0; i < addresses->n; i++)
    if (strcmp(addresses->text[i], to) == 0)
      return zps_fail(error, ZPS_ERR_INVALID, "address %u of the list is '%s', as is address %u: must be another one",
                      number, to, i + 1);
  addresses->n++;
  return ZPS_OK;
}

zps_err_t zps_addresses_parse(const char *text, struct zps_addresses *addresses_p, struct zps_error *error) {
  struct zps_addresses addresses = {.n = 0};
  struct zps_address parsed;
  if (!strchr(text, ',') && zps_address_parse(text, &parsed, error) != ZPS_OK) return ZPS_ERR_INVALID;
  for (const char *at = text;; at++) {
    const size_t len = strcspn(at, ",");
    if (addresses.n == ZPS_ADDRESSES_MAX)
      return zps_fail(error, ZPS_ERR_INVALID, "the list has more than %u addresses", ZPS_ADDRESSES_MAX);
    const zps_err_t err = add(&addresses, at, len, error);
    if (err) return err;
    at += len;
    if (!*at) break;
  }
  *addresses_p = addresses;
  return ZPS_OK;
}

const char *zps_addresses_now(const struct zps_addresses *addresses) {
  return addresses->text[addresses->now];
}

bool zps_addresses_are_loopback(const struct zps_addresses *addresses) {
  struct zps_address address;
  for (unsigned i = 0; i < addresses->n; i++)
    if (zps_address_parse(addresses->text[i], &address, NULL) != ZPS_OK || !zps_address_is_loopback(&address))
      return false;
  return true;
}

unsigned zps_addresses_left(const struct zps_addresses *addresses) {
  return addresses->n - (unsigned)__builtin_popcount(addresses->tried);
}

void zps_addresses_answered(struct zps_addresses *addresses) {
  addresses->last = addresses->now;
  addresses->tried = 0;
}

static bool is_new(const struct zps_addresses *addresses, unsigned i) {
  return !(addresses->tried >> i & 1);
}

bool zps_addresses_next(struct zps_addresses *addresses, const char *leader) {
  addresses->tried |= 1u << addresses->now;
  for (unsigned i = 0; i < addresses->n && leader; i++) {
    if (!is_new(addresses, i) || strcmp(addresses->text[i], leader) != 0) continue;
    addresses->now = i;
    return true;
  }
  for (unsigned k = 1; k < addresses->n; k++) {
    const unsigned i = (addresses->now + k) % addresses->n;
    if (!is_new(addresses, i)) continue;
    addresses->now = i;
    return true;
  }
  addresses->now = addresses->last;
  addresses->tried = 0;
  return false;
}

void zps_addresses_host(const char *text, char *host, size_t size) {
  struct zps_addresses addresses;
  struct zps_address address;
  host[0] = '\0';
  if (!text || zps_addresses_parse(text, &addresses, NULL) != ZPS_OK) return;
  for (unsigned i = 0; i < addresses.n && !host[0]; i++)
    if (zps_address_parse(addresses.text[i], &address, NULL) == ZPS_OK && !address.is_unix)
      snprintf(host, size, "%s", address.host);
}
