/*
 * What a job and its tensors are, as the coordinator tells servers, and what the numbers in it may be at most. Both
 * halves of the server speak of it: membership (coordinator/) makes it up, the data plane (shard/) is opened by it.
 */
#ifndef ZPS_SERVER_SPEC_H
#define ZPS_SERVER_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "common/codec/codec_choice.h"
#include "common/net/net.h"

#define ZPS_NAME_MAX 128u /* bytes of a job's, tensor's or host's name, without NUL */
#define ZPS_WORLD_MAX 4096u
#define ZPS_SERVERS_MAX 1024u

struct zps_member_spec {
  uint32_t rank;
  uint32_t pid;
  char host[ZPS_NAME_MAX + 1];
  uint8_t addr[ZPS_NET_ADDR_MAX];
  size_t addr_len;
};

struct zps_job_spec {
  uint64_t job_id, seed;
  uint32_t epoch;
  char name[ZPS_NAME_MAX + 1];
  uint32_t server; /* position of this server in the job */
  uint32_t world;
  const struct zps_member_spec *members; /* world of them, by rank */
};

struct zps_tensor_spec {
  uint64_t job_id;
  uint32_t tensor;
  char name[ZPS_NAME_MAX + 1];
  uint64_t rows;
  uint32_t width;
  enum zps_dtype dtype;
  enum zps_op op;
  uint32_t n_parts, block_bits;
  enum zps_codec_policy codec;
  enum zps_value_codec value_codec;
  char scheme[ZPS_NAME_MAX + 1]; /* the workers'; servers have no part in schemes between ranks */
  const uint32_t *owners;        /* n_parts of them: position of the owning server */
  const uint32_t *ranks;         /* n_ranks of them, ascending: those that push and are told sums; 0: all */
  uint32_t n_ranks;
};

#endif
