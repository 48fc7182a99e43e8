/* The GPU of a job: opened when it is first needed. */
#include "worker/api/job.h"
#include "worker/device/device.h"

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
