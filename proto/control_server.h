/* Messages between a server and the coordinator about the server itself: server.register, server.drain. */
#ifndef ZPS_PROTO_CONTROL_SERVER_H
#define ZPS_PROTO_CONTROL_SERVER_H

#include "proto/control.h"

/* server.register */
struct zps_server_spec {
  const char *name, *host;
  uint32_t pid;
  const struct zps_net_info *fabric;
  uint64_t secret;      /* this process's own, by which it is known again; 0: it has none */
  uint64_t incarnation; /* of the coordinator that it was registered with; 0: with none */
  uint64_t *jobs;       /* n_jobs of them, open here; malloc'd by the reader */
  uint32_t n_jobs;
  bool draining; /* it takes no new jobs */
};
ZPS_MESSAGE_WRITER(server, struct zps_server_spec)
/* The fabric goes to *fabric, which the spec points to. */
zps_err_t zps_control_server_read(const zps_json *params, struct zps_server_spec *spec, struct zps_net_info *fabric,
                                  struct zps_error *error) ZPS_MUSTCHECK;
static inline void zps_server_spec_fini(struct zps_server_spec *spec) {
  zps_fields_fini(&zps_control_server, spec);
}

/* Its answer. */
struct zps_server_answer {
  uint32_t server; /* issued once, never again */
  uint32_t epoch;
  struct zps_heartbeat heartbeat;
  uint64_t incarnation; /* another one: this coordinator does not know what the former one did */
  uint64_t *jobs;       /* n_jobs of them: those that it knows to be on this server; malloc'd by the reader */
  uint32_t n_jobs;
};
ZPS_MESSAGE(server_answer, struct zps_server_answer)
static inline void zps_server_answer_fini(struct zps_server_answer *answer) {
  zps_fields_fini(&zps_control_server_answer, answer);
}

/* The answer to server.drain: jobs that still run there. */
ZPS_MESSAGE(drained, uint32_t)

/* Calls of an administrator. Each has some of the members. */
#define ZPS_KICK_REASON_MAX 160u
struct zps_admin_call {
  const char *name; /* Of a server (drain, undrain), or of a job. Of rebalance, NULL: all jobs. */
  const char *reason;
  uint32_t rank;
};
ZPS_MESSAGE_READER(drain, struct zps_admin_call)
ZPS_MESSAGE_READER(rebalance, struct zps_admin_call)
ZPS_MESSAGE_READER(kick, struct zps_admin_call)

#endif
