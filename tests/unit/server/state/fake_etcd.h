/* An etcd in memory, as the transport of calls: ranges, transactions, leases. Time passes when the test says so, and
 * calls fail where it says. */
#ifndef ZPS_TESTS_SERVER_STATE_FAKE_ETCD_H
#define ZPS_TESTS_SERVER_STATE_FAKE_ETCD_H

#include "server/state/etcd.h"

enum { FAKE_KEYS = 128, FAKE_LEASES = 16 };

struct fake_etcd {
  struct zps_etcd_transport transport;
  struct fake_kv {
    char key[300], *value;
    size_t len;
    uint64_t created, lease;
  } kvs[FAKE_KEYS]; /* ascending */
  unsigned n;
  struct fake_lease {
    uint64_t id, ttl_s, until_s; /* id 0: none */
  } leases[FAKE_LEASES];
  uint64_t revision, last_lease, now_s;
  unsigned n_posts, n_pauses, n_closed;
  /* From this call on (1 is the next one after fake_etcd_from_now()) nothing is answered; `does`: that one is carried
   * out. 0: never. */
  unsigned dies_at;
  bool does;
  unsigned lost_at; /* this call is carried out, and its answer lost */
  bool away;        /* no call arrives */
  unsigned refuses; /* HTTP status of every answer, 0: as it should be */
  char path[64];    /* of the last call */
};

void fake_etcd_init(struct fake_etcd *etcd);
void fake_etcd_fini(struct fake_etcd *etcd);
/* Counts calls from here on. */
void fake_etcd_from_now(struct fake_etcd *etcd);
/* Time passes: leases end, and their keys with them. */
void fake_etcd_pass(struct fake_etcd *etcd, uint64_t s);
struct fake_kv *fake_etcd_find(struct fake_etcd *etcd, const char *key); /* NULL: there is none */
void fake_etcd_put(struct fake_etcd *etcd, const char *key, const char *value, size_t len, uint64_t lease);
void fake_etcd_remove(struct fake_etcd *etcd, const char *key);

#endif
