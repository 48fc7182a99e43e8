/* Gradients and results as callers give them: what can be told to be wrong at once. */
#include <inttypes.h>
#include <stdio.h>

#include "worker/api/nested.h"
#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"
#include "worker/api/operation.h"
#include "worker/device/device.h"

static zps_err_t check_common(const zenps_grad_t *grad, const char *which, const struct zenps_tensor *tensor,
                              uint64_t dense_rows, struct zps_error *error) {
  const zps_err_t err = zps_worker_tensor_check(tensor, error);
  if (err != ZPS_OK) return err;
  if (grad->struct_size < sizeof *grad) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %s->struct_size is %zu; initialise it with ZENPS_GRAD_INIT()",
                    tensor->core.name, which, grad->struct_size);
  }
  if (grad->memory != ZENPS_HOST && grad->memory != ZENPS_DEVICE) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %s->memory is %d, none of ZENPS_HOST, ZENPS_DEVICE",
                    tensor->core.name, which, (int)grad->memory);
  }
  if (grad->n_parts > 0) return zps_grad_parts_check(tensor, grad, which[0] == 'o', error);
  if (grad->layout != ZENPS_DENSE && grad->layout != ZENPS_ROWS) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %s->layout is %d, none of ZENPS_DENSE, ZENPS_ROWS",
                    tensor->core.name, which, (int)grad->layout);
  }
  if (grad->layout == ZENPS_DENSE && !grad->values) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %s->values is NULL; dense needs %" PRIu64 " x %" PRIu32 " values", tensor->core.name,
                    which, dense_rows, tensor->core.shape.width);
  }
  return ZPS_OK;
}

/* Entries that the caller's arrays have. */
static uint64_t entries_of(const zenps_grad_t *grad, bool is_out, uint64_t dense_rows) {
  if (grad->layout == ZENPS_DENSE) return dense_rows;
  return is_out ? grad->capacity : grad->nnz;
}

/* Checks a gradient or result in device memory: there is such a device, and the arrays are in its memory. */
static zps_err_t check_device(struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out, uint64_t dense_rows,
                              struct zps_error *error) {
  const char *const which = is_out ? "out" : "in";
  const uint64_t n = entries_of(grad, is_out, dense_rows);
  struct zps_worker_device *device;
  struct zps_error why;
  if (grad->memory == ZENPS_HOST) return ZPS_OK;
  zps_err_t err = zps_worker_device_get(tensor->job, grad->device, &device, &why);
  if (err == ZPS_OK && grad->values && n > 0)
    err = device->device->ops->check(device->device, grad->values,
                                     (size_t)n * zps_row_bytes(tensor->core.shape.width, tensor->core.dtype), &why);
  if (err == ZPS_OK && grad->layout == ZENPS_ROWS && grad->row_ids && n > 0)
    err = device->device->ops->check(device->device, grad->row_ids, (size_t)n * sizeof *grad->row_ids, &why);
  if (err == ZPS_OK) err = zps_worker_device_table(tensor, device, &why);
  if (err == ZPS_OK && tensor->inner) err = zps_worker_device_table(tensor->inner->tensor, device, &why);
  return err == ZPS_OK
             ? err
             : zps_fail(error, err, "tensor %s: %s is in device memory: %s", tensor->core.name, which, why.text);
}

zps_err_t zps_worker_check_in(struct zenps_tensor *tensor, const zenps_grad_t *in, struct zps_error *error) {
  const zps_err_t err = check_common(in, "in", tensor, tensor->core.shape.rows, error);
  if (err != ZPS_OK || in->n_parts > 0) return err;
  if (in->layout == ZENPS_ROWS && in->nnz > 0 && (!in->row_ids || !in->values)) {
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: in->nnz is %" PRIu64 ", but row_ids or values is NULL",
                    tensor->core.name, in->nnz);
  }
  if (in->contributes != 0 && in->contributes != 1)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: in->contributes is %d; 0 or 1 can be", tensor->core.name,
                    (int)in->contributes);
  return check_device(tensor, in, false, tensor->core.shape.rows, error);
}

zps_err_t zps_worker_check_out(struct zenps_tensor *tensor, const zenps_grad_t *out, uint64_t dense_rows,
                               struct zps_error *error) {
  const zps_err_t err = check_common(out, "out", tensor, dense_rows, error);
  if (err != ZPS_OK || out->n_parts > 0) return err;
  if (out->layout == ZENPS_ROWS && !out->row_ids != !out->values) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: of out->row_ids and out->values one is NULL; give both arrays, or none",
                    tensor->core.name);
  }
  return check_device(tensor, out, true, dense_rows, error);
}

zps_err_t zps_worker_check_pair(struct zenps_tensor *tensor, const zenps_grad_t *in, const zenps_grad_t *out,
                                struct zps_error *error) {
  if (in->n_parts > 0 || out->n_parts > 0) return ZPS_OK;
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

static zps_err_t use_part(const struct zenps_tensor *tensor, const zenps_part_t *part, bool is_out,
                          struct zps_memory_use *use, struct zps_error *error) {
  const bool is_list = part->layout == ZENPS_ROWS;
  const size_t n = (size_t)(is_list ? (is_out ? part->capacity : part->nnz) : part->n_rows);
  char what[192];
  snprintf(what, sizeof what, "tensor %s: values of a part of %s", tensor->core.name, is_out ? "out" : "in");
  const zps_err_t err =
      zps_worker_memory_use(tensor->job, use, ZENPS_HOST, part->values,
                            n * zps_row_bytes(tensor->core.shape.width, tensor->core.shape.dtype), what, error);
  if (err != ZPS_OK || !is_list) return err;
  snprintf(what, sizeof what, "tensor %s: row_ids of a part of %s", tensor->core.name, is_out ? "out" : "in");
  return zps_worker_memory_use(tensor->job, use, ZENPS_HOST, part->row_ids, n * sizeof *part->row_ids, what, error);
}

zps_err_t zps_worker_use_arrays(const struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out,
                                uint64_t dense_rows, struct zps_memory_use *use, struct zps_error *error) {
  const size_t n = (size_t)entries_of(grad, is_out, dense_rows);
  char what[192];
  for (uint32_t i = 0; i < grad->n_parts; i++) {
    const zps_err_t err = use_part(tensor, &grad->parts[i], is_out, use, error);
    if (err != ZPS_OK) return err;
  }
  if (grad->n_parts > 0) return ZPS_OK;
  snprintf(what, sizeof what, "tensor %s: %s->values", tensor->core.name, is_out ? "out" : "in");
  zps_err_t err = zps_worker_memory_use(tensor->job, use, grad->memory, grad->values,
                                        n * zps_row_bytes(tensor->core.shape.width, tensor->core.dtype), what, error);
  if (err != ZPS_OK || grad->layout != ZENPS_ROWS) return err;
  snprintf(what, sizeof what, "tensor %s: %s->row_ids", tensor->core.name, is_out ? "out" : "in");
  return zps_worker_memory_use(tensor->job, use, grad->memory, grad->row_ids, n * sizeof *grad->row_ids, what, error);
}
