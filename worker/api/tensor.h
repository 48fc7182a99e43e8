/* An opened tensor: its registration, who owns which partition, and its rounds, in flight and spare. */
#ifndef ZPS_WORKER_API_TENSOR_H
#define ZPS_WORKER_API_TENSOR_H

#include "common/codec/codec.h"
#include "common/codec/codec_choice.h"
#include "common/codec/encode.h"
#include "common/codec/partition.h"
#include "worker/served/blocks.h"
#include "worker/round/round.h"
#include "worker/round/row_arrays.h"
#include "worker/choice/topology.h"
#include "worker/control/telemetry.h"
#include "zenps/zenps.h"

#define ZPS_TENSOR_ROUNDS_MAX 32u /* in flight, per tensor */

struct zps_automatic;

struct zenps_tensor {
  struct zenps_job *job;
  struct zenps_tensor *next;
  char name[128];
  uint32_t id;
  struct zps_block_shape shape; /* as the caller has it; what travels under a scheme of blocks has: */
  uint32_t width;
  enum zps_dtype dtype;
  enum zps_op op;
  enum zps_partitioner partitioner;
  enum zps_codec_policy codec, asked_codec;
  enum zps_value_codec value_codec;
  uint32_t asked_partitions; /* as the caller asked for: opening again must ask for the same */
  int asked_block_bits;
  struct zps_partition part;
  uint32_t *owners; /* per partition: position of the owning server */
  char scheme_text[ZPS_SCHEME_TEXT_MAX + 1];
  struct zps_tensor_scheme *scheme;     /* between workers; else NULL, and: */
  const struct zps_served_kind *served; /* over servers */
  struct zps_automatic *automatic;      /* whose variant it is; NULL: of none */
  bool is_automatic;                    /* the trainer's own of those variants: `automatic` is its */
  uint64_t next_step;                   /* of a stateful scheme, whose steps ascend; job's lock */
  bool keeps_zero_rows;                 /* pushes rows that hosts' ranks had, of which a max or min is zero */
  _Atomic uint64_t last_bytes;          /* of the rows that the last scan found; at first none */

  /* Guarded by the job's lock. */
  struct zps_round *active; /* in flight, or lingering after a failure */
  struct zps_round *spare;
  unsigned n_active;
  struct zps_tensor_tally tally;
  struct zps_row_arrays spare_arrays[ZPS_ROW_ARRAYS_SPARE];
};

/* zenps_tensor_open(), for names of the library's own too. */
zenps_status_t zps_worker_tensor_open(struct zenps_job *job, const char *name, uint64_t rows, uint32_t width,
                                      enum zps_dtype dtype, const zenps_tensor_options_t *options,
                                      struct zenps_tensor **tensor_p);
/* Of a row as it is partitioned, which is not the trainer's where the scheme has blocks. */
static inline uint64_t zps_worker_tensor_row_bytes(const struct zenps_tensor *tensor) {
  return zps_row_bytes(tensor->width, tensor->dtype);
}
uint64_t zps_worker_tensor_dense_bytes(const struct zenps_tensor *tensor);
/* No round may be in flight. */
void zps_worker_tensor_destroy(struct zenps_tensor *tensor);
/* The caller holds the job's lock. A round for `step`, spare or new: ZPS_ERR_BUSY when the step is in flight,
 * ZPS_ERR_AGAIN when too many are, ZPS_ERR_STALE when a stateful scheme had a later one. */
zps_err_t zps_worker_tensor_round_get(struct zenps_tensor *tensor, uint64_t step,
                                      struct zps_round **round_p) ZPS_MUSTCHECK;
/* The caller does not. */
void zps_worker_tensor_round_put(struct zenps_tensor *tensor, struct zps_round *round);
/* On the engine thread: destroys a spare round of the job that nobody wanted for a while, with all that it holds; one a
 * call. Returns when it wants to be called again; ZPS_NEVER while there is none. */
uint64_t zps_worker_tensors_age(struct zps_plane *plane, uint64_t now_ns);
/* For half a minute, spare rounds are kept no longer than `keep_ns`. */
void zps_worker_tensors_trim(struct zps_plane *plane, uint64_t keep_ns, uint64_t now_ns);
/* None may be in flight. */
void zps_worker_tensor_rounds_destroy(struct zenps_tensor *tensor);
/* Starts a round, as zenps_allreduce(); arguments were checked, except for `step`. */
zenps_status_t zps_worker_allreduce(struct zenps_tensor *tensor, uint64_t step, const zenps_grad_t *in,
                                    zenps_grad_t *out, zenps_request_t **request_p);

#endif
