/* The control side of a connection: joins, registers tensors, and hears of deaths. */
#ifndef ZPS_WORKER_MEMBERSHIP_H
#define ZPS_WORKER_MEMBERSHIP_H

#include <stdatomic.h>

#include "common/codec/codec_choice.h"
#include "common/control/client.h"
#include "common/net/net.h"
#include "proto/wire.h"
#include "worker/options.h"

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

struct zps_membership_handler {
  void *ctx;
  void (*on_failed)(void *ctx, const struct zps_frame_abort *failure); /* on the control thread */
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
/* Says goodbye. */
void zps_membership_leave(struct zps_membership *membership);
void zps_membership_close(struct zps_membership *membership);
void zps_join_fini(struct zps_join *join);

#endif
