/*
 * The data plane of one server process: the shards it owns, of all jobs, behind one progress thread (zps_engine) and
 * one reduce pool. The control side (agent.c) drives it through these calls, which run on the engine's thread and
 * return when done (microseconds to milliseconds); none of them waits for a peer. Where that thread is stuck they give
 * up: ZPS_ERR_TIMEOUT, nothing has changed, and nothing will.
 */
#ifndef ZPS_SERVER_SHARD_SHARD_H
#define ZPS_SERVER_SHARD_SHARD_H

#include "common/base/fair.h"
#include "common/base/mishaps.h"
#include "common/net/net.h"
#include "common/net/slab.h"
#include "proto/control_job.h"
#include "proto/control_change.h"
#include "proto/control_tensor.h"
#include "server/shard/quota.h"

struct zps_shard;

struct zps_shard_config {
  struct zps_net_config net;
  uint64_t memory_limit_bytes; /* registered buffers, all jobs */
  unsigned reduce_threads;
  uint64_t read_budget_bytes; /* bulk reads in flight */
  struct zps_quota quota;     /* of each job */
};

/* Cumulative since the tensor was opened, on this server. */
struct zps_tensor_stats {
  uint64_t job_id;
  uint32_t tensor;
  char name[ZPS_NAME_MAX + 1];
  uint64_t rows;
  uint32_t width, n_parts, parts_here;
  enum zps_dtype dtype;
  enum zps_op op;
  uint64_t age_ns; /* since it was opened here */
  uint64_t rounds, aborted;
  uint64_t bytes_in, bytes_out;   /* payload read from and served to ranks */
  uint64_t push_rows, union_rows; /* rows received; rows published */
  double imbalance_push; /* worst n_parts * rows of a (rank, partition) / rows of that rank, of all rounds together */
  double step_loads;     /* summed over rounds: rows that came here of those of the rank of which most did, over an even
                            share     by partitions (definition 8, of servers and single steps) */
  uint64_t union_rows_max_part;               /* union rows of this server's heaviest partition, accumulated */
  uint64_t collect_ns, reduce_ns, publish_ns; /* first push -> all here; summing; first result -> all ranks done */
  const uint64_t *lag_ns; /* per rank: how long after the first rank its push came, or the round closed without it,
                             summed over rounds */
  const uint64_t *late;   /* per rank: rounds that a quorum closed without it */
  uint32_t world;
};

