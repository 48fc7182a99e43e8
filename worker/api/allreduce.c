#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"
#include "worker/api/request.h"
#include "worker/api/tensor.h"
#include "worker/choice/auto.h"
#include "worker/device/device.h"

static zps_err_t check_common(const zenps_grad_t *grad, const char *which, const struct zenps_tensor *tensor,
                              struct zps_error *error) {
  if (grad->struct_size < sizeof *grad) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %s->struct_size is %zu; initialise it with ZENPS_GRAD_INIT()",
                    tensor->core.name, which, grad->struct_size);
  }
  if (grad->memory != ZENPS_HOST && grad->memory != ZENPS_DEVICE) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %s->memory is %d, none of ZENPS_HOST, ZENPS_DEVICE",
                    tensor->core.name, which, (int)grad->memory);
  }
  if (grad->layout != ZENPS_DENSE && grad->layout != ZENPS_ROWS) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %s->layout is %d, none of ZENPS_DENSE, ZENPS_ROWS",
                    tensor->core.name, which, (int)grad->layout);
  }
  if (grad->layout == ZENPS_DENSE && !grad->values) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %s->values is NULL; dense needs %" PRIu64 " x %" PRIu32 " values", tensor->core.name,
                    which, tensor->core.shape.rows, tensor->core.shape.width);
  }
  return ZPS_OK;
}

static zps_err_t check_grads(const struct zenps_tensor *tensor, const zenps_grad_t *in, const zenps_grad_t *out,
                             struct zps_error *error) {
  zps_err_t err = check_common(in, "in", tensor, error);
  if (err == ZPS_OK) err = check_common(out, "out", tensor, error);
  if (err != ZPS_OK) return err;
  if (in->layout == ZENPS_ROWS && in->nnz > 0 && (!in->row_ids || !in->values)) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: in->nnz is %" PRIu64 ", but row_ids or values is NULL",
                    tensor->core.name, in->nnz);
  }
  if (out->layout == ZENPS_ROWS && !out->row_ids != !out->values) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: of out->row_ids and out->values one is NULL; give both arrays, or none",
                    tensor->core.name);
  }
  if (out->values && out->values == in->values && in->memory != out->memory) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: in and out share their values, but not their memory",
                    tensor->core.name);
  }
  if (out->values && out->values == in->values && (in->layout == ZENPS_ROWS) != (out->layout == ZENPS_ROWS)) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: in and out share their values, but not their layout",
                    tensor->core.name);
  }
  return ZPS_OK;
}

/* Entries that the caller's arrays have. */
static uint64_t entries_of(const struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out) {
  if (grad->layout == ZENPS_DENSE) return tensor->core.shape.rows;
  return is_out ? grad->capacity : grad->nnz;
}

/* Checks a gradient or result in device memory: there is such a device, and the arrays are in its memory. */
static zps_err_t check_device(struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out,
                              struct zps_error *error) {
  const char *const which = is_out ? "out" : "in";
  const uint64_t n = entries_of(tensor, grad, is_out);
  struct zps_worker_device *device;
  struct zps_error why;
  if (grad->memory == ZENPS_HOST) return ZPS_OK;
  if (!is_out && tensor->core.partitioner == ZPS_PARTITIONER_HIERARCHICAL && !tensor->core.works_in_host &&
      grad->layout == ZENPS_ROWS)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: in is a list of rows in device memory, where Algorithm 1 partitions dense gradients "
                    "alone: give it dense, or in host memory, or open the tensor with another partitioner",
                    tensor->core.name);
  zps_err_t err = zps_worker_device_get(tensor->job, grad->device, &device, &why);
  if (err == ZPS_OK && grad->values && n > 0)
    err = device->device->ops->check(device->device, grad->values,
                                     (size_t)n * zps_row_bytes(tensor->core.shape.width, tensor->core.dtype), &why);
  if (err == ZPS_OK && grad->layout == ZENPS_ROWS && grad->row_ids && n > 0)
    err = device->device->ops->check(device->device, grad->row_ids, (size_t)n * sizeof *grad->row_ids, &why);
  if (err == ZPS_OK) err = zps_worker_device_table(tensor, device, &why);
  return err == ZPS_OK
             ? err
             : zps_fail(error, err, "tensor %s: %s is in device memory: %s", tensor->core.name, which, why.text);
}

