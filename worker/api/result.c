#include "worker/api/result.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/device/device.h"
#include "worker/round/round.h"

void zps_result_init(struct zps_result *result, const zenps_grad_t *out, size_t row_bytes) {
  *result = (struct zps_result){0};
  if (!out || out->layout != ZENPS_ROWS) return;
  *result = (struct zps_result){
      .is_ours = !out->row_ids, .memory = out->memory, .device_index = out->device, .row_bytes = row_bytes};
}

void zps_result_get(struct zps_result *result, struct zps_round *round) {
  result->nnz = round->stats.nnz_out;
  result->contributors = round->contributors;
  result->arrays = round->row_arrays;
  round->row_arrays = (struct zps_row_arrays){0};
  if (!round->on_device.rows) return;
  result->device = zps_worker_device_ref(round->device);
  result->rows_on_device = round->on_device.rows;
  result->values_on_device = round->on_device.values;
}

void zps_result_release(struct zps_result *result) {
  zps_row_arrays_give(&result->arrays);
  if (result->device) {
    struct zps_device *const device = result->device->device;
    device->ops->release(device, ZPS_MEMORY_DEVICE, result->rows_on_device);
    device->ops->release(device, ZPS_MEMORY_DEVICE, result->values_on_device);
    zps_worker_device_unref(result->device);
  }
  *result = (struct zps_result){0};
}

void zps_result_show(const struct zps_result *result, zenps_grad_t *rows) {
  rows->layout = ZENPS_ROWS;
  rows->memory = result->memory;
  rows->nnz = rows->capacity = result->nnz;
  rows->contributors = result->contributors;
  rows->row_ids = result->device ? result->rows_on_device : result->arrays.rows.data;
  rows->values = result->device ? result->values_on_device : result->arrays.values.data;
  rows->device = result->device_index;
  rows->stream = NULL;
}

/* ------------------------------------------------------------ fetched */

static zps_err_t check_out(const struct zps_result *result, const zenps_grad_t *out, struct zps_error *error) {
  if (out->n_parts > 0) return zps_fail(error, ZPS_ERR_UNSUPPORTED, "out is in parts; the kept result is one list");
  if (out->layout != ZENPS_ROWS)
    return zps_fail(error, ZPS_ERR_INVALID, "out->layout is %d; the result is ZENPS_ROWS", (int)out->layout);
  if (!out->row_ids != !out->values)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "of out->row_ids and out->values one is NULL; give both arrays, or none for the library's");
  if (out->memory != result->memory ||
      (out->memory == ZENPS_DEVICE && out->device >= 0 && out->device != result->device->index))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "out->memory is %d, out->device %d; the result is in memory %d%s, where the operation's out was",
                    (int)out->memory, out->device, (int)result->memory,
                    result->memory == ZENPS_DEVICE ? " of the job's GPU" : "");
  if (out->row_ids && out->capacity < result->nnz)
    return zps_fail(error, ZPS_ERR_TRUNCATED, "the result has %" PRIu64 " rows, but the caller's arrays hold %" PRIu64,
                    result->nnz, out->capacity);
  return ZPS_OK;
}

/* Returns when the copies are there. */
static zps_err_t copy_on_device(const struct zps_result *result, const zenps_grad_t *out, uint64_t deadline_ns,
                                struct zps_error *error) {
  struct zps_device *const device = result->device->device;
  const struct zps_device_ops *const ops = device->ops;
  const size_t rows_bytes = (size_t)result->nnz * sizeof *out->row_ids;
  const size_t values_bytes = (size_t)result->nnz * result->row_bytes;
  struct zps_event *event;
  zps_err_t code = ops->check(device, out->row_ids, rows_bytes, error);
  if (code == ZPS_OK) code = ops->check(device, out->values, values_bytes, error);
  if (code == ZPS_OK) code = ops->event_create(device, &event, error);
  if (code != ZPS_OK) return code;
  code = ops->copy(device, out->row_ids, result->rows_on_device, rows_bytes, out->stream, error);
  if (code == ZPS_OK) code = ops->copy(device, out->values, result->values_on_device, values_bytes, out->stream, error);
  if (code == ZPS_OK) code = ops->event_record(device, event, out->stream, error);
  if (code == ZPS_OK) code = zps_stage_wait(device, event, deadline_ns, error);
  ops->event_destroy(device, event);
  return code;
}

zps_err_t zps_result_fetch(struct zps_result *result, zenps_grad_t *out, uint64_t timeout_ms, struct zps_error *error) {
  zps_err_t code = check_out(result, out, error);
  if (code != ZPS_OK) return code;
  if (!out->row_ids) {
    result->is_ours = true;
    out->row_ids = result->device ? result->rows_on_device : result->arrays.rows.data;
    out->values = result->device ? result->values_on_device : result->arrays.values.data;
    out->nnz = result->nnz;
    out->contributors = result->contributors;
    return ZPS_OK;
  }
  if (result->device) {
    code = copy_on_device(result, out, zps_clock_ns() + timeout_ms * ZPS_NS_PER_MS, error);
    if (code != ZPS_OK) return code;
  } else {
    memcpy(out->row_ids, result->arrays.rows.data, result->nnz * sizeof *out->row_ids);
    memcpy(out->values, result->arrays.values.data, result->nnz * result->row_bytes);
  }
  out->nnz = result->nnz;
  out->contributors = result->contributors;
  zps_result_release(result);
  return ZPS_OK;
}