zps_err_t zps_shard_create(const struct zps_shard_config *config, struct zps_shard **shard_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
void zps_shard_destroy(struct zps_shard *shard);
const struct zps_net_info *zps_shard_net_info(const struct zps_shard *shard);

zps_err_t zps_shard_job_open(struct zps_shard *shard, const struct zps_job_spec *spec,
                             struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_shard_tensor_open(struct zps_shard *shard, const struct zps_tensor_spec *spec,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* No rank uses the tensor any more: its memory is freed. ZPS_ERR_UNKNOWN. */
zps_err_t zps_shard_tensor_close(struct zps_shard *shard, uint64_t job_id, uint32_t tensor,
                                 struct zps_error *error) ZPS_MUSTCHECK;
/* Aborts what is in flight (ranks that are still there are told `reason`) and frees the job. ZPS_ERR_UNKNOWN. */
zps_err_t zps_shard_job_close(struct zps_shard *shard, uint64_t job_id, const char *reason) ZPS_MUSTCHECK;
/* This server is no part of the job any more, since the coordinator took it for lost: the job may go on with others, or
 * end, and ranks hear of that from the coordinator, if not yet. Drops what is in flight, of which no rank is told; sums
 * that ranks may be reading stay for a while. ZPS_ERR_UNKNOWN. */
zps_err_t zps_shard_job_leave(struct zps_shard *shard, uint64_t job_id, const char *reason) ZPS_MUSTCHECK;
/* Installs another view of the job: this server has its share of the partitions from here on. Rounds in flight are
 * dropped without a word to ranks. The view that the job has is no error, and changes nothing. After an error the job
 * is as before. ZPS_ERR_UNKNOWN: there is no such job. ZPS_ERR_STALE: the job lives in a later epoch, or has another
 * view of this one. ZPS_ERR_INVALID: the view is of other places, does not have this server, or gives it too many
 * partitions. */
zps_err_t zps_shard_job_view(struct zps_shard *shard, const struct zps_job_view *message,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* All ranks live in this epoch, and read nothing any more of the rounds that were dropped. ZPS_ERR_UNKNOWN. */
zps_err_t zps_shard_job_replay(struct zps_shard *shard, uint64_t job_id, uint32_t epoch,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* The rank is dead (ZPS_ERR_PEER_LOST) or has left (ZPS_ERR_CLOSED). */
zps_err_t zps_shard_rank_gone(struct zps_shard *shard, uint64_t job_id, uint32_t rank, zps_err_t code,
                              const char *text) ZPS_MUSTCHECK;
/* A rank that neither says that it has read the sums of a round nor gives them up, and that for so long after its own
 * deadline, is lost to this server, since its sums cannot be kept for ever. ZPS_SHARD_PATIENCE_MS until this is called.
 */
#define ZPS_SHARD_PATIENCE_MS 30000u
void zps_shard_set_patience(struct zps_shard *shard, uint64_t patience_ms);
/* 0 also where the progress thread is stuck. */
unsigned zps_shard_jobs(struct zps_shard *shard);
/* False: the progress thread is stuck. */
bool zps_shard_answers(struct zps_shard *shard);
/* Whether the progress thread has something to do, and how many turns it has made (zps_engine_pulse()). Does not wait
 * for it. */
bool zps_shard_due(struct zps_shard *shard, uint64_t now_ns, uint64_t *turns_p);

/* How a job that is open fares among the others, since it was opened here. */
struct zps_job_share {
  uint64_t job_id;
  uint32_t weight;
  struct zps_fair_served pool; /* bytes of its work that the pool has begun */
  uint64_t memory_bytes;       /* registered buffers it has at the moment */
};
/* Calls `visit` once per job. */
zps_err_t zps_shard_shares(struct zps_shard *shard, void (*visit)(void *ctx, const struct zps_job_share *share),
                           void *ctx, struct zps_error *error) ZPS_MUSTCHECK;

/* A round in flight on this server, and the ranks that it waits for. Times are of the moment of the call. */
#define ZPS_FLIGHT_RANKS_MAX 16u
enum zps_flight_wait {
  ZPS_FLIGHT_PUSH,  /* the ranks have not pushed all of their rows */
  ZPS_FLIGHT_BYTES, /* all pushes are announced; bytes are read from the ranks */
  ZPS_FLIGHT_SUM,   /* all bytes are here; this server sums them */
  ZPS_FLIGHT_PULL,  /* the ranks have not read all sums */
};
struct zps_round_flight {
  uint64_t job_id, step;
  uint32_t tensor, world;
  const char *name; /* of the tensor; valid during the visit */
  enum zps_flight_wait wait;
  uint64_t age_ns;                      /* since its first push */
  uint64_t left_ns;                     /* to the earliest deadline of a rank that pushed; ZPS_NEVER: none has one */
  uint32_t n_ranks;                     /* Number of ranks that the round waits for. */
  uint32_t ranks[ZPS_FLIGHT_RANKS_MAX]; /* The first of these ranks. */
};
/* Calls `visit` once per round in flight, the oldest first, at most `max` times. */
zps_err_t zps_shard_rounds(struct zps_shard *shard, unsigned max,
                           void (*visit)(void *ctx, const struct zps_round_flight *flight), void *ctx,
                           struct zps_error *error) ZPS_MUSTCHECK;

struct zps_shard_totals {
  struct zps_net_counters net;
  struct zps_slab_stats slab;
  struct zps_mishaps mishaps;
  uint64_t memory_limit_bytes;
  unsigned jobs, tensors, rounds_in_flight;
};
/* Calls `visit` once per tensor; its pointers are valid during the call. */
zps_err_t zps_shard_stats(struct zps_shard *shard, struct zps_shard_totals *totals_p,
                          void (*visit)(void *ctx, const struct zps_tensor_stats *stats), void *ctx,
                          struct zps_error *error) ZPS_MUSTCHECK;

#endif
