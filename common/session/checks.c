#include "common/session/checks.h"

#include <stdlib.h>

#include "common/base/container.h"
#define ZPS_LOG_COMPONENT "checks"
#include "common/base/log.h"
#include "common/session/mac.h"

/* The sender in the key's derivation, which no rank or server is. */
#define OF_READS UINT32_MAX

struct zps_checks {
  struct zps_mac_key key;
  struct zps_engine *engine;
  struct zps_workpool *pool;
  struct zps_fair_flow *flow;
  unsigned n_users;
};

zps_err_t zps_checks_create(const struct zps_secret *secret, uint64_t job, struct zps_engine *engine,
                            struct zps_workpool *pool, struct zps_fair_flow *flow, struct zps_checks **checks_p,
                            struct zps_error *error) {
  struct zps_checks *const checks = calloc(1, sizeof *checks);
  if (!checks) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for checksums of reads");
  *checks = (struct zps_checks){.engine = engine, .pool = pool, .n_users = 1};
  const zps_err_t err = zps_mac_key_derive(secret, &(struct zps_mac_link){.job = job, .from = OF_READS}, &checks->key);
  if (err != ZPS_OK) {
    free(checks);
    return zps_fail(error, err, "no checksums of reads: libsodium does not work here");
  }
  checks->flow = zps_fair_flow_ref(flow);
  *checks_p = checks;
  return ZPS_OK;
}

struct zps_checks *zps_checks_ref(struct zps_checks *checks) {
  if (checks) checks->n_users++;
  return checks;
}

void zps_checks_unref(struct zps_checks *checks) {
  if (!checks || --checks->n_users > 0) return;
  zps_mac_key_fini(&checks->key);
  zps_fair_flow_unref(checks->flow);
  free(checks);
}

static uint64_t sum_in(const unsigned char *mac) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < ZPS_WIRE_MAC_BYTES; i++) sum |= (uint64_t)mac[i] << (8 * i);
  return sum ? sum : 1;
}

uint64_t zps_checks_sum(const struct zps_checks *checks, const void *data, size_t len) {
  unsigned char mac[ZPS_WIRE_MAC_BYTES];
  if (!checks) return 0;
  zps_mac_make(&checks->key, data, len, 0, mac);
  return sum_in(mac);
}

const unsigned char *zps_checks_key(const struct zps_checks *checks) {
  return checks->key.bytes;
}

uint64_t zps_checks_sum_of(const struct zps_checks *checks, const unsigned char *hash) {
  unsigned char mac[ZPS_WIRE_MAC_BYTES];
  zps_mac_of_hash(&checks->key, hash, 0, mac);
  return sum_in(mac);
}

/* ------------------------------------------------------------ reads */

static void compare(struct zps_checked_read *read) {
  const bool is_good = zps_checks_sum(read->checks, read->bulk.local, (size_t)read->bulk.len) == read->sum;
  read->code = is_good ? ZPS_OK : ZPS_ERR_FABRIC;
}

static void answer(struct zps_checked_read *read) {
  struct zps_checks *const checks = read->checks; /* the read may be gone when it is called back */
  if (read->was_bad && read->code == ZPS_OK) zps_engine_note_corrupt(checks->engine);
  if (read->code == ZPS_ERR_FABRIC) {
    read->was_bad = true;
    zps_log_warn_limited("a read of %llu bytes brought others than the announced ones",
                         (unsigned long long)read->bulk.len);
  }
  zps_bulk_checked(&read->bulk, read->code);
  zps_checks_unref(checks);
}

static void compared(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  answer(zps_container_of(command, struct zps_checked_read, command));
}

static void run(struct zps_work *work) {
  struct zps_checked_read *const read = zps_container_of(work, struct zps_checked_read, work);
  compare(read);
  zps_engine_post(read->checks->engine, &read->command);
}

/* All of it has come. The job may be over before this has ended. */
static void check(struct zps_bulk_read *bulk) {
  struct zps_checked_read *const read = zps_container_of(bulk, struct zps_checked_read, bulk);
  zps_checks_ref(read->checks);
  if (read->hash) {
    read->hash(read);
    return;
  }
  if (bulk->len > ZPS_CHECKS_HERE_BYTES) {
    read->work.run = run;
    read->command.run = compared;
    zps_workpool_submit_for(read->checks->pool, read->checks->flow, &read->work, bulk->len);
    return;
  }
  compare(read);
  answer(read);
}

void zps_checks_hashed(struct zps_checked_read *read, const unsigned char *hash) {
  const bool is_good = !hash || zps_checks_sum_of(read->checks, hash) == read->sum;
  read->code = is_good ? ZPS_OK : ZPS_ERR_FABRIC;
  answer(read);
}

void zps_checks_read(struct zps_checks *checks, struct zps_bulk_peer *peer, struct zps_checked_read *read,
                     uint64_t sum) {
  zps_checks_read_by(checks, peer, read, sum, NULL);
}

void zps_checks_read_by(struct zps_checks *checks, struct zps_bulk_peer *peer, struct zps_checked_read *read,
                        uint64_t sum, void (*hash)(struct zps_checked_read *read)) {
  read->checks = checks;
  read->hash = hash;
  read->sum = sum;
  read->code = ZPS_OK;
  read->was_bad = false;
  read->bulk.check = checks && sum ? check : NULL;
  zps_bulk_start(peer, &read->bulk);
}

const char *zps_checks_why(const struct zps_checked_read *read, zps_err_t code) {
  return code == ZPS_ERR_FABRIC && read->code == code ? "what came, twice, is not what was announced"
                                                      : zps_err_str(code);
}
