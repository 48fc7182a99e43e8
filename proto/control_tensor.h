/* The description of a tensor, and the messages that open one: tensor.register, tensor.open. */
#ifndef ZPS_PROTO_CONTROL_TENSOR_H
#define ZPS_PROTO_CONTROL_TENSOR_H

#include "common/codec/codec_choice.h"
#include "common/codec/partitioner.h"
#include "proto/control_scheme.h"

#define ZPS_TENSOR_TEXT_MAX 447u
#define ZPS_TENSOR_WIDTH_MAX (1u << 20)
#define ZPS_BLOCK_BITS_DEFAULT UINT32_MAX
#define ZPS_GRACE_MAX_MS (24u * 3600 * 1000)
#define ZPS_STALENESS_MAX 31u /* steps: with as many rounds in flight, a server's rounds of a tensor suffice */

/* A tensor: as a worker asks for it, as the coordinator completes it, and as servers open it. */
struct zps_tensor_spec {
  uint64_t job_id;
  uint32_t tensor; /* the coordinator's number */
  char name[ZPS_NAME_MAX + 1];
  uint64_t rows;
  uint32_t width;
  enum zps_dtype dtype;
  enum zps_op op;
  uint32_t n_parts;    /* asked for: 0 is the default */
  uint32_t block_bits; /* asked for: ZPS_BLOCK_BITS_DEFAULT is the default */
  enum zps_codec_policy codec;
  enum zps_value_codec value_codec;
  struct zps_scheme_spec scheme; /* the workers' affair; it does not travel to servers */
  const uint32_t *owners;        /* n_parts of them: position of the owning server; malloc'd by readers */
  char group[ZPS_NAME_MAX + 1];  /* of ranks, that it is a tensor of; empty: of all. Does not travel to servers */
  const uint32_t *ranks; /* n_ranks of them, ascending: those that push and are told sums; malloc'd by readers */
  uint32_t n_ranks;      /* 0: all, of the group if there is one */
  enum zps_partitioner partitioner; /* 0: stratified */
  struct zps_hier_options hashing;  /* of hierarchical */
  uint32_t keep_zero_rows; /* 1: ranks send rows of zeros that they list, too; like the scheme, not told to servers */
  uint32_t quorum;         /* ranks that can close a round; 0: all are needed. Its partitions have one owner */
  uint32_t grace_ms;       /* of a quorum: how long the other ranks have from then on */
  uint32_t staleness;      /* steps that a sum may be older than the one it is pulled at; servers keep one more sums */
};
/* Frees what a reader has allocated. */
void zps_tensor_spec_fini(struct zps_tensor_spec *spec);
/* True when two descriptions agree where ranks must: in everything but the job, numbers, name, group and owners. */
bool zps_tensor_spec_same(const struct zps_tensor_spec *a, const struct zps_tensor_spec *b);
/* The trainer's tensor that a tensor of the library's own belongs to: "@hosts/@hierarchical/w" is of "w". Others are
 * their own. */
const char *zps_tensor_owner_name(const char *name);
/* For people: "100 x 8 f32 sum in 4 partitions, block_bits 0, codec auto, values raw, scheme oktopk k=5". `text` has
 * ZPS_TENSOR_TEXT_MAX + 1 characters. Returns it. */
const char *zps_tensor_spec_text(const struct zps_tensor_spec *spec, char *text);

/* Members that tensor.register and tensor.open have. */
extern const struct zps_fields zps_control_shape;

/* tensor.register, of a worker. Owners and number do not travel. */
ZPS_MESSAGE(register, struct zps_tensor_spec)
/* Its answer completes the spec: number, partitions, block_bits and owners, which are below `n_servers`. */
ZPS_MESSAGE_WRITER(registered, struct zps_tensor_spec)
zps_err_t zps_control_registered_read(const zps_json *result, uint32_t n_servers, struct zps_tensor_spec *spec,
                                      struct zps_error *error) ZPS_MUSTCHECK;

/* tensor.close: job_id, tensor, and how long the worker waits for the other ranks (timeout_ms). */
ZPS_MESSAGE(tensor_close, struct zps_job_call)
/* tensor.forget, of the coordinator to a server: job_id, tensor. */
ZPS_MESSAGE(tensor_forget, struct zps_job_call)

/* tensor.keep, of the coordinator to a server: the tensors of a job, ascending. */
struct zps_tensor_keep {
  uint64_t job_id;
  uint32_t *tensors; /* May be none. Allocated by the reader. */
  uint32_t n;
};
ZPS_MESSAGE(tensor_keep, struct zps_tensor_keep)

/* tensor.open, of the coordinator to a server. The scheme is not sent. */
ZPS_MESSAGE(tensor_open, struct zps_tensor_spec)

#endif
