/* Messages about a job and its ranks: job.*, rank.gone, rank.left. */
#ifndef ZPS_PROTO_CONTROL_JOB_H
#define ZPS_PROTO_CONTROL_JOB_H

#include "common/base/secret.h"
#include "proto/control.h"
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
zps_json *zps_control_join_write(const struct zps_join_spec *spec);
/* The fabric goes to *fabric, which the spec points to. */
zps_err_t zps_control_join_read(const zps_json *params, struct zps_join_spec *spec, struct zps_net_info *fabric,
                                struct zps_error *error) ZPS_MUSTCHECK;

/* Its answer. Position in `servers` is the server's number inside this job. Of the job's places the first n_servers are
 * those of the servers that it began with; the others are free, and so are those of servers that were lost since. */
struct zps_join_server {
  char name[ZPS_NAME_MAX + 1];
  uint8_t addr[ZPS_NET_ADDR_MAX];
  size_t addr_len;
};
struct zps_join {
  uint64_t job_id, seed;
  struct zps_secret link_secret; /* of the job's links */
  bool checksums;                /* of what is read over them */
  uint32_t epoch, n_servers;
  uint32_t n_places; /* n_servers at least; 0, to the writer: as many */
  struct zps_heartbeat heartbeat;
  uint64_t incarnation;            /* of the coordinator; 0: it does not say */
  struct zps_join_server *servers; /* malloc'd by the reader, with room for one of each place; the rest are zero */
};
static inline bool zps_join_is_free(const struct zps_join *join, uint32_t place) {
  return join->servers[place].addr_len == 0;
}
zps_json *zps_control_join_answer_write(const struct zps_join *join);
zps_err_t zps_control_join_answer_read(const zps_json *result, struct zps_join *join,
                                       struct zps_error *error) ZPS_MUSTCHECK;
void zps_join_fini(struct zps_join *join);
/* One server of it, which others may have, too. */
zps_err_t zps_control_join_server_read(const zps_json *object, struct zps_join_server *server,
                                       struct zps_error *error) ZPS_MUSTCHECK;

/* job.resume: a rank that is in the job, over a new connection. */
struct zps_resume_spec {
  uint64_t job_id, secret;
  uint32_t rank;
  uint64_t incarnation; /* of the coordinator that let it in */
};
zps_json *zps_control_resume_write(const struct zps_resume_spec *spec);
zps_err_t zps_control_resume_read(const zps_json *params, struct zps_resume_spec *spec,
                                  struct zps_error *error) ZPS_MUSTCHECK;

/* The answer to job.peers: the places of the ranks. */
struct zps_join_peers {
  uint32_t world;
  struct zps_join_peer {
    char host[ZPS_NAME_MAX + 1], rack[ZPS_NAME_MAX + 1]; /* rack: empty where the rank named none */
    uint8_t addr[ZPS_NET_ADDR_MAX];
    size_t addr_len;
  } * ranks; /* malloc'd by the reader */
};
zps_json *zps_control_peers_write(const struct zps_join_peers *peers);
zps_err_t zps_control_peers_read(const zps_json *result, uint32_t world, struct zps_join_peers *peers,
                                 struct zps_error *error) ZPS_MUSTCHECK;
void zps_join_peers_fini(struct zps_join_peers *peers);

/* job.linked */
zps_json *zps_control_linked_write(uint64_t job_id, uint64_t timeout_ms);
zps_err_t zps_control_linked_read(const zps_json *params, uint64_t *job_id_p, uint64_t *timeout_ms_p,
                                  struct zps_error *error) ZPS_MUSTCHECK;

/* job.memory: the way in which the fabric gets at a rank's gradients. */
/* job.held: why servers that drain are to keep the job: at most ZPS_HELD_MAX printable bytes. */
#define ZPS_HELD_MAX 160u
zps_json *zps_control_held_write(uint64_t job_id, const char *why);
zps_err_t zps_control_held_read(const zps_json *params, uint64_t *job_id_p, const char **why_p,
                                struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_control_memory_write(uint64_t job_id, const char *memory);
zps_err_t zps_control_memory_read(const zps_json *params, uint64_t *job_id_p, const char **memory_p,
                                  struct zps_error *error) ZPS_MUSTCHECK;

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
  uint32_t epoch;
  uint32_t since; /* with which this server takes a place in the job, which runs; 0: it is there at first */
  char name[ZPS_NAME_MAX + 1];
  uint32_t server;    /* position of this server in the job */
  uint32_t n_servers; /* servers that the job began with */
  uint32_t n_places;  /* places of the job; those beyond n_servers are free at first. 0, to the writer: n_servers */
  uint32_t world;
  const struct zps_member_spec *members; /* world of them, by rank; malloc'd by the reader */
};
/* The member "places", of a job that began with n_servers; *places_p is n_servers where there is none. */
zps_err_t zps_control_opt_places(const zps_json *object, uint32_t n_servers, uint32_t *places_p,
                                 struct zps_error *error) ZPS_MUSTCHECK;
/* The member "weight", 1 to ZPS_FAIR_WEIGHT_MAX; 1 where there is none. */
zps_err_t zps_control_opt_weight(const zps_json *object, uint32_t *weight_p, struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_control_job_open_write(const struct zps_job_spec *spec);
zps_err_t zps_control_job_open_read(const zps_json *params, struct zps_job_spec *spec,
                                    struct zps_error *error) ZPS_MUSTCHECK;
void zps_job_spec_fini(struct zps_job_spec *spec);

/* job.close */
zps_json *zps_control_job_close_write(uint64_t job_id, const char *reason);
zps_err_t zps_control_job_close_read(const zps_json *params, uint64_t *job_id_p, const char **reason_p,
                                     struct zps_error *error) ZPS_MUSTCHECK;

/* rank.gone, of the coordinator to a server. */
struct zps_rank_gone {
  uint64_t job_id;
  uint32_t rank;
  zps_err_t code;
  const char *text;
};
zps_json *zps_control_rank_gone_write(const struct zps_rank_gone *gone);
zps_err_t zps_control_rank_gone_read(const zps_json *params, struct zps_rank_gone *gone,
                                     struct zps_error *error) ZPS_MUSTCHECK;

/* job.failed, of the coordinator to a worker. A failure must be heard even from a faulty message: members that make no
 * sense are left out, and a code that is no error is ERR_INTERNAL. */
zps_json *zps_control_job_failed_write(uint64_t job_id, const struct zps_frame_abort *failure);
void zps_control_job_failed_read(const zps_json *params, struct zps_frame_abort *failure);

/* rank.left */
zps_json *zps_control_rank_left_write(uint64_t job_id, uint32_t rank);
zps_err_t zps_control_rank_left_read(const zps_json *params, uint32_t *rank_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
