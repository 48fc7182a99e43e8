/* An operation of the API on a tensor: a gradient goes in, or a result comes out, or both. */
#ifndef ZPS_WORKER_API_OPERATION_H
#define ZPS_WORKER_API_OPERATION_H

#include "worker/api/grad_parts.h"
#include "worker/api/registered.h"
#include "worker/api/tensor.h"
#include "worker/round/pull_rows.h"

struct zps_operation {
  const zenps_grad_t *in;       /* NULL: nothing is pushed */
  zenps_grad_t *out;            /* NULL: no result */
  struct zps_wants *wants;      /* the request's, if it comes about; NULL: a push gets all of the sum */
  bool seeks;                   /* the newest sum of the step and those up to */
  uint32_t staleness;           /* steps before it */
  uint64_t deadline_ns;         /* 0: round_timeout_ms from its beginning on */
  struct zps_grad_parts *parts; /* the request's, too; NULL: `in` and `out` are none, or still to be made ready */
};

/* grads.c: whether gradient and result can be right. */
zps_err_t zps_worker_check_in(struct zenps_tensor *tensor, const zenps_grad_t *in,
                              struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_worker_check_out(struct zenps_tensor *tensor, const zenps_grad_t *out, uint64_t dense_rows,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* Of an operation with both. */
zps_err_t zps_worker_check_pair(struct zenps_tensor *tensor, const zenps_grad_t *in, const zenps_grad_t *out,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* Under the job's lock: notes the arrays that are in registered memory. */
zps_err_t zps_worker_use_arrays(const struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out,
                                uint64_t dense_rows, struct zps_memory_use *use, struct zps_error *error) ZPS_MUSTCHECK;

/* Starts it; `step` is not checked yet. Where it fails, `wants` stays the caller's. */
zenps_status_t zps_worker_start(struct zenps_tensor *tensor, uint64_t step, const struct zps_operation *operation,
                                zenps_request_t **request_p);
/* The parts of it, for an operation that begins later. Under the job's lock. Notes the caller's arrays, as used, and
 * their streams; on failure nothing is noted. */
zenps_status_t zps_worker_operation_note(struct zenps_tensor *tensor, struct zenps_request *request,
                                         const struct zps_operation *given);
/* Takes a round, sets it up, and launches it, unless it has something to prepare before: then it goes to *prepare_p,
 * else NULL does. `operation`: with gradient and result as the round is given them. */
zenps_status_t zps_worker_operation_begin(struct zenps_tensor *tensor, uint64_t step, struct zenps_request *request,
                                          const struct zps_operation *operation, struct zps_round **prepare_p);

#endif
