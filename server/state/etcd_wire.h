/*
 * What is said to etcd's gateway (version 3, JSON over HTTP), and what it answers: no socket in sight. Keys and values
 * travel in base64, 64-bit numbers as decimal strings; members that are 0 or empty are left out.
 */
#ifndef ZPS_SERVER_STATE_ETCD_WIRE_H
#define ZPS_SERVER_STATE_ETCD_WIRE_H

#include "common/control/json.h"

struct zps_etcd_kv {
  char *key, *value; /* ends in NUL, which len does not count */
  size_t len;
  uint64_t created, lease; /* revision that made the key; lease that it ends with, 0: none */
};
struct zps_etcd_range {
  struct zps_etcd_kv *kvs;
  size_t n;
  bool more; /* there are others behind the limit */
};
void zps_etcd_range_fini(struct zps_etcd_range *range);

/* ---- Requests: builders like those of json.h, NULL when memory is short ---- */

/* The first `limit` of a range, in the order of keys. */
zps_json *zps_etcd_range_write(const char *key, const char *end, uint64_t limit, bool keys_only);
/* Conditions of a transaction: the key was made by this revision, 0: it is not there. */
zps_json *zps_etcd_created_is(const char *key, uint64_t revision);
/* Operations of a transaction. */
zps_json *zps_etcd_put(const char *key, const char *value, size_t len, uint64_t lease);
zps_json *zps_etcd_get(const char *key);
zps_json *zps_etcd_delete(const char *key, const char *end);
/* Arrays of them are consumed; `failure` may be an empty one. */
zps_json *zps_etcd_txn_write(zps_json *compare, zps_json *success, zps_json *failure);
zps_json *zps_etcd_grant_write(uint64_t ttl_s);
zps_json *zps_etcd_lease_write(uint64_t lease); /* keepalive, revoke */

/* ---- Answers: ZPS_ERR_PROTOCOL when they are none; outputs are then untouched ---- */

zps_err_t zps_etcd_range_read(const zps_json *answer, struct zps_etcd_range *range_p,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* Revision, and what the reads of the branch that was taken have found, one after another, at most `n_max`. */
struct zps_etcd_outcome {
  bool succeeded;
  uint64_t revision;
};
zps_err_t zps_etcd_txn_read(const zps_json *answer, struct zps_etcd_outcome *outcome_p, struct zps_etcd_range *found,
                            unsigned n_max, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_etcd_grant_read(const zps_json *answer, uint64_t *lease_p, struct zps_error *error) ZPS_MUSTCHECK;
/* *ttl_s_p 0: the lease is over. */
zps_err_t zps_etcd_keepalive_read(const zps_json *answer, uint64_t *ttl_s_p, struct zps_error *error) ZPS_MUSTCHECK;
/* A refusal: ZPS_ERR_CONNECT where another try may succeed, ZPS_ERR_IO where not. `body` need be no JSON. */
zps_err_t zps_etcd_refusal_read(unsigned status, const char *body, size_t len, struct zps_error *error) ZPS_MUSTCHECK;

/* Base64 with padding. malloc'd; NULL when memory is short, or, decoding, when the text is none (*len_p is then
 * SIZE_MAX). */
char *zps_etcd_base64(const char *data, size_t len);
char *zps_etcd_unbase64(const char *text, size_t *len_p);

#endif
