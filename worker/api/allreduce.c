#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "worker/api/job.h"
#include "worker/api/operation.h"
#include "worker/api/request.h"
#include "worker/choice/auto.h"

/*
 * Allreduces under auto that cannot begin yet, since ranks have not agreed on the scheme that their step runs as, or
 * their gradient is still to be looked at. The job's thread for what waits (deferred_thread.h) takes part in the
 * agreement, and begins the rounds in the order of the calls once the scheme is known. So zenps_allreduce() returns at
 * once.
 */

struct zps_deferred {
  struct zps_deferred *next;
  struct zenps_tensor *tensor;
  struct zenps_request *request;
  struct zps_operation operation;
  zenps_grad_t in; /* a copy, as rounds make one: many a caller's is gone when the call returns */
  struct zps_automatic_turn turn;
  uint64_t n_learned; /* of the tensor's choice, when it was looked at last */
};

/* ------------------------------------------------------------ the list */

static void list_remove(struct zps_deferred_thread *waiting, const struct zps_deferred *waiter) {
  struct zps_deferred **link = &waiting->first;
  while (*link != waiter) link = &(*link)->next;
  *link = waiter->next;
  if (!*link) waiting->last_p = link;
}

static const struct zps_deferred *first_of(const struct zps_deferred_thread *waiting,
                                           const struct zenps_tensor *tensor) {
  const struct zps_deferred *waiter = waiting->first;
  while (waiter && waiter->tensor != tensor) waiter = waiter->next;
  return waiter;
}

static zenps_status_t check_new(const struct zenps_tensor *tensor, uint64_t step) {
  const struct zenps_job *const job = tensor->job;
  unsigned n = 0;
  struct zps_error error;
  if (zps_worker_tensor_check(tensor, &error) != ZPS_OK) return zps_worker_raise(&error);
  for (const struct zps_deferred *waiter = job->waiting.first; waiter; waiter = waiter->next) {
    if (waiter->tensor != tensor) continue;
    n++;
    if (waiter->turn.step == step)
      return zps_worker_fail(ZPS_ERR_BUSY, "job %s, tensor %s: step %" PRIu64 " is in flight here", job->options.job,
                             tensor->core.name, step);
  }
  if (n < ZPS_TENSOR_ROUNDS_MAX) return ZENPS_OK;
  return zps_worker_fail(ZPS_ERR_AGAIN, "job %s, tensor %s: %u steps are in flight, as many as may be",
                         job->options.job, tensor->core.name, n);
}

/* ------------------------------------------------------------ the thread: under the job's lock, unless it waits */

/* The request ends without a round; it may be gone when this returns. */
static void give_up(struct zps_deferred *waiter, const zenps_error_t *error) {
  struct zenps_tensor *const tensor = waiter->tensor;
  struct zenps_job *const job = tensor->job;
  struct zenps_request *const request = waiter->request;
  list_remove(&job->waiting, waiter);
  request->error = *error;
  request->error.step = waiter->turn.step;
  snprintf(request->error.tensor, sizeof request->error.tensor, "%s", tensor->core.name);
  request->stats.scheme = "auto";
  request->is_waiting = false;
  zps_first_round(job, request, false);
  zps_worker_memory_unuse(&request->memory);
  request->done = true;
  zps_worker_request_pass(request);
  tensor->n_requests--;
  free(waiter);
  zps_worker_request_signal(job);
}

static void begin(struct zps_deferred *waiter, struct zps_round_tensor *picked) {
  struct zenps_tensor *const tensor = waiter->tensor, *const variant = zps_worker_tensor_of(picked);
  struct zenps_request *const request = waiter->request;
  struct zps_round *round;
  zps_worker_request_aim(request, variant);
  const zenps_status_t status =
      zps_worker_operation_begin(variant, waiter->turn.step, request, &waiter->operation, &round);
  if (status != ZENPS_OK) {
    give_up(waiter, zenps_last_error());
    return;
  }
  list_remove(&tensor->job->waiting, waiter);
  tensor->n_requests--; /* it is the variant's from here on */
  request->is_waiting = false;
  if (round) zps_worker_round_start(round); /* under the lock: the trainer has the request, and may cancel it */
  free(waiter);
}

/* The failure of the last agreement is why, if it has failed. */
static void give_up_late(struct zps_deferred *waiter) {
  const struct zenps_job *const job = waiter->tensor->job;
  const zenps_error_t *const failure = &waiter->tensor->automatic->failure;
  const bool has_failed = failure->status != ZENPS_OK;
  zenps_error_t error;
  zps_worker_detail(&error, has_failed ? (zps_err_t)failure->status : ZPS_ERR_TIMEOUT,
                    "tensor %s, step %" PRIu64
                    ": after %g s its ranks have not agreed on the scheme that it runs as%s%.300s",
                    waiter->tensor->core.name, waiter->turn.step, (double)job->options.round_timeout_ms / 1000,
                    has_failed ? ": " : "", has_failed ? failure->text : "");
  give_up(waiter, &error);
}

