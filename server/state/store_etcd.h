/*
 * The journal in etcd, as a backend of the store (store.h): its bytes lie in keys that are written once,
 *
 *   PREFIX/generation                  the number of the journal that holds, in 8 hexadecimal digits
 *   PREFIX/journal/GENERATION/NUMBER   its bytes, piece by piece from number 1 on, each piece a record (journal.h)
 *   PREFIX/leader                      who leads (lead.h)
 *
 * Every write is a transaction on the condition that PREFIX/leader is the key by which this process leads: one that
 * leads no longer writes nothing, whatever it believes itself. A journal is replaced by one of the next generation:
 * written beside, then the one holds and no longer the other, in one transaction, then the old one is deleted. What a
 * process that died meanwhile left beside is deleted by the next one.
 */
#ifndef ZPS_SERVER_STATE_STORE_ETCD_H
#define ZPS_SERVER_STATE_STORE_ETCD_H

#include "server/state/etcd.h"
#include "server/state/store.h"

struct zps_store_etcd_config {
  struct zps_etcd_transport *transport; /* the backend's, from when it is open */
  const char *prefix;                   /* copied */
  uint64_t revision;                    /* the revision of PREFIX/leader */
  uint64_t timeout_ms;                  /* for each transaction: with what depends on it, everybody waits for so long */
};
/* Writes that fail: ZPS_ERR_STALE: another process leads, or nobody; ZPS_ERR_CONNECT, ZPS_ERR_TIMEOUT: etcd did not
 * answer in time. Reads: ZPS_ERR_IO names the key that is damaged, or missing. */
zps_err_t zps_store_etcd_open(const struct zps_store_etcd_config *config, struct zps_store_backend **backend_p,
                              struct zps_error *error) ZPS_MUSTCHECK;

#endif
