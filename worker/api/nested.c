#include "worker/api/nested.h"

#include <stdlib.h>

#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/api/tensor.h"

static void over(struct zenps_request *request, const struct zps_round *round) {
  struct zps_nested_round *inner = request->then_ctx;
  inner->over(inner, round, &request->error);
}

static zps_err_t begin(struct zps_nested_service *service, struct zps_nested_round *inner) {
  struct zenps_tensor *tensor = ((struct zps_nested *)service)->tensor;
  struct zenps_request *request;
  struct zps_round *round;
  zps_err_t err = zps_worker_request_create(tensor, &request);
  if (err != ZPS_OK) return err;
  inner->handle = request;
  request->then = over;
  request->then_ctx = inner;
  request->seen_to = inner->seen_to;
  pthread_mutex_lock(&tensor->job->lock);
  err = zps_worker_tensor_round_get(tensor, inner->step, false, false, &round);
  if (err == ZPS_OK)
    zps_worker_round_setup(
        round, request,
        &(struct zps_round_start){
            .step = inner->step, .timeout_ms = inner->timeout_ms, .in = inner->in, .out = inner->out});
  pthread_mutex_unlock(&tensor->job->lock);
  if (err == ZPS_OK) zps_worker_round_start(round);
  return err;
}

static bool is_round(const struct zps_nested_round *inner, const struct zps_round *round) {
  return ((const struct zenps_request *)inner->handle)->round == round;
}

static void cancel(struct zps_nested_round *inner) {
  struct zenps_request *request = inner->handle;
  pthread_mutex_lock(&request->job->lock);
  zps_worker_request_cancel(request);
  pthread_mutex_unlock(&request->job->lock);
}

static void end(struct zps_nested_round *inner) {
  zps_worker_request_destroy(inner->handle);
  inner->handle = NULL;
}

zps_err_t zps_nested_create(struct zenps_tensor *tensor, struct zps_nested **inner_p) {
  struct zps_nested *inner = malloc(sizeof *inner);
  if (!inner) return ZPS_ERR_NOMEM;
  *inner = (struct zps_nested){
      .service = {.tensor = tensor->core.id, .begin = begin, .is_round = is_round, .cancel = cancel, .end = end},
      .tensor = tensor};
  *inner_p = inner;
  return ZPS_OK;
}
