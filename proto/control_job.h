/* Messages about a job, its ranks and their groups: job.*, rank.gone, rank.left, group.*. */
#ifndef ZPS_PROTO_CONTROL_JOB_H
#define ZPS_PROTO_CONTROL_JOB_H

#include "common/base/secret.h"
#include "proto/control.h"
#include "proto/control_view.h"
#include "proto/wire.h"

#define ZPS_JOIN_TOKEN_MAX 255u /* bytes of a token */

/* job.join, of a worker. */
struct zps_join_spec {
  const char *job, *host;
  const char *rack; /* may be empty, or NULL */
  uint32_t world, rank, pid;
  uint32_t places; /* how many servers the job is to have room for, at least; 0: as the coordinator is set up */
  uint64_t timeout_ms;
  const struct zps_net_info *fabric;
  uint64_t secret;   /* this process's own, by which it is known again; 0: it has none */
  const char *token; /* lets the process into the job; NULL: it has none */
};
ZPS_MESSAGE_WRITER(join, struct zps_join_spec)
/* The fabric goes to *fabric, which the spec points to. */
zps_err_t zps_control_join_read(const zps_json *params, struct zps_join_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) ZPS_MUSTCHECK;

/* Its answer. A server's place in the view is its number inside this job. */
struct zps_join {
  uint64_t job_id, seed;
  struct zps_secret link_secret; /* of the job's links */
  bool checksums;                /* of what is read over them */
  struct zps_heartbeat heartbeat;
  uint64_t incarnation;       /* of the coordinator; 0: it does not say */
  struct zps_view_image view; /* Names all servers that are in. */
};
ZPS_MESSAGE(join_answer, struct zps_join)
static inline void zps_join_fini(struct zps_join *join) {
  zps_fields_fini(&zps_control_join_answer, join);
  *join = (struct zps_join){.job_id = 0};
}

/* job.resume: a rank that is in the job, over a new connection. */
struct zps_resume_spec {
  uint64_t job_id, secret;
  uint32_t rank;
  uint64_t incarnation; /* of the coordinator that let it in */
};
ZPS_MESSAGE(resume, struct zps_resume_spec)

/* The answer to job.peers: the places of the ranks. */
struct zps_join_peers {
  uint32_t world;
  struct zps_join_peer {
    char host[ZPS_NAME_MAX + 1], rack[ZPS_NAME_MAX + 1]; /* rack: empty where the rank named none */
    uint8_t addr[ZPS_NET_ADDR_MAX];
    size_t addr_len;
  } * ranks; /* malloc'd by the reader */
};
ZPS_MESSAGE_WRITER(peers, struct zps_join_peers)
zps_err_t zps_control_peers_read(const zps_json *result, uint32_t world, struct zps_join_peers *peers,
                                 struct zps_error *error) ZPS_MUSTCHECK;
static inline void zps_join_peers_fini(struct zps_join_peers *peers) {
  zps_fields_fini(&zps_control_peers, peers);
  peers->world = 0;
}

/* job.linked: job_id, timeout_ms. */
ZPS_MESSAGE(linked, struct zps_job_call)

/* job.memory: job_id, and as text the way in which the fabric reaches a rank's gradients. */
ZPS_MESSAGE(memory, struct zps_job_call)

/* job.held: job_id, and as text the reason that keeps servers which drain in the job: 1 to ZPS_HELD_MAX bytes. */
#define ZPS_HELD_MAX 160u
ZPS_MESSAGE(held, struct zps_job_call)

/* job.open, of the coordinator to a server. */
struct zps_member_spec {
  uint32_t rank;
  uint32_t pid;
  char host[ZPS_NAME_MAX + 1];
  uint8_t addr[ZPS_NET_ADDR_MAX];
  size_t addr_len;
};
struct zps_job_spec {
  uint64_t job_id, seed;
  struct zps_secret secret; /* of its links */
  bool checksums;           /* of what is read over them */
  uint32_t weight;          /* among the jobs of a server; 0: 1 */
  char name[ZPS_NAME_MAX + 1];
  uint32_t server;            /* Position of this server in the job. */
  struct zps_view_image view; /* The server is in, or JOINING in a running job. */
  uint32_t world;
  const struct zps_member_spec *members; /* world of them, by rank; malloc'd by the reader */
};
ZPS_MESSAGE(job_open, struct zps_job_spec)
static inline void zps_job_spec_fini(struct zps_job_spec *spec) {
  zps_fields_fini(&zps_control_job_open, spec);
}

/* job.close: job_id, and the reason as text. */
ZPS_MESSAGE(job_close, struct zps_job_call)

/* rank.gone, of the coordinator to a server. */
struct zps_rank_gone {
  uint64_t job_id;
  uint32_t rank;
  zps_err_t code;
  const char *text;
};
ZPS_MESSAGE(rank_gone, struct zps_rank_gone)

/* job.failed, of the coordinator to a worker. A failure must be heard even from a faulty message: members that make no
 * sense are left out, and a code that is no error is ERR_INTERNAL. */
extern const struct zps_fields zps_control_job_failed;
zps_json *zps_control_job_failed_write(uint64_t job_id, const struct zps_frame_abort *failure);
void zps_control_job_failed_read(const zps_json *params, struct zps_frame_abort *failure);

/* rank.left: job_id, rank. */
ZPS_MESSAGE(rank_left, struct zps_job_call)

/* group.open, of each rank of the group. */
struct zps_group_spec {
  uint64_t job_id;
  char name[ZPS_NAME_MAX + 1];
  const uint32_t *ranks; /* n_ranks of them, ascending; malloc'd by the reader */
  uint32_t n_ranks;
  uint64_t timeout_ms;
};
ZPS_MESSAGE(group_open, struct zps_group_spec)
/* Frees what the reader has allocated. */
static inline void zps_group_spec_fini(struct zps_group_spec *spec) {
  zps_fields_fini(&zps_control_group_open, spec);
}

/* group.close: job_id, and the group's name as text. */
ZPS_MESSAGE(group_close, struct zps_job_call)

#endif