static void give_up_closed(struct zps_deferred *waiter) {
  zenps_error_t error;
  zps_worker_detail(&error, ZPS_ERR_CLOSED,
                    "job %s, tensor %s, step %" PRIu64 ": the job was closed here, before the round began",
                    waiter->tensor->core.job, waiter->tensor->core.name, waiter->turn.step);
  give_up(waiter, &error);
}

/* The lock is given up while the gradient is looked at. */
static void go_on(struct zps_deferred *waiter) {
  struct zenps_job *const job = waiter->tensor->job;
  struct zps_automatic *const automatic = waiter->tensor->automatic;
  struct zps_round_tensor *picked;
  zenps_error_t why = {.status = ZENPS_OK};
  const bool asks = waiter->turn.due && !job->failed;
  if (job->waiting.ends) {
    give_up_closed(waiter);
    return;
  }
  if (asks) {
    const zenps_status_t asked = zps_automatic_ask(automatic, &waiter->turn, waiter->operation.in,
                                                   waiter->operation.out, waiter->operation.deadline_ns);
    if (asked != ZENPS_OK) why = *zenps_last_error();
  }
  if (asks && first_of(&job->waiting, waiter->tensor) != waiter) {
    waiter->n_learned = automatic->n_learned - 1;
    return;
  }
  waiter->n_learned = automatic->n_learned;
  if (zps_automatic_look(automatic, waiter->turn.step, &waiter->turn, &picked) != ZENPS_OK)
    give_up(waiter, zenps_last_error());
  else if (picked && (asks || !waiter->turn.due))
    begin(waiter, picked);
  else if (!picked && why.status != ZENPS_OK) /* a question about steps to come may fail: this one is not known */
    give_up(waiter, &why);
  else if (!picked && zps_clock_ns() >= waiter->operation.deadline_ns)
    give_up_late(waiter);
}

/* Whether there is something to be done for it. One that comes behind another of its tensor may only ask: the other
 * waits for the answer, too. */
static bool is_due(const struct zps_deferred *waiter, uint64_t now_ns) {
  const struct zenps_job *const job = waiter->tensor->job;
  if (job->failed || job->waiting.ends) return true;
  if (waiter->turn.due) return true;
  if (first_of(&job->waiting, waiter->tensor) != waiter) return false;
  return waiter->n_learned != waiter->tensor->automatic->n_learned || now_ns >= waiter->operation.deadline_ns;
}

static void try_again(struct zps_deferred_thread *waiting, uint64_t now_ns) {
  const struct zenps_job *const job = zps_container_of(waiting, struct zenps_job, waiting);
  waiting->again_ns = ZPS_NEVER;
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    if (!tensor->is_automatic) continue;
    const uint64_t again_ns = zps_automatic_retry(tensor->automatic, now_ns);
    if (again_ns < waiting->again_ns) waiting->again_ns = again_ns;
  }
}

static bool serve(struct zps_deferred_thread *waiting, uint64_t *until_ns) {
  const uint64_t now_ns = zps_clock_ns();
  if (now_ns >= waiting->again_ns) {
    try_again(waiting, now_ns);
    return true;
  }
  *until_ns = waiting->again_ns;
  for (struct zps_deferred *waiter = waiting->first; waiter; waiter = waiter->next) {
    if (is_due(waiter, now_ns)) {
      go_on(waiter);
      return true;
    }
    if (waiter->operation.deadline_ns < *until_ns) *until_ns = waiter->operation.deadline_ns;
  }
  return false;
}

/* ------------------------------------------------------------ a call that waits */

/* An allreduce of the trainer's tensor: `turn` is what zps_automatic_look() said of it, `given` as the caller has it,
 * `operation` with gradient and result as the round is given them. Its parts become the request's. */
