/* A request: the trainer's handle of an operation, with its outcome and costs. */
#ifndef ZPS_WORKER_API_REQUEST_H
#define ZPS_WORKER_API_REQUEST_H

#include "worker/api/registered.h"
#include "worker/api/tensor.h"
#include "worker/round/round.h"

struct zenps_request {
  struct zenps_tensor *tensor;
  /* Guarded by the job's lock; final once `done`. */
  bool done;
  struct zps_round *round;      /* while not done */
  struct zps_memory_use memory; /* likewise */
  zenps_error_t error;          /* status, and why */
  zenps_request_stats_t stats;
  struct zps_row_arrays row_arrays; /* the library's result arrays */
  struct zps_worker_device *device; /* of those in its memory: */
  void *rows_on_device, *values_on_device;
  uint32_t *sent, *in_union; /* per partition */
  int64_t *contributed;      /* rows of the gradient that the result is made of; NULL: nothing is told */
  uint64_t n_contributed;
  struct zps_wants *wants; /* rows that it asks for; NULL: none by name */
  zenps_grad_t nothing;    /* a gradient or result that the operation does not have; a list for one that is compact */
  /* For the library's own requests, which no thread waits for: called on the engine thread when the request is done.
   * Else NULL. */
  void (*then)(struct zenps_request *request, const struct zps_round *round);
  void *then_ctx;
};

zps_err_t zps_worker_request_create(struct zenps_tensor *tensor, struct zenps_request **request_p) ZPS_MUSTCHECK;
void zps_worker_request_destroy(struct zenps_request *request);
/* One of the job's requests is done; without the lock, so that a thread that waits for it finds it free. */
void zps_worker_request_signal(struct zenps_job *job);

#endif
