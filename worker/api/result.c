#include "worker/api/result.h"

#include "worker/device/device.h"
#include "worker/round/round.h"

void zps_result_init(struct zps_result *result, const zenps_grad_t *out) {
  *result = (struct zps_result){0};
  if (!out || out->layout != ZENPS_ROWS) return;
  *result = (struct zps_result){.is_ours = !out->row_ids, .memory = out->memory, .device_index = out->device};
}

void zps_result_get(struct zps_result *result, struct zps_round *round) {
  result->nnz = round->stats.nnz_out;
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
  rows->row_ids = result->device ? result->rows_on_device : result->arrays.rows.data;
  rows->values = result->device ? result->values_on_device : result->arrays.values.data;
  rows->device = result->device_index;
  rows->stream = NULL;
}
