/* One job of fake workers on a shard, with contributions and expected sums that follow from (tensor, step, rank). */
#ifndef ZPS_TESTS_SERVER_SHARD_SHARD_CLUSTER_H
#define ZPS_TESTS_SERVER_SHARD_SHARD_CLUSTER_H

#include "common/codec/partition.h"
#include "server/shard/shard.h"
#include "tests/unit/server/shard/shard_rig.h"

enum { CLUSTER_RANKS = 8, CLUSTER_TENSORS = 4, CLUSTER_PARTS = 16 };

struct cluster_tensor {
  struct zps_tensor_spec spec;
  struct zps_partition part;
  uint32_t owners[CLUSTER_PARTS], sizes[CLUSTER_PARTS], ranks[CLUSTER_RANKS];
  struct rig_layout layout;
  double density;
};

/* A partition's result of the step that was looked at last, since every rank's is compared with it. */
struct cluster_expected {
  uint64_t step, len_bytes;
  double density; /* tests change the tensor's, and the world, from one step to the next */
  uint32_t world, late, nnz;
  enum zps_codec codec;
  bool joined;
  uint8_t *payload; /* NULL: none */
};

struct cluster {
  struct zps_shard *shard;
  uint64_t job_id, seed;
  uint32_t world;
  struct rig_rank *ranks[CLUSTER_RANKS];
  struct cluster_tensor tensors[CLUSTER_TENSORS];
  struct cluster_expected expected[CLUSTER_TENSORS][CLUSTER_PARTS];
  unsigned n_tensors;
  uint32_t staleness;               /* of tensors that are opened from here on */
  uint32_t quorum, grace_ms;        /* of tensors that are opened from here on; their partitions are all here */
  uint32_t late;                    /* bit by rank: it is not in the sums that are checked from here on */
  unsigned idle;                    /* bit by rank: it has no part in tensors that are opened from here on */
  enum zps_value_codec value_codec; /* of tensors of floats that are opened from here on; 0: raw */
};

struct zps_shard *cluster_shard(const char *provider, const char *fault, uint64_t memory_limit_bytes);
struct zps_shard *cluster_shard_with(const char *provider, const char *fault, uint64_t memory_limit_bytes,
                                     struct zps_quota quota);
/* The job is open on the shard, the workers are connected. */
void cluster_open(struct cluster *cluster, struct zps_shard *shard, const char *provider, const char *fault,
                  uint64_t job_id, uint32_t world);
/* The shard has come into the job with this epoch. */
void cluster_open_since(struct cluster *cluster, struct zps_shard *shard, const char *provider, const char *fault,
                        uint64_t job_id, uint32_t world, uint32_t since);
/* One that began with this server alone, and has two free places. */
void cluster_open_alone(struct cluster *cluster, struct zps_shard *shard, uint64_t job_id, uint32_t world);
/* Every third partition belongs to another server. */
struct cluster_tensor *cluster_tensor(struct cluster *cluster, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                                      enum zps_op op, uint32_t n_parts, double density);
void cluster_close(struct cluster *cluster); /* the workers; the job unless it is closed already */
bool cluster_owned(const struct cluster_tensor *tensor, uint32_t partition);
/* Pushes the rank's contributions to the partitions here: small ones inline, several to a frame on odd steps;
 * on every fourth step joined, when they are small enough. Returns the bytes of their payloads. */
uint64_t cluster_push(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank,
                      uint32_t timeout_ms);
/* Takes the rank's results of the step and compares them with the sum, bit for bit. */
void cluster_check(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank);
void cluster_done(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank);
/* A whole step, for all ranks that have a part, in an order that depends on the step. */
void cluster_round(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step);
/* Takes the abort and checks its code and that its text holds `text`. */
void cluster_abort(struct cluster *cluster, const struct cluster_tensor *tensor, uint64_t step, uint32_t rank,
                   zps_err_t code, const char *text);
/* The shard's statistics of this tensor, without its pointers. */
struct zps_tensor_stats cluster_stats(struct cluster *cluster, const struct cluster_tensor *tensor);
struct zps_shard_totals cluster_totals(struct zps_shard *shard);
/* Until no round is in flight. */
void cluster_drain(struct zps_shard *shard);
/* Nothing is held any more. Memory of reads from a rank that is gone comes back when the rank's fabric lets go of it.
 * */
void cluster_check_released(struct zps_shard *shard);

#endif
