/*
 * The coordinator: membership (members.h) on the control plane. Everything here runs on the loop's thread.
 */
#ifndef ZPS_SERVER_COORDINATOR_COORDINATOR_H
#define ZPS_SERVER_COORDINATOR_COORDINATOR_H

#include <uv.h>

#include "common/base/err.h"
#include "common/tls/tls.h"
#include "common/token/token.h"
#include "server/membership/members.h"
#include "server/state/etcd.h"

#define ZPS_COORDINATOR_CONNS_MAX 16384u

struct zps_coordinator;

/* One of several coordinators over one state: the one that leads has it. */
struct zps_coordinator_etcd {
  struct zps_etcd_access access; /* members NULL: there is only this one */
  const char *prefix;            /* of keys */
  const char *advertise, *host; /* where clients find this one; NULL: where it listens, at `host` if at every address */
  uint64_t lease_s;             /* one that leads, and is not heard of for so long, does not lead any more */
};

struct zps_coordinator_config {
  const char *listen; /* HOST:PORT */
  const char *socket; /* path of a Unix socket as well, or NULL */
  mode_t socket_mode;
  gid_t socket_group; /* ZPS_RPC_ANY_GROUP: as the process creates it */
  /* Also listens at this user's own socket for `listen` (common/control/own_socket.h). Over TCP nobody can then
   * register as a server, or change what concerns others. For a loopback address without TLS. */
  bool own_socket;
  struct zps_tls *tls; /* spoken at `listen`; NULL: none. Borrowed until the coordinator is closed */
  uint64_t heartbeat_ms, dead_ms, call_timeout_ms, leave_grace_ms;
  uint64_t resume_grace_ms; /* for a client whose connection ended to come back; 0: it is lost at once */
  uint32_t min_servers;
  uint32_t max_tensors;                    /* of a job, and groups; 0: ZPS_TENSORS_MAX, the most */
  uint32_t max_waiting;                    /* jobs of one tenant that do not run yet; 0: no limit */
  const char *weights;                     /* of jobs (weights.h), checked; NULL: all weigh 1 */
  unsigned max_conns;                      /* open connections; 0: ZPS_COORDINATOR_CONNS_MAX */
  bool checked;                            /* Reads have checksums. */
  bool own_addresses;                      /* a peer's address for gradients must be its own, or in one of `subnets` */
  const char *subnets;                     /* NULL: there are none */
  const struct zps_token_keys *token_keys; /* by which ranks are let into jobs; NULL: any rank is */
  bool server_loss_replays;                /* a job that loses a server goes on, as long as it has one */
  uint32_t server_places;                  /* of a job whose ranks do not say, at least */
  const char *state_dir;                   /* folder for what must be known after a new start; NULL: nothing is kept */
  struct zps_coordinator_etcd etcd;        /* in place of state_dir */
  const char *cluster;                     /* the cluster whose state it is */
  uint64_t restart_grace_ms;               /* for servers and ranks to come back after a new start */
  void *ctx;
  /* The state can be kept no longer: the process must end. Nothing leaves the coordinator any more. */
  void (*on_broken)(void *ctx, const struct zps_error *error);
  /* With etcd: it leads from now on, or (again and again, with why) does not yet. Until it does, clients are refused,
   * and one that does not lead any more is broken. May be NULL. */
  void (*on_leads)(void *ctx, bool leads, const char *text);
};

/* Strings are borrowed during the call. */
zps_err_t zps_coordinator_create(uv_loop_t *loop, const struct zps_coordinator_config *config,
                                 struct zps_coordinator **coordinator_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Closes listeners and connections; frees once the loop has run their close callbacks. NULL is allowed. */
void zps_coordinator_close(struct zps_coordinator *coordinator);
/* "HOST:PORT", the port being the one really bound. */
const char *zps_coordinator_address(const struct zps_coordinator *coordinator);
/* Takes over min_servers, weights, server_loss_replays, server_places and token_keys. */
void zps_coordinator_reload(struct zps_coordinator *coordinator, const struct zps_coordinator_config *config);
/* Refuses new jobs from now on. */
void zps_coordinator_drain(struct zps_coordinator *coordinator);
unsigned zps_coordinator_jobs(const struct zps_coordinator *coordinator);

#endif
