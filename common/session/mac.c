#include "common/session/mac.h"

#include <openssl/evp.h>
#include <sodium.h>
#include <string.h>

#include "proto/wire.h"

enum {
  PRF_AT = crypto_onetimeauth_KEYBYTES, /* in the key's bytes */
  /* Shorter ones are hashed before OpenSSL has copied its state. */
  LONG_BYTES = 512,
};
_Static_assert(crypto_shorthash_BYTES == ZPS_WIRE_MAC_BYTES, "a MAC is what SipHash gives");
_Static_assert(ZPS_MAC_HASH_BYTES == crypto_onetimeauth_BYTES, "a hash is what Poly1305 gives");
_Static_assert(ZPS_MAC_KEY_BYTES == PRF_AT + crypto_shorthash_KEYBYTES, "a key of each");
_Static_assert(sizeof(struct zps_secret) >= crypto_generichash_KEYBYTES_MIN, "a secret is a key of BLAKE2b");

static void put(uint8_t *at, uint64_t value, unsigned n_bytes) {
  for (unsigned i = 0; i < n_bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

/* NULL: this OpenSSL has no Poly1305, or there is no memory. libsodium's gives the same bits. */
static EVP_MAC_CTX *hash_create(const uint8_t *key) {
  EVP_MAC *const poly1305 = EVP_MAC_fetch(NULL, "POLY1305", NULL);
  EVP_MAC_CTX *const hash = poly1305 ? EVP_MAC_CTX_new(poly1305) : NULL;
  EVP_MAC_free(poly1305);
  if (hash && EVP_MAC_init(hash, key, crypto_onetimeauth_KEYBYTES, NULL)) return hash;
  EVP_MAC_CTX_free(hash);
  return NULL;
}

zps_err_t zps_mac_key_derive(const struct zps_secret *secret, const struct zps_mac_link *link,
                             struct zps_mac_key *key_p) {
  uint8_t numbers[8 + 4 + 4 + 4];
  crypto_generichash_state state;
  put(numbers, link->job, 8);
  put(numbers + 8, link->from, 4);
  put(numbers + 12, link->to, 4);
  put(numbers + 16, link->since, 4);
  *key_p = (struct zps_mac_key){.hash = NULL};
  if (sodium_init() < 0) return ZPS_ERR_UNSUPPORTED;
  const bool made = crypto_generichash_init(&state, secret->bytes, sizeof secret->bytes, sizeof key_p->bytes) == 0 &&
                    crypto_generichash_update(&state, numbers, sizeof numbers) == 0 &&
                    (link->server_len == 0 || crypto_generichash_update(&state, link->server, link->server_len) == 0) &&
                    crypto_generichash_final(&state, key_p->bytes, sizeof key_p->bytes) == 0;
  if (!made) return ZPS_ERR_UNSUPPORTED;
  key_p->hash = hash_create(key_p->bytes);
  return ZPS_OK;
}

void zps_mac_key_fini(struct zps_mac_key *key) {
  EVP_MAC_CTX_free(key->hash);
  key->hash = NULL;
}

static bool hash_by_openssl(const struct zps_mac_key *key, const void *message, size_t len, uint8_t *hash) {
  size_t n = 0;
  EVP_MAC_CTX *const state = EVP_MAC_CTX_dup(key->hash);
  const bool made = state && EVP_MAC_update(state, message, len) && EVP_MAC_final(state, hash, &n, ZPS_MAC_HASH_BYTES);
  EVP_MAC_CTX_free(state);
  return made && n == ZPS_MAC_HASH_BYTES;
}

void zps_mac_of_hash(const struct zps_mac_key *key, const uint8_t *hash, uint64_t seq, void *mac) {
  uint8_t numbered[ZPS_MAC_HASH_BYTES + 8];
  memcpy(numbered, hash, ZPS_MAC_HASH_BYTES);
  put(numbered + ZPS_MAC_HASH_BYTES, seq, 8);
  crypto_shorthash(mac, numbered, sizeof numbered, key->bytes + PRF_AT);
}

void zps_mac_make(const struct zps_mac_key *key, const void *message, size_t len, uint64_t seq, void *mac) {
  uint8_t hash[ZPS_MAC_HASH_BYTES];
  if (len < LONG_BYTES || !key->hash || !hash_by_openssl(key, message, len, hash))
    crypto_onetimeauth(hash, message, len, key->bytes);
  zps_mac_of_hash(key, hash, seq, mac);
}

bool zps_mac_is_right(const struct zps_mac_key *key, const void *message, size_t len, uint64_t seq, const void *mac) {
  uint8_t right[ZPS_WIRE_MAC_BYTES];
  zps_mac_make(key, message, len, seq, right);
  return sodium_memcmp(right, mac, sizeof right) == 0;
}