static zps_err_t use_arrays(const struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out,
                            struct zps_memory_use *use, struct zps_error *error) {
  const size_t n = (size_t)entries_of(tensor, grad, is_out);
  char what[160];
  snprintf(what, sizeof what, "tensor %s: %s->values", tensor->core.name, is_out ? "out" : "in");
  zps_err_t err = zps_worker_memory_use(tensor->job, use, grad->memory, grad->values,
                                        n * zps_row_bytes(tensor->core.shape.width, tensor->core.dtype), what, error);
  if (err != ZPS_OK || grad->layout != ZENPS_ROWS) return err;
  snprintf(what, sizeof what, "tensor %s: %s->row_ids", tensor->core.name, is_out ? "out" : "in");
  return zps_worker_memory_use(tensor->job, use, grad->memory, grad->row_ids, n * sizeof *grad->row_ids, what, error);
}

/* Under the job's lock. *prepare_p: the round, where it has something to prepare before it is launched; else NULL. */
static zenps_status_t begin(struct zenps_tensor *tensor, uint64_t step, struct zenps_request *request,
                            const zenps_grad_t *in, zenps_grad_t *out, struct zps_round **prepare_p) {
  struct zenps_job *job = tensor->job;
  *prepare_p = NULL;
  struct zps_round *round;
  const zenps_status_t status = zps_worker_job_check(job);
  if (status != ZENPS_OK) return status;
  struct zps_error error;
  zps_err_t err = use_arrays(tensor, in, false, &request->memory, &error);
  if (err == ZPS_OK) err = use_arrays(tensor, out, true, &request->memory, &error);
  if (err != ZPS_OK) return zps_worker_raise(&error);
  err = zps_worker_tensor_round_get(tensor, step, &round);
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
  zps_worker_round_setup(round, request, step, in, out, job->options.round_timeout_ms);
  if (round->ops->prepare)
    *prepare_p = round;
  else
    zps_round_launch(round);
  return ZENPS_OK;
}

zenps_status_t zps_worker_allreduce(struct zenps_tensor *tensor, uint64_t step, const zenps_grad_t *in,
                                    zenps_grad_t *out, zenps_request_t **request_p) {
  struct zenps_request *request;
  struct zps_round *round;
  if (tensor->is_automatic) {
    struct zps_round_tensor *picked;
    const zenps_status_t status = zps_automatic_pick(tensor->automatic, step, in, out, &picked);
    if (status != ZENPS_OK) return status;
    tensor = zps_worker_tensor_of(picked);
  }
  if (zps_worker_request_create(tensor, &request) != ZPS_OK) {
    return zps_worker_fail(ZPS_ERR_NOMEM, "tensor %s, step %" PRIu64 ": no memory for a request", tensor->core.name,
                           step);
  }
  pthread_mutex_lock(&tensor->job->lock);
  const zenps_status_t status = begin(tensor, step, request, in, out, &round);
  if (status != ZENPS_OK) zps_worker_memory_unuse(&request->memory);
  pthread_mutex_unlock(&tensor->job->lock);
  if (status != ZENPS_OK) {
    zps_worker_request_destroy(request);
    return status;
  }
  if (round) zps_worker_round_start(round);
  *request_p = request;
  return ZENPS_OK;
}

zenps_status_t zenps_allreduce(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out,
                               zenps_request_t **request) {
  struct zps_error error;
  if (!tensor || !in || !out || !request) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_allreduce: tensor, in, out or request is NULL");
  }
  if (zps_worker_forked(tensor->job)) return zps_worker_fail_forked();
  if (check_grads(tensor, in, out, &error) != ZPS_OK || check_device(tensor, in, false, &error) != ZPS_OK ||
      check_device(tensor, out, true, &error) != ZPS_OK)
    return zps_worker_raise(&error);
  return zps_worker_allreduce(tensor, step, in, out, request);
}
