/*
 * The part of a tensor that its rounds know: its shape, how it is cut into partitions, how it is coded, which kind of
 * rounds it has. The API's tensor (worker/api/tensor.h) begins with it; a test makes one alone.
 */
#ifndef ZPS_WORKER_ROUND_TENSOR_H
#define ZPS_WORKER_ROUND_TENSOR_H

#include <stdatomic.h>

#include "common/codec/codec_choice.h"
#include "common/codec/dtype.h"
#include "common/codec/encode.h"
#include "common/codec/order.h"
#include "common/codec/partition.h"
#include "worker/round/row_arrays.h"

struct zps_peer_tensor;
struct zps_plane;
struct zps_round_ops;
struct zps_rounds;
struct zps_served_kind;

/* The steps that ended last. */
#define ZPS_STEPS_PAST 64u
struct zps_steps_past {
  uint64_t steps[ZPS_STEPS_PAST];
  uint32_t n; /* ever */
};

/* The steps that this rank pushed apart last, and the epochs in which servers had them. */
struct zps_steps_pushed {
  uint64_t steps[ZPS_STEPS_PAST];
  uint32_t epochs[ZPS_STEPS_PAST];
  uint32_t n; /* ever */
};

/* The tensor as the caller has it. */
struct zps_tensor_shape {
  uint64_t rows;
  uint32_t width;
  enum zps_dtype dtype;
};

struct zps_round_tensor {
  const char *job; /* its name, for texts; borrowed */
  char name[128];
  uint32_t id;
  uint32_t world;                /* ranks of the job, or of the group that it is a tensor of */
  struct zps_rounds *rounds;     /* those of its job; borrowed */
  struct zps_tensor_shape shape; /* the caller's. What travels under a scheme of blocks has the width, dtype and op
                                    below */
  uint32_t width;
  enum zps_dtype dtype;
  enum zps_op op;
  enum zps_partitioner partitioner;
  struct zps_hier_options hashing; /* of hierarchical */
  enum zps_codec_policy codec;
  enum zps_value_codec value_codec;
  struct zps_partition part;
  struct zps_murmur *murmur;        /* what `part` looks rows up in, where they are hashed */
  struct zps_partition device_part; /* `part` with a copy of its table in the memory of the job's GPU */
  void *table_on_device;            /* the copy; NULL: none yet, or none is needed */
  /* Per partition: position of the owning server. Another array when a server is lost; those before it stay until the
   * tensor goes, since rounds and threads may look at them. */
  const uint32_t *_Atomic owners;
  const char *scheme;                   /* its name; static */
  const struct zps_round_ops *ops;      /* the kind of its rounds */
  struct zps_peer_tensor *peer;         /* the scheme of rounds between ranks; NULL: rounds are over servers */
  const struct zps_served_kind *served; /* the scheme of rounds over servers */
  bool works_in_host;                   /* its rounds encode and decode in host memory alone */
  bool sends_zeros;                     /* the scheme's results have all rows */
  bool keeps_zero_rows;                 /* rows of a list that are zero are sent, too */
  uint32_t quorum;                      /* ranks that can close a round (decided.h); 0: all are needed */
  _Atomic uint64_t last_bytes;          /* of the rows that the last scan found; at first none */
  struct zps_row_arrays_pool *arrays;   /* for results that are rows */
  struct zps_steps_past past;           /* rounds over servers that went well */
  struct zps_steps_pushed pushed;
};

/* Bytes of a row as it is partitioned; under a scheme of blocks that is not the trainer's row. */
static inline uint64_t zps_round_tensor_row_bytes(const struct zps_round_tensor *tensor) {
  return zps_row_bytes(tensor->width, tensor->dtype);
}

/* Its partition as devices are given it. */
static inline const struct zps_partition *zps_round_tensor_device_part(const struct zps_round_tensor *tensor) {
  return tensor->table_on_device ? &tensor->device_part : &tensor->part;
}

/* The codecs that its slices are pushed in: a set. */
static inline unsigned zps_round_tensor_push_set(const struct zps_round_tensor *tensor) {
  return zps_order_is_any(tensor->partitioner, tensor->codec, tensor->value_codec) ? ZPS_CODEC_ANY_ORDER
                                                                                   : zps_codec_push_set(tensor->codec);
}

/* Bytes of the caller's dense array. */
static inline uint64_t zps_tensor_shape_bytes(const struct zps_tensor_shape *shape) {
  return shape->rows * zps_row_bytes(shape->width, shape->dtype);
}

#endif
