#include "worker/api/operation.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "worker/api/job.h"
#include "worker/api/request.h"

/* The result is an array of some rows alone. */
static bool is_compact(const struct zenps_tensor *tensor, const struct zps_operation *operation) {
  const struct zps_wants *wants = operation->wants;
  const bool is_part = wants && (wants->by_row || wants->count < tensor->core.shape.rows);
  return is_part && operation->out && operation->out->layout == ZENPS_DENSE;
}

static uint64_t timeout_ms(const struct zenps_request *request, const struct zps_operation *operation) {
  const uint64_t now_ns = zps_clock_ns(), until_ns = operation->deadline_ns;
  if (until_ns == 0) return request->job->options.round_timeout_ms;
  return until_ns > now_ns + ZPS_NS_PER_MS ? (until_ns - now_ns) / ZPS_NS_PER_MS : 1;
}

/* A missing gradient or result is replaced by the request's empty list. */
static void setup(struct zps_round *round, struct zenps_request *request, uint64_t step,
                  const struct zps_operation *operation) {
  const zenps_grad_t *in = operation->in ? operation->in : &request->nothing;
  zenps_grad_t *out = operation->out ? operation->out : &request->nothing, *into = NULL;
  if (is_compact(request->tensor, operation)) {
    into = out;
    out = &request->nothing;
  }
  struct zps_grad_parts *const parts = request->parts = operation->parts;
  request->wants = operation->wants;
  zps_result_init(&request->result, operation->out,
                  zps_row_bytes(request->tensor->core.shape.width, request->tensor->core.shape.dtype));
  zps_worker_round_setup(
      round, request,
      &(struct zps_round_start){.step = step,
                                .timeout_ms = timeout_ms(request, operation),
                                .in = in,
                                .out = out,
                                .in_sections = parts && parts->in_sections.list ? &parts->in_sections : NULL,
                                .out_sections = parts && parts->out_sections.list ? &parts->out_sections : NULL,
                                .split = parts && parts->split.parts ? &parts->split : NULL,
                                .only_gives = !operation->out,
                                .only_takes = !operation->in,
                                .is_canceled = request->is_canceled,
                                .wants = operation->wants,
                                .seeks = operation->seeks,
                                .staleness = operation->staleness,
                                .into = into});
}

static void note_stream(struct zenps_request *request, unsigned i, const zenps_grad_t *grad) {
  request->streams[i].is_used = grad && grad->memory == ZENPS_DEVICE;
  if (request->streams[i].is_used) request->streams[i].stream = grad->stream;
}

zenps_status_t zps_worker_operation_note(struct zenps_tensor *tensor, struct zenps_request *request,
                                         const struct zps_operation *given) {
  const uint64_t rows = tensor->core.shape.rows, out_rows = is_compact(tensor, given) ? given->wants->count : rows;
  struct zps_error error;
  zps_worker_request_made(request);
  zps_err_t err = given->in ? zps_worker_use_arrays(tensor, given->in, false, rows, &request->memory, &error) : ZPS_OK;
  if (err == ZPS_OK && given->out)
    err = zps_worker_use_arrays(tensor, given->out, true, out_rows, &request->memory, &error);
  note_stream(request, 0, given->in);
  note_stream(request, 1, given->out);
  if (err == ZPS_OK) return ZENPS_OK;
  zps_worker_memory_unuse(&request->memory);
  return zps_worker_raise(&error);
}

zenps_status_t zps_worker_operation_begin(struct zenps_tensor *tensor, uint64_t step, struct zenps_request *request,
                                          const struct zps_operation *operation, struct zps_round **prepare_p) {
  struct zenps_job *job = tensor->job;
  *prepare_p = NULL;
  struct zps_round *round;
  const zenps_status_t status = zps_worker_job_check(job);
  if (status != ZENPS_OK) return status;
  struct zps_error error;
  if (zps_worker_tensor_check(tensor, &error) != ZPS_OK) return zps_worker_raise(&error);
  const zps_err_t err = zps_worker_tensor_round_get(tensor, step, !operation->out, !operation->in, &round);
  if (err == ZPS_ERR_BUSY) {
    return zps_worker_fail(
        err, "job %s, tensor %s: step %" PRIu64 " is in flight here, or failed and is still being given up",
        job->options.job, tensor->core.name, step);
  }
  if (err == ZPS_ERR_AGAIN) {
    return zps_worker_fail(err, "job %s, tensor %s: %u steps are in flight, as many as may be", job->options.job,
                           tensor->core.name, ZPS_TENSOR_ROUNDS_MAX);
  }
  if (err == ZPS_ERR_STALE) {
    return zps_worker_fail(
        ZPS_ERR_INVALID, "job %s, tensor %s: step %" PRIu64 " after step %" PRIu64 "; scheme %s wants steps to ascend",
        job->options.job, tensor->core.name, step, tensor->next_step - 1, tensor->core.peer->scheme->name);
  }
  if (err != ZPS_OK)
    return zps_worker_fail(err, "tensor %s, step %" PRIu64 ": %s", tensor->core.name, step, zps_err_str(err));
  setup(round, request, step, operation);
  tensor->n_requests++;
  if (round->ops->prepare)
    *prepare_p = round;
  else
    zps_round_launch(round);
  return ZENPS_OK;
}

zenps_status_t zps_worker_start(struct zenps_tensor *tensor, uint64_t step, const struct zps_operation *given,
                                zenps_request_t **request_p) {
  struct zps_operation operation = *given;
  struct zenps_request *request;
  struct zps_error error;
  struct zps_round *round;
  if (zps_worker_request_create(tensor, &request) != ZPS_OK) {
    return zps_worker_fail(ZPS_ERR_NOMEM, "tensor %s, step %" PRIu64 ": no memory for a request", tensor->core.name,
                           step);
  }
  if (!given->parts && zps_grad_parts_create(tensor, given->in, given->out, &operation.parts, &error) != ZPS_OK) {
    zps_worker_request_destroy(request);
    return zps_first_call(tensor->job, zps_worker_raise(&error));
  }
  if (operation.parts) {
    operation.in = operation.parts->in;
    operation.out = operation.parts->out;
  }
  pthread_mutex_lock(&tensor->job->lock);
  zenps_status_t status = zps_worker_operation_note(tensor, request, given);
  if (status == ZENPS_OK) status = zps_worker_operation_begin(tensor, step, request, &operation, &round);
  if (status != ZENPS_OK) zps_worker_memory_unuse(&request->memory);
  pthread_mutex_unlock(&tensor->job->lock);
  if (status != ZENPS_OK) {
    if (!given->parts) zps_grad_parts_destroy(operation.parts);
    zps_worker_request_destroy(request);
    return zps_first_call(tensor->job, status);
  }
  if (round) zps_worker_round_start(round);
  *request_p = request;
  return ZENPS_OK;
}
