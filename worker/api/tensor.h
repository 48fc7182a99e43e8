/* An opened tensor: its registration, the owner of each partition, and its rounds, in flight and spare. */
#ifndef ZPS_WORKER_API_TENSOR_H
#define ZPS_WORKER_API_TENSOR_H

#include "common/base/container.h"
#include "proto/control_tensor.h"
#include "worker/api/telemetry.h"
#include "worker/choice/scheme_ask.h"
#include "worker/choice/auto.h"
#include "worker/round/round.h"
#include "worker/round/tensor.h"
#include "zenps/zenps.h"

#define ZPS_TENSOR_ROUNDS_MAX 32u /* in flight, per tensor */

struct zps_agree;
struct zps_nested;

struct zenps_tensor {
  struct zps_round_tensor core; /* what its rounds know of it */
  struct zenps_job *job;
  struct zenps_tensor *next;
  struct zenps_group *group;       /* of ranks; NULL: all */
  struct zps_tensor_spec asked;    /* by the caller: opening again must ask for the same */
  struct zps_nested *inner;        /* of a scheme within which rounds over servers are run; NULL: none, or not by us */
  struct zenps_tensor *gather;     /* of its allgathers; NULL: there was none yet */
  struct zenps_tensor *gather_of;  /* it is that one of this tensor; NULL: of none */
  struct zps_automatic *automatic; /* the choice that it is a variant of; NULL: none */
  bool is_automatic;               /* it is the variant that the trainer holds, and `automatic` belongs to it */
  struct zps_agree *agree;         /* of that one: how its ranks agree on schemes */
  atomic_bool is_closed;           /* by zenps_tensor_close(), or about to be: it takes no operations */

  /* Guarded by the job's lock. */
  uint64_t next_step;       /* of a stateful scheme, whose steps ascend */
  struct zps_round *active; /* in flight, or lingering after a failure */
  struct zps_round *spare;
  struct zps_round *kept;               /* over, with what they pushed (worker/round/replay.h) */
  struct zps_owner_table *owner_tables; /* all that `core.owners` has been; the last one is the first */
  unsigned n_active;
  unsigned n_requests; /* of the trainer's, not done yet */
  struct zps_tensor_tally tally;
};

static inline struct zenps_tensor *zps_worker_tensor_of(const struct zps_round_tensor *core) {
  return zps_container_of((uintptr_t)core, struct zenps_tensor, core);
}

/* The tensor that the trainer opened: the one that this is a variant of, or runs the allgathers of; else this. */
static inline const struct zenps_tensor *zps_worker_tensor_root(const struct zenps_tensor *tensor) {
  if (tensor->gather_of) return tensor->gather_of;
  return tensor->automatic ? zps_worker_tensor_of(tensor->automatic->tensor) : tensor;
}
/* zenps_tensor_open(), for names of the library's own too. */
zenps_status_t zps_worker_tensor_open(struct zenps_job *job, const char *name, uint64_t rows, uint32_t width,
                                      enum zps_dtype dtype, const zenps_tensor_options_t *options,
                                      struct zenps_tensor **tensor_p);
/* No round may be in flight. */
void zps_worker_tensor_destroy(struct zenps_tensor *tensor);
/* Frees all of the tensor but the struct itself and its name. */
void zps_worker_tensor_fini(struct zenps_tensor *tensor);
/* The error of an operation on a tensor that is closed. */
zps_err_t zps_worker_tensor_check(const struct zenps_tensor *tensor, struct zps_error *error) ZPS_MUSTCHECK;
/* The caller holds the job's lock. A round for `step`, spare or new: ZPS_ERR_BUSY when the step is in flight,
 * ZPS_ERR_AGAIN when too many are, ZPS_ERR_STALE when a stateful scheme had a later one. A push
 * and a pull of one step may be in flight together. */
zps_err_t zps_worker_tensor_round_get(struct zenps_tensor *tensor, uint64_t step, bool only_gives, bool only_takes,
                                      struct zps_round **round_p) ZPS_MUSTCHECK;
/* How long spare rounds of a job are kept. */
struct zps_spares {
  uint64_t trim_ns, trim_until_ns; /* trim_ns holds until trim_until_ns; then ZPS_SLAB_IDLE_NS does */
};
/* On the engine thread: destroys a spare round of the job that was not wanted for a while, with all that it holds; one
 * a call. Returns when it wants to be called again; ZPS_NEVER while there is none. */
uint64_t zps_worker_tensors_age(void *job, uint64_t now_ns);
/* For half a minute, spare rounds are kept no longer than `keep_ns`. */
void zps_worker_tensors_trim(struct zenps_job *job, uint64_t keep_ns, uint64_t now_ns);
/* Outside the job's lock: prepares the round, then hands it to the engine thread. */
void zps_worker_round_start(struct zps_round *round);
/* Before that, under the lock: sets it up for a request, whose round it becomes. */
void zps_worker_round_setup(struct zps_round *round, struct zenps_request *request,
                            const struct zps_round_start *start);
/* Under the job's lock, when no thread is left that could: requests of rounds in flight end with ZPS_ERR_CLOSED. */
void zps_worker_tensor_rounds_end(struct zenps_tensor *tensor);
/* No round of the tensor may be in flight. */
void zps_worker_tensor_rounds_destroy(struct zenps_tensor *tensor);
/* Starts a round, as zenps_allreduce(); arguments were checked, except for `step`. */
zenps_status_t zps_worker_allreduce(struct zenps_tensor *tensor, uint64_t step, const zenps_grad_t *in,
                                    zenps_grad_t *out, zenps_request_t **request_p);

#endif
