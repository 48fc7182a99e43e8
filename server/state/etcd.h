/*
 * Calls of etcd over a transport, and the key by which one of several processes leads. A transport is used by one
 * thread at a time.
 */
#ifndef ZPS_SERVER_STATE_ETCD_H
#define ZPS_SERVER_STATE_ETCD_H

#include "server/state/etcd_wire.h"

struct zps_etcd_answer {
  unsigned status; /* HTTP's */
  char *body;      /* malloc'd, ends in NUL */
  size_t len;
};
struct zps_etcd_transport;
struct zps_etcd_transport_ops {
  /* Posts to one of etcd's members and waits; the next post after a failure goes to another member. ZPS_ERR_CONNECT: no
   * member answers, ZPS_ERR_TIMEOUT: not in time; what was asked for may have been done. */
  zps_err_t (*post)(struct zps_etcd_transport *transport, const char *path, const char *body, uint64_t timeout_ms,
                    struct zps_etcd_answer *answer_p, struct zps_error *error);
  void (*pause)(struct zps_etcd_transport *transport, unsigned ms);
  /* From any thread: the post under way, and all until this is taken back, fail soon. */
  void (*interrupt)(struct zps_etcd_transport *transport, bool is_on);
  void (*close)(struct zps_etcd_transport *transport);
};
/* First member of a transport's own struct. */
struct zps_etcd_transport {
  const struct zps_etcd_transport_ops *ops;
};

/* Over HTTP. `members`: URLs, "http://HOST:PORT,https://HOST:PORT", with commas in between; ca, cert, key: files in
 * PEM, or NULL. ZPS_ERR_UNSUPPORTED: this build has no libcurl. */
struct zps_etcd_access {
  const char *members, *ca, *cert, *key;
};
zps_err_t zps_etcd_http_check(const char *members, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_etcd_http_open(const struct zps_etcd_access *access, struct zps_etcd_transport **transport_p,
                             struct zps_error *error) ZPS_MUSTCHECK;

/* One call; `body` is consumed. ZPS_ERR_CONNECT, ZPS_ERR_TIMEOUT: as of post(), or etcd is without a leader. */
zps_err_t zps_etcd_call(struct zps_etcd_transport *transport, const char *path, zps_json *body, uint64_t timeout_ms,
                        zps_json **answer_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Repeats the call while it fails like that, until the time is over. For calls that may be carried out twice. */
zps_err_t zps_etcd_call_on(struct zps_etcd_transport *transport, const char *path, zps_json *body, uint64_t timeout_ms,
                           zps_json **answer_p, struct zps_error *error) ZPS_MUSTCHECK;

#define ZPS_ETCD_RANGE "/v3/kv/range"
#define ZPS_ETCD_TXN "/v3/kv/txn"
#define ZPS_ETCD_GRANT "/v3/lease/grant"
#define ZPS_ETCD_KEEPALIVE "/v3/lease/keepalive"
#define ZPS_ETCD_REVOKE "/v3/lease/revoke"
#define ZPS_ETCD_KEY_MAX 300u

#endif
