/*
 * Checksums of what is read: the frame that announces memory carries a keyed checksum of its bytes, and the end that
 * reads them compares. So a byte that was changed on the way is noticed, and so is memory that is another sum's by the
 * time that it is read.
 *
 * A checksum is a MAC (mac.h) under a key of the job, from the secret that its members alone know. One key does for all
 * of a job's reads, and a sum that all ranks read has one checksum. A GPU makes the hash of its own memory
 * (worker/served/device_checks.c).
 *
 * Wrong bytes are read once more. If they are right then, the read counts as corrupt; else it fails with
 * ZPS_ERR_FABRIC. So the count does not tell of a lost server: ranks that gave it up fill their arrays anew, under its
 * reads.
 */
#ifndef ZPS_SESSION_CHECKS_H
#define ZPS_SESSION_CHECKS_H

#include "common/base/secret.h"
#include "common/base/workpool.h"
#include "common/net/bulk.h"
#include "common/session/engine.h"

#define ZPS_CHECKS_HERE_BYTES (64u << 10) /* at most so many are checked before a thread of the pool has woken up */

struct zps_checks; /* of a job, at one end */

/* `engine` and `pool` are borrowed until the last reference is gone; the pool ends before the engine does.
 * The pool works for `flow`, and a reference to it is kept; NULL: for nobody.
 * ZPS_ERR_UNSUPPORTED: libsodium does not work here. */
zps_err_t zps_checks_create(const struct zps_secret *secret, uint64_t job, struct zps_engine *engine,
                            struct zps_workpool *pool, struct zps_fair_flow *flow, struct zps_checks **checks_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* One user more, or less; the last one's frees. NULL is allowed: reads are not checked. Engine thread, but for the
 * last. */
struct zps_checks *zps_checks_ref(struct zps_checks *checks);
void zps_checks_unref(struct zps_checks *checks);
/* Of memory that is to be announced; never 0, except where `checks` is NULL. Any thread. */
uint64_t zps_checks_sum(const struct zps_checks *checks, const void *data, size_t len);
/* The two halves of zps_checks_sum(): the key of Poly1305, for something else that computes it, valid as long as
 * `checks`; then the checksum that this hash makes. Any thread. */
const unsigned char *zps_checks_key(const struct zps_checks *checks);
uint64_t zps_checks_sum_of(const struct zps_checks *checks, const unsigned char *hash);

struct zps_checked_read {
  struct zps_bulk_read bulk; /* filled in as for zps_bulk_start(), and begun by zps_checks_read() alone */
  struct zps_checks *checks; /* from here on private */
  void (*hash)(struct zps_checked_read *read);
  uint64_t sum;
  struct zps_work work;
  struct zps_command command;
  zps_err_t code;
  bool was_bad; /* The first attempt brought other bytes. */
};

/* Queues a read of what was announced with the checksum `sum`; done() says ZPS_OK when its bytes are those. 0, or
 * `checks` NULL: whatever comes is good. Engine thread. */
void zps_checks_read(struct zps_checks *checks, struct zps_bulk_peer *peer, struct zps_checked_read *read,
                     uint64_t sum);
/* Reads into memory that no processor of the host sees. hash() is called when all bytes are here, and again after a
 * second read, where the checksum was wrong. Answer each call with zps_checks_hashed(), at once or later: the bytes'
 * Poly1305, or NULL when nobody wants the bytes any more and they need no check. Engine thread. */
void zps_checks_read_by(struct zps_checks *checks, struct zps_bulk_peer *peer, struct zps_checked_read *read,
                        uint64_t sum, void (*hash)(struct zps_checked_read *read));
void zps_checks_hashed(struct zps_checked_read *read, const unsigned char *hash);
/* Why a read ended so, in words. */
const char *zps_checks_why(const struct zps_checked_read *read, zps_err_t code);

#endif
