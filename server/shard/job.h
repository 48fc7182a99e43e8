/* A job: its ranks, its tensors, and how both end. */
#ifndef ZPS_SERVER_SHARD_JOB_H
#define ZPS_SERVER_SHARD_JOB_H

#include "common/base/secret.h"
#include "common/session/checks.h"
#include "proto/control_change.h"
#include "server/shard/member.h"

struct zps_account;
struct zps_fair_flow;
struct zps_shard;
struct zps_shard_round;
struct zps_shard_sum;
struct zps_tensor;

struct zps_job {
  struct zps_shard *shard;
  struct zps_job *next;
  uint64_t id, seed;
  struct zps_secret secret;  /* of its links */
  struct zps_checks *checks; /* of what is read; NULL: it goes without */
  uint32_t epoch, server, world;
  uint32_t since;     /* the epoch with which this server came into the running job; 0: it was there at first */
  uint32_t n_began;   /* servers that the job began with */
  uint32_t n_servers; /* its places; 0: not told */
  bool *servers_lost; /* by position, lost or not there yet; NULL: none is */
  uint32_t n_gone;
  bool awaits_replay; /* of this epoch: decisions of earlier ones, and ranks that left, may still be reported */
  char name[ZPS_NAME_MAX + 1];
  struct zps_tensor *tensors;
  struct zps_fair_flow *flow;   /* its turns among the jobs' tasks in the pool, by its weight */
  struct zps_read_flow reads;   /* its turns among what is read of ranks */
  struct zps_account *account;  /* what it has of this server's memory */
  uint64_t standing_bytes;      /* of these, what it has while no round is in flight: links and tensors */
  uint64_t wants_bytes;         /* of these, for rows that its pulls name */
  struct zps_net_keep keep;     /* what came ahead of reads; its limit is a part of the quota, and in the account */
  struct zps_slab_arena *arena; /* its buffers, whose keys say nothing of other jobs'; NULL: closed */
  bool has_links;               /* they are in it */
  uint32_t n_rounds;            /* in flight */
  uint32_t lost;                /* the rank that the job failed for, as the coordinator says; ZPS_SHARD_NO_RANK: none */
  char *lost_text;
  struct zps_shard_sum *held; /* of rounds that were dropped; ranks may be reading them */
  bool is_closed;
  uint64_t linger_until_ns; /* closed: its links live on until what was sent last has arrived */
  struct zps_member members[];
};

zps_err_t zps_job_open(struct zps_shard *shard, const struct zps_job_spec *spec, struct zps_error *error) ZPS_MUSTCHECK;
/* Tells the ranks of rounds in flight and takes the job off the shard; its links linger. */
void zps_job_close(struct zps_job *job, uint64_t now_ns, const char *reason);
/* Closes without a word to the ranks: this server is lost for them, or will be when they hear of it. Memory that they
 * may be reading until then stays while the job lingers. */
void zps_job_leave(struct zps_job *job, uint64_t now_ns, const char *reason);
void zps_job_free(struct zps_job *job);
/* No rank uses the tensor any more: fails what rounds it may still have, and frees it. False: there is no such tensor.
 */
bool zps_job_tensor_close(struct zps_job *job, uint32_t id);
/* Installs another view: zps_shard_job_view() has the errors (view.c). */
zps_err_t zps_job_view(struct zps_job *job, const struct zps_view_image *view, struct zps_error *error) ZPS_MUSTCHECK;
struct zps_job *zps_job_find(struct zps_job *jobs, uint64_t id);
/* A rank is dead or has left: rounds that need it fail, and nothing more is said to it. */
void zps_member_gone(struct zps_member *member, zps_err_t code, const char *text);

#endif
