/* A tensor of a job: which of its partitions are here, its rounds, and how those that are over have ended. */
#ifndef ZPS_SERVER_SHARD_TENSOR_H
#define ZPS_SERVER_SHARD_TENSOR_H

#include "common/codec/codec.h"
#include "common/codec/partition.h"
#include "proto/control_tensor.h"
#include "proto/wire.h"
#include "server/shard/stats.h"

struct zps_job;
struct zps_reduce_task;
struct zps_shard_pull;
struct zps_shard_round;
struct zps_shard_sum;

#define ZPS_SHARD_ROUNDS_MAX 64u /* rounds in flight per tensor */
#define ZPS_TOMBSTONES 128u      /* ended rounds remembered per tensor */
#define ZPS_SLOTS_MAX (1u << 22) /* ranks times partitions of a tensor on one server */

/* A round that is over: a push that comes late is told what happened. */
struct zps_tombstone {
  uint64_t step;
  bool is_used, is_completed;
  struct zps_frame_abort *abort; /* what to say; NULL where there was no memory to keep it */
};

/* Which partitions are here, how large they are, and what was counted of each. */
struct zps_placing {
  uint32_t n;
  uint32_t *positions;         /* by partition number: position among those here, or UINT32_MAX */
  uint32_t *partitions;        /* by position: partition number */
  uint32_t *sizes;             /* by position: m */
  uint64_t *rows, *part_union; /* of zps_tensor_sums */
};

struct zps_tensor {
  struct zps_job *job;
  struct zps_tensor *next;
  uint32_t id, width;
  char name[ZPS_NAME_MAX + 1];
  enum zps_dtype array_dtype; /* of the trainers' arrays */
  enum zps_dtype dtype;       /* of sums */
  enum zps_op op;
  unsigned codecs; /* the set of codecs for results */
  enum zps_value_codec value_codec;
  struct zps_partition partition; /* numbers and seed; where rows are is no concern of a server */
  bool any_order;                 /* ranks push indices in any order */
  uint32_t inline_bytes;          /* longer slices are read */
  bool is_small;                  /* no contribution or sum of a partition is more than a frame carries */
  uint32_t *owners;               /* by partition number, as it was opened */
  uint32_t *all_sizes;            /* by partition number: m */
  uint32_t parts_here;            /* of the placing in force, as are the next three */
  uint32_t *positions, *partitions, *sizes;
  struct zps_placing placing; /* the next one, made and not in force yet */
  uint8_t *idle;              /* by rank: it has no part in its rounds; NULL: all have */
  uint32_t staleness;   /* how much older a sum may be than the step it is sought at: one more are kept; 0: it is not */
  uint32_t quorum;      /* ranks that can close a round; 0: all are needed */
  uint64_t grace_ns;    /* how long the others have from then on */
  uint64_t newest_step; /* the newest one that has begun here */
  uint64_t unsure_step; /* up to this one, a rank that left unheard may have a sum of an earlier epoch */
  bool has_newest;
  uint64_t past_step; /* with a quorum: the newest step that was completed and has no tombstone any more */
  bool has_past;
  struct zps_shard_round *rounds, *free_rounds;
  uint32_t n_rounds, n_free_rounds;
  struct zps_reduce_task *free_tasks;
  struct zps_tombstone tombstones[ZPS_TOMBSTONES];
  uint32_t next_tombstone;
  uint64_t charged_bytes; /* for it, its rounds apart */
  struct zps_tensor_sums sums;
};

/* Of halves that travel as they are: ranks whose own sums are none may push floats. */
static inline bool zps_tensor_may_be_wide(const struct zps_tensor *tensor) {
  return zps_dtype_is_half(tensor->array_dtype) && tensor->value_codec == zps_values_own(tensor->array_dtype);
}

/* A sum of a part of the tensor, or some rows of it. */
struct zps_slice_view zps_shard_sum_view(const struct zps_tensor *tensor, uint32_t part,
                                         const struct zps_shard_sum *sum);
zps_err_t zps_tensor_open(struct zps_job *job, const struct zps_tensor_spec *spec,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* Makes tensor->placing: the partitions that are here when these servers of the job are lost. */
zps_err_t zps_tensor_place(struct zps_tensor *tensor, const bool *lost, struct zps_error *error) ZPS_MUSTCHECK;
void zps_tensor_unplace(struct zps_tensor *tensor);
/* Puts it into force, and forgets how rounds have ended. None is in flight or in a free list. */
void zps_tensor_move(struct zps_tensor *tensor);
/* Its rounds are over and freed. NULL is allowed. */
void zps_tensor_free(struct zps_tensor *tensor);
struct zps_tensor *zps_tensor_find(const struct zps_job *job, uint32_t id);
/* `abort` NULL: the step was completed. */
void zps_tensor_bury(struct zps_tensor *tensor, uint64_t step, const struct zps_frame_abort *abort);
const struct zps_tombstone *zps_tensor_tombstone(const struct zps_tensor *tensor, uint64_t step);

#endif
