/* A request: the trainer's handle of an operation, with its outcome and costs. */
#ifndef ZPS_WORKER_API_REQUEST_H
#define ZPS_WORKER_API_REQUEST_H

#include "worker/api/registered.h"
#include "worker/api/result.h"
#include "worker/api/tensor.h"
#include "worker/round/round.h"

struct zenps_request {
  struct zenps_job *job;       /* a reference */
  struct zenps_tensor *tensor; /* while not done: after that, it and all of the job but its lock may be gone */
  uint32_t n_parts;            /* of the tensor that the trainer opened */
  bool has_parts;              /* the request runs on the tensor that the trainer opened */
  /* Guarded by the job's lock; final once `done`. */
  bool done;
  struct zps_round *round;      /* while not done and not waiting */
  bool is_waiting;              /* its scheme is not known yet (allreduce.c) */
  bool is_canceled;             /* by the trainer, or with its job */
  struct zps_memory_use memory; /* while it is waiting */
  zenps_error_t error;          /* status, and why */
  zenps_request_stats_t stats;
  struct zps_result result;
  uint32_t *sent, *in_union; /* per partition */
  int64_t *contributed;      /* rows of the gradient that the result is made of; NULL: nothing is told */
  uint64_t n_contributed;
  uint8_t *late; /* late ranks, a bit each; NULL: none is, or there was no memory */
  uint32_t n_late_bytes;
  struct zps_grad_parts *parts; /* of its gradient and result; NULL: these are no parts */
  struct {
    bool is_used;
    void *stream;
  } streams[2];            /* of gradient and result in device memory, to which its round submits work */
  struct zps_word *word;   /* the word that streams wait for, set when it is done; NULL: none waits, or not any more */
  bool is_expired;         /* its deadline has passed, and its word is set */
  struct zps_wants *wants; /* rows that it asks for; NULL: none by name */
  zenps_grad_t nothing;    /* a gradient or result that the operation does not have; a list for one that is compact */
  uint64_t number;         /* of its round */
  uint64_t seen_to;        /* see struct zps_round; fixed when the trainer asks. 0: fixed as its round begins */
  struct zenps_request *unseen_next, **unseen_prev_p; /* begun, and the trainer has not seen its end; NULL: it has */
  /* For the library's own requests, which no thread waits for: called on the engine thread when the request is done.
   * Else NULL. */
  void (*then)(struct zenps_request *request, const struct zps_round *round);
  void *then_ctx;
};

zps_err_t zps_worker_request_create(struct zenps_tensor *tensor, struct zenps_request **request_p) ZPS_MUSTCHECK;
void zps_worker_request_destroy(struct zenps_request *request);
/* It is to run on this tensor: the trainer's, or the variant that was picked. */
void zps_worker_request_aim(struct zenps_request *request, struct zenps_tensor *tensor);
/* Under the job's lock: the trainer asks for it. What it has seen the ends of counts from here, as it is the same on
 * all ranks: its round may begin later, on some of them when the trainer has seen more. */
void zps_worker_request_made(struct zenps_request *request);
/* Under the job's lock: its round begins. Tells in `start` which rounds the trainer had seen the ends of. */
void zps_worker_request_begun(struct zenps_request *request, struct zps_round_start *start);
/* Under the job's lock: gives the operation up, unless it is done, or ends with the job. */
void zps_worker_request_cancel(struct zenps_request *request);
/* The request is done, and `rows` can be filled in. `call`: for texts. */
zenps_status_t zps_worker_request_check(const struct zenps_request *request, const zenps_grad_t *rows,
                                        const char *call);
/* Under the job's lock: streams that wait for it go on. */
void zps_worker_request_pass(struct zenps_request *request);
/* One of the job's requests is done; without the lock, so that a thread that waits for it finds it free. */
void zps_worker_request_signal(struct zenps_job *job);

#endif