static zenps_status_t defer(struct zenps_tensor *tensor, const struct zps_automatic_turn *turn,
                            const struct zps_operation *given, const struct zps_operation *operation,
                            zenps_request_t **request_p) {
  struct zps_deferred_thread *const waiting = &tensor->job->waiting;
  struct zenps_request *request;
  zenps_status_t status = check_new(tensor, turn->step);
  if (status != ZENPS_OK) return status;
  /* The first step of a tensor waits, so the thread is there before an agreement can fail. */
  if (zps_deferred_thread_start(waiting, serve) != ZPS_OK)
    return zps_worker_fail(ZPS_ERR_NOMEM, "tensor %s, step %" PRIu64 ": no thread to wait for its scheme",
                           tensor->core.name, turn->step);
  struct zps_deferred *const waiter = malloc(sizeof *waiter);
  if (!waiter || zps_worker_request_create(tensor, &request) != ZPS_OK) {
    free(waiter);
    return zps_worker_fail(ZPS_ERR_NOMEM, "tensor %s, step %" PRIu64 ": no memory for a request", tensor->core.name,
                           turn->step);
  }
  status = zps_worker_operation_note(tensor, request, given);
  if (status != ZENPS_OK) {
    zps_worker_request_destroy(request);
    free(waiter);
    return status;
  }
  *waiter = (struct zps_deferred){
      .tensor = tensor,
      .request = request,
      .operation = *operation,
      .in = *operation->in,
      .turn = *turn,
      .n_learned = tensor->automatic->n_learned - 1, /* it is to be looked at in any case */
  };
  waiter->operation.in = &waiter->in;
  waiter->operation.deadline_ns = zps_clock_ns() + tensor->job->options.round_timeout_ms * ZPS_NS_PER_MS;
  request->is_waiting = true;
  request->parts = operation->parts;
  tensor->n_requests++;
  *waiting->last_p = waiter;
  waiting->last_p = &waiter->next;
  pthread_cond_broadcast(&waiting->due);
  *request_p = request;
  return ZENPS_OK;
}

/* Whether the step can begin at once, and the coordinator be asked about steps to come at once, too, if it is to be. */
static bool is_ready(const struct zenps_tensor *tensor, const struct zps_automatic_turn *turn, const zenps_grad_t *in,
                     const struct zps_round_tensor *picked) {
  const bool can_ask = in->memory == ZENPS_HOST; /* nothing is waited for */
  return picked && (!turn->due || can_ask) && !first_of(&tensor->job->waiting, tensor);
}

/* Under the job's lock. The variant that the step runs as goes to *picked_p; NULL: the request waits for it. `given`:
 * as the caller has it; `operation`: as one array, which the choice wants to see. */
static zenps_status_t look(struct zenps_tensor *tensor, uint64_t step, const struct zps_operation *given,
                           const struct zps_operation *operation, struct zps_round_tensor **picked_p,
                           zenps_request_t **request_p) {
  struct zps_automatic_turn turn;
  const zenps_status_t status = zps_automatic_look(tensor->automatic, step, &turn, picked_p);
  if (status != ZENPS_OK) return status;
  if (!is_ready(tensor, &turn, operation->in, *picked_p)) {
    *picked_p = NULL;
    const zenps_status_t added = defer(tensor, &turn, given, operation, request_p);
    if (added != ZENPS_OK) zps_automatic_join(tensor->automatic, &turn);
    return added;
  }
  /* A question about steps to come may fail: this one is known. */
  if (turn.due) (void)zps_automatic_ask(tensor->automatic, &turn, operation->in, operation->out, zps_clock_ns());
  return ZENPS_OK;
}

static zenps_status_t allreduce_automatic(struct zenps_tensor *tensor, uint64_t step, const struct zps_operation *given,
                                          zenps_request_t **request_p) {
  struct zps_operation operation = *given, in_parts = *given;
  struct zps_round_tensor *picked;
  struct zps_error error;
  if (zps_grad_parts_create(tensor, given->in, given->out, &operation.parts, &error) != ZPS_OK)
    return zps_worker_raise(&error);
  in_parts.parts = operation.parts;
  if (operation.parts) {
    operation.in = operation.parts->in;
    operation.out = operation.parts->out;
  }
  pthread_mutex_lock(&tensor->job->lock);
  zenps_status_t status = look(tensor, step, given, &operation, &picked, request_p);
  pthread_mutex_unlock(&tensor->job->lock);
  if (status == ZENPS_OK && picked) status = zps_worker_start(zps_worker_tensor_of(picked), step, &in_parts, request_p);
  if (status != ZENPS_OK) zps_grad_parts_destroy(operation.parts);
  return status;
}

zenps_status_t zps_worker_allreduce(struct zenps_tensor *tensor, uint64_t step, const zenps_grad_t *in,
                                    zenps_grad_t *out, zenps_request_t **request_p) {
  const struct zps_operation operation = {.in = in, .out = out};
  return tensor->is_automatic ? zps_first_call(tensor->job, allreduce_automatic(tensor, step, &operation, request_p))
                              : zps_worker_start(tensor, step, &operation, request_p);
}

zenps_status_t zenps_allreduce(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out,
                               zenps_request_t **request) {
  struct zps_error error;
  if (!tensor || !in || !out || !request) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_allreduce: tensor, in, out or request is NULL");
  }
  if (zps_worker_forked(tensor->job)) return zps_worker_fail_forked();
  if (zps_worker_check_in(tensor, in, &error) != ZPS_OK ||
      zps_worker_check_out(tensor, out, tensor->core.shape.rows, &error) != ZPS_OK ||
      zps_worker_check_pair(tensor, in, out, &error) != ZPS_OK)
    return zps_first_call(tensor->job, zps_worker_raise(&error));
  return zps_worker_allreduce(tensor, step, in, out, request);
}
