/*
 * Allgather: rows of all ranks, each copied bit for bit.
 *
 * It runs on a tensor of the library's own beside the trainer's, "@gather/NAME", which has the trainer's rows as bytes
 * and the operation "one": servers copy a row, and fail the step where two ranks give it. Its steps are its own.
 */
#include <stdio.h>
#include <string.h>

#include "worker/api/job.h"
#include "worker/api/operation.h"
#include "worker/api/tensor_impl.h"

#define PREFIX "@gather/"

/* Under the job's `open`. */
static zps_err_t open_beside(struct zenps_tensor *tensor, struct zps_error *error) {
  const struct zps_round_tensor *core = &tensor->core;
  const uint64_t row_bytes = zps_row_bytes(core->shape.width, core->shape.dtype);
  char name[sizeof core->name];
  zenps_tensor_options_t options;
  struct zps_tensor_ask asked;
  struct zenps_tensor *beside;
  if (tensor->gather) return ZPS_OK;
  if ((size_t)snprintf(name, sizeof name, PREFIX "%s", core->name) >= sizeof name)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: its name is too long for zenps_allgather(); %zu bytes at most can be", core->name,
                    sizeof name - sizeof PREFIX);
  if (row_bytes > 1u << 20)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: zenps_allgather() of rows of %llu bytes; 2^20 at most can be", core->name,
                    (unsigned long long)row_bytes);
  zenps_tensor_options_init(&options, sizeof options);
  options.group = tensor->group;
  zps_err_t err = zps_tensor_ask_make(tensor->job, name, core->shape.rows, (uint32_t)row_bytes, ZPS_DTYPE_U8, &options,
                                      &asked, error);
  if (err != ZPS_OK) return err;
  asked.spec.op = ZPS_OP_ONE;
  err = zps_worker_tensor_create(tensor->job, &asked, &beside, error);
  if (err != ZPS_OK) return err;
  beside->core.keeps_zero_rows = true;
  zps_worker_tensor_add(tensor->job, beside);
  beside->gather_of = tensor;
  tensor->gather = beside;
  return ZPS_OK;
}

/* A row that a rank gives twice would be added up before it is sent. */
static zps_err_t check_rows(const struct zenps_tensor *tensor, const zenps_grad_t *in, struct zps_error *error) {
  struct zps_wants *rows;
  struct zps_error why;
  zps_err_t err = zps_wants_create(&tensor->core.part, 0, in->nnz, in->nnz ? in->row_ids : NULL, &rows, &why);
  if (err != ZPS_OK) return zps_fail(error, err, "tensor %s: %s", tensor->core.name, why.text);
  for (uint64_t i = 1; i < in->nnz && err == ZPS_OK; i++)
    if (rows->by_row[i].key == rows->by_row[i - 1].key)
      err =
          zps_fail(error, ZPS_ERR_INVALID,
                   "tensor %s: in has row %llu twice, at positions %llu and %llu; zenps_allgather() copies a row that "
                   "one rank gives, once",
                   tensor->core.name, (unsigned long long)rows->by_row[i].key,
                   (unsigned long long)rows->by_row[i - 1].value, (unsigned long long)rows->by_row[i].value);
  zps_wants_destroy(rows);
  return err;
}

static zps_err_t check_layout(const struct zenps_tensor *tensor, const zenps_grad_t *in, const zenps_grad_t *out,
                              struct zps_error *error) {
  if (in->n_parts > 0 || out->n_parts > 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "tensor %s: %s is in parts: zenps_allgather() takes one list",
                    tensor->core.name, in->n_parts > 0 ? "in" : "out");
  if (in->layout != ZENPS_ROWS)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: in->layout is not ZENPS_ROWS: zenps_allgather() must know which rows this rank gives",
                    tensor->core.name);
  if (in->memory == ZENPS_HOST && out->memory == ZENPS_HOST) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED, "tensor %s: %s is in device memory: zenps_allgather() takes host memory",
                  tensor->core.name, in->memory == ZENPS_HOST ? "out" : "in");
}

zenps_status_t zenps_allgather(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out,
                               zenps_request_t **request) {
  struct zps_error error;
  if (!tensor || !in || !out || !request)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_allgather: tensor, in, out or request is NULL");
  struct zenps_job *job = tensor->job;
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  zps_err_t err = zps_worker_check_in(tensor, in, &error);
  if (err == ZPS_OK) err = zps_worker_check_out(tensor, out, tensor->core.shape.rows, &error);
  if (err == ZPS_OK) err = check_layout(tensor, in, out, &error);
  if (err == ZPS_OK) err = zps_worker_check_pair(tensor, in, out, &error);
  if (err == ZPS_OK) err = check_rows(tensor, in, &error);
  if (err != ZPS_OK) return zps_first_call(tensor->job, zps_worker_raise(&error));
  pthread_mutex_lock(&job->open);
  pthread_mutex_lock(&job->lock);
  const zenps_status_t status = zps_worker_job_check(job);
  pthread_mutex_unlock(&job->lock);
  if (status == ZENPS_OK) err = open_beside(tensor, &error);
  pthread_mutex_unlock(&job->open);
  if (status != ZENPS_OK) return zps_first_call(tensor->job, status);
  if (err != ZPS_OK) return zps_first_call(tensor->job, zps_worker_raise(&error));
  return zps_worker_start(tensor->gather, step, &(struct zps_operation){.in = in, .out = out}, request);
}
