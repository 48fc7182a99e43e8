/*
 * How one end of a link knows that a message is of the other: the MAC in its last eight bytes.
 *
 * The coordinator gives each job a secret, which goes to its servers and ranks alone. From it each direction of each
 * link has a key of its own. So a message is worth nothing at another link, in another job, or sent back. The epoch
 * with which a server took its place is part of the key: nothing of an earlier server counts for a later one, even at
 * the same address.
 *
 * The MAC is SipHash-2-4 over a hash of the message and the 64-bit sequence number of its first frame. A header has 8
 * or 32 bits of that number. A message that has come before is none that is to come.
 *
 * The hash is Poly1305, of all bytes. Nobody sees it, so one key does for all messages. Long messages have OpenSSL's,
 * which is faster. Short ones have libsodium's, which begins sooner. Both give the same bits.
 *
 * It says who sent a message, within the job: all members know the secret. It hides nothing.
 */
#ifndef ZPS_SESSION_MAC_H
#define ZPS_SESSION_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/secret.h"

enum { ZPS_MAC_KEY_BYTES = 48, ZPS_MAC_HASH_BYTES = 16 };

/* Any thread may use it. */
struct zps_mac_key {
  uint8_t bytes[ZPS_MAC_KEY_BYTES]; /* 32 of Poly1305, then 16 of SipHash */
  struct evp_mac_ctx_st *hash;      /* OpenSSL's, with its key; NULL: there is none */
};

/* What a key is of. */
struct zps_mac_link {
  uint64_t job;
  uint32_t from, to;  /* ranks, or numbers of servers | ZPS_WIRE_SRC_SERVER */
  const void *server; /* fabric address of the one that is a server; of no bytes between ranks */
  size_t server_len;
  uint32_t since; /* the epoch with which it took its place in the job; 0: it was there at first, or there is none */
};

/* ZPS_ERR_UNSUPPORTED: libsodium does not work here. Release the key with zps_mac_key_fini(). */
zps_err_t zps_mac_key_derive(const struct zps_secret *secret, const struct zps_mac_link *link,
                             struct zps_mac_key *key_p) ZPS_MUSTCHECK;
void zps_mac_key_fini(struct zps_mac_key *key);
/* Writes ZPS_WIRE_MAC_BYTES to `mac`, which may lie right after the message. */
void zps_mac_make(const struct zps_mac_key *key, const void *message, size_t len, uint64_t seq, void *mac);
/* As zps_mac_make(), of a message of which something else made the Poly1305. */
void zps_mac_of_hash(const struct zps_mac_key *key, const uint8_t *hash, uint64_t seq, void *mac);
/* In a time that does not tell how much of it is right. */
bool zps_mac_is_right(const struct zps_mac_key *key, const void *message, size_t len, uint64_t seq, const void *mac);

#endif
