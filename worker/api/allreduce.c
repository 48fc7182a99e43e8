#include "common/base/clock.h"
#include "worker/api/job.h"
#include "worker/api/operation.h"
#include "worker/api/deferred.h"
#include "worker/choice/auto.h"

/* Whether the step can begin at once, and the coordinator be asked about steps to come at once, too, if it is to be. */
static bool is_ready(const struct zenps_tensor *tensor, const struct zps_automatic_turn *turn, const zenps_grad_t *in,
                     const struct zps_round_tensor *picked) {
  const bool can_ask = in->memory == ZENPS_HOST; /* nothing is waited for */
  return picked && (!turn->due || can_ask) && !zps_deferred_has(tensor);
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
    const zenps_status_t added = zps_deferred_add(tensor, &turn, given, operation, request_p);
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
