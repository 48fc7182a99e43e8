#include "common/session/mac.h"

#include <sodium.h>

#include "proto/wire.h"

enum { HASH_BYTES = crypto_shorthash_BYTES, KEY_BYTES = crypto_shorthash_KEYBYTES };
_Static_assert(HASH_BYTES == ZPS_WIRE_MAC_BYTES, "a MAC is what SipHash gives");
_Static_assert(sizeof(struct zps_mac_key) == 2 * KEY_BYTES, "two keys of SipHash");
_Static_assert(sizeof(struct zps_secret) >= crypto_generichash_KEYBYTES_MIN, "a secret is a key of BLAKE2b");

static void put(uint8_t *at, uint64_t value, unsigned n_bytes) {
  for (unsigned i = 0; i < n_bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

zps_err_t zps_mac_key_derive(const struct zps_secret *secret, const struct zps_mac_link *link,
                             struct zps_mac_key *key_p) {
  uint8_t numbers[8 + 4 + 4 + 4];
  crypto_generichash_state state;
  put(numbers, link->job, 8);
  put(numbers + 8, link->from, 4);
  put(numbers + 12, link->to, 4);
  put(numbers + 16, link->since, 4);
  if (sodium_init() < 0) return ZPS_ERR_UNSUPPORTED;
  const bool made = crypto_generichash_init(&state, secret->bytes, sizeof secret->bytes, sizeof key_p->bytes) == 0 &&
                    crypto_generichash_update(&state, numbers, sizeof numbers) == 0 &&
                    (link->server_len == 0 || crypto_generichash_update(&state, link->server, link->server_len) == 0) &&
                    crypto_generichash_final(&state, key_p->bytes, sizeof key_p->bytes) == 0;
  return made ? ZPS_OK : ZPS_ERR_UNSUPPORTED;
}

/* The number is hashed apart, with another key, so that the message need not be copied to stand beside it. */
void zps_mac_make(const struct zps_mac_key *key, const void *message, size_t len, uint64_t seq, void *mac) {
  uint8_t numbered[HASH_BYTES + 8];
  crypto_shorthash(numbered, message, len, key->bytes);
  put(numbered + HASH_BYTES, seq, 8);
  crypto_shorthash(mac, numbered, sizeof numbered, key->bytes + KEY_BYTES);
}

bool zps_mac_is_right(const struct zps_mac_key *key, const void *message, size_t len, uint64_t seq, const void *mac) {
  uint8_t right[HASH_BYTES];
  zps_mac_make(key, message, len, seq, right);
  return sodium_memcmp(right, mac, sizeof right) == 0;
}
