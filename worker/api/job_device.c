/* The GPU of a job: opened when it is first needed. */
#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"
#include "worker/device/device.h"
#include "worker/device/table.h"

zps_err_t zps_worker_device_get(struct zenps_job *job, int index, struct zps_worker_device **device_p,
                                struct zps_error *error) {
  zps_err_t code = ZPS_OK;
  pthread_mutex_lock(&job->device_lock);
  struct zps_worker_device *device = job->device;
  if (!device && index < 0) {
    code = zps_fail(error, ZPS_ERR_INVALID,
                    "which GPU the memory is of was not said: set `device` of the options or of the gradient, or "
                    "ZENPS_DEVICE");
  } else if (!device) {
    code = zps_worker_device_open(job->options.device_library, index, &device, error);
    if (code == ZPS_OK) job->device = device;
    if (code == ZPS_OK && job->membership.job_id != 0)
      zps_membership_memory(&job->membership, zps_worker_device_path(device));
  } else if (index >= 0 && index != device->index) {
    code = zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "memory of GPU %d: this process's gradients are on GPU %d; start one "
                    "process per GPU",
                    index, device->index);
  }
  pthread_mutex_unlock(&job->device_lock);
  if (code == ZPS_OK) *device_p = device;
  return code;
}

zps_err_t zps_worker_device_table(struct zenps_tensor *tensor, const struct zps_worker_device *device,
                                  struct zps_error *error) {
  struct zps_round_tensor *const core = &tensor->core;
  if (!core->murmur || core->works_in_host) return ZPS_OK;
  pthread_mutex_lock(&tensor->job->device_lock);
  zps_err_t code = ZPS_OK;
  if (!core->table_on_device)
    code = zps_device_table_create(device->device, &core->part, &core->device_part, &core->table_on_device, error);
  pthread_mutex_unlock(&tensor->job->device_lock);
  return code;
}
