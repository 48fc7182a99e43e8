/* The control side of a connection: joins, registers tensors, and hears of deaths. */
#ifndef ZPS_WORKER_CONTROL_MEMBERSHIP_H
#define ZPS_WORKER_CONTROL_MEMBERSHIP_H

#include <stdatomic.h>

#include "common/codec/codec_choice.h"
#include "common/control/client.h"
#include "common/net/net.h"
#include "common/plan/report.h"
#include "proto/wire.h"
#include "worker/base/options.h"

#define ZPS_JOIN_SERVERS_MAX 1024u

struct zps_join_server {
  char name[128];
  uint8_t addr[ZPS_NET_ADDR_MAX];
  size_t addr_len;
};

/* What the coordinator said to job.join. */
struct zps_join {
  uint64_t job_id, seed;
  uint32_t epoch, n_servers;
  uint64_t heartbeat_ms, dead_ms;
  struct zps_join_server *servers;
};

/* The other ranks, as the coordinator says to job.peers. */
struct zps_join_peers {
  uint32_t world;
  struct zps_join_peer {
    char host[129], rack[129];
    uint8_t addr[ZPS_NET_ADDR_MAX];
    size_t addr_len;
  } * ranks;
};

struct zps_membership_handler {
  void *ctx;
  void (*on_rank_left)(void *ctx, uint32_t rank); /* on the control thread, as is on_failed */
  void (*on_failed)(void *ctx, const struct zps_frame_abort *failure);
  void (*on_plan)(void *ctx, const zps_json *params); /* tensor.plan */
  void (*on_beat)(void *ctx);                         /* ahead of each heartbeat, as soon as there is a connection */
};

struct zps_membership {
  struct zps_client *client;
  struct zps_membership_handler handler;
  uint64_t job_id;
  atomic_bool lost; /* the coordinator is out of reach */
};

struct zps_tensor_ask {
  const char *name;
  uint64_t rows;
  uint32_t width, partitions;
  enum zps_dtype dtype;
  enum zps_op op;
  int block_bits;
  enum zps_codec_policy codec;
  enum zps_value_codec value_codec;
  const char *scheme;    /* with its options; the same on all ranks */
  const uint32_t *ranks; /* n_ranks: those that push it, where not all do; 0: all */
  uint32_t n_ranks;
};

struct zps_tensor_answer {
  uint32_t id, partitions, block_bits;
  uint32_t *owners; /* malloc'd */
};

/* Connects and joins, within the join timeout. On failure, and in the end, zps_membership_close(). */
zps_err_t zps_membership_open(struct zps_membership *membership, const struct zps_worker_options *options,
                              const struct zps_net_info *fabric, const struct zps_membership_handler *handler,
                              struct zps_join *join, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_membership_register(struct zps_membership *membership, const struct zps_tensor_ask *ask,
                                  uint32_t n_servers, uint64_t timeout_ms, struct zps_tensor_answer *answer,
                                  struct zps_error *error) ZPS_MUSTCHECK;
/* Where the `world` ranks are. */
zps_err_t zps_membership_peers(struct zps_membership *membership, uint32_t world, uint64_t timeout_ms,
                               struct zps_join_peers *peers, struct zps_error *error) ZPS_MUSTCHECK;
void zps_join_peers_fini(struct zps_join_peers *peers);
/* Says that this rank has made its links to the others, and returns when all have. */
zps_err_t zps_membership_linked(struct zps_membership *membership, uint64_t timeout_ms,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* Asks for the scheme of a step, and tells of the rounds before it (tensor.report). */
zps_err_t zps_membership_report(struct zps_membership *membership, uint32_t tensor,
                                const struct zps_plan_told *told) ZPS_MUSTCHECK;
/* Tells of rounds (job.stats): `tensors`, an array of rows, is consumed. */
zps_err_t zps_membership_stats(struct zps_membership *membership, zps_json *tensors) ZPS_MUSTCHECK;
/* Says how the fabric gets at this rank's gradients (job.memory). */
void zps_membership_memory(struct zps_membership *membership, const char *memory);
/* Says goodbye. */
void zps_membership_leave(struct zps_membership *membership);
void zps_membership_close(struct zps_membership *membership);
void zps_join_fini(struct zps_join *join);

#endif
