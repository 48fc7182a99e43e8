/* Several tensors opened at once: their registrations are on their way to the coordinator together. */
#include <stdlib.h>

#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"

struct one {
  struct zps_tensor_ask asked;
  struct zps_registering registering;
  bool is_registering;
  struct zenps_tensor *tensor;
};

static zps_err_t check(struct zenps_job *job, const zenps_tensor_spec_t *specs, uint32_t n, struct one *ones,
                       struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  for (uint32_t i = 0; i < n && err == ZPS_OK; i++) {
    const zenps_tensor_spec_t *const spec = &specs[i];
    if (spec->struct_size != sizeof *spec || !spec->name)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "zenps_tensor_open_many: specs[%u].struct_size is %zu, not %zu, or its name is NULL", i,
                      spec->struct_size, sizeof *spec);
    err = zps_tensor_ask_check(spec->name, spec->dtype, error);
    if (err == ZPS_OK)
      err = zps_tensor_ask_make(job, spec->name, spec->rows, spec->width, (enum zps_dtype)spec->dtype, spec->options,
                                &ones[i].asked, error);
  }
  return err;
}

/* The answer of one; a name that comes twice is open by then. After a failure the others' answers are left. */
static zps_err_t finish(struct zenps_job *job, const zenps_tensor_spec_t *spec, struct one *one, zps_err_t failed,
                        struct zps_error *error) {
  struct zenps_tensor *const tensor = zps_worker_tensor_find(job, one->asked.group, spec->name);
  if (one->is_registering && (failed != ZPS_OK || tensor)) zps_worker_tensor_unregistered(job, &one->registering);
  if (failed != ZPS_OK) return failed;
  one->tensor = tensor;
  if (tensor) return zps_tensor_ask_compare(tensor, &one->asked, error);
  return zps_worker_tensor_open_registered(job, &one->asked, spec->options, &one->registering, &one->tensor, error);
}

/* Under the job's `open`. */
static zps_err_t open_all(struct zenps_job *job, const zenps_tensor_spec_t *specs, uint32_t n, struct one *ones,
                          struct zps_error *error) {
  zps_err_t err = ZPS_OK;
  for (uint32_t i = 0; i < n && err == ZPS_OK; i++) {
    if (zps_worker_tensor_find(job, ones[i].asked.group, specs[i].name)) continue;
    err = zps_worker_tensor_register(job, &ones[i].asked, &ones[i].registering, error);
    ones[i].is_registering = err == ZPS_OK;
  }
  for (uint32_t i = 0; i < n; i++) err = finish(job, &specs[i], &ones[i], err, error);
  return err;
}

zenps_status_t zenps_tensor_open_many(zenps_job_t *job, const zenps_tensor_spec_t *specs, uint32_t n,
                                      zenps_tensor_t **tensors) {
  struct zps_error error;
  if (!job || (n > 0 && (!specs || !tensors)))
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_tensor_open_many: job, specs or tensors is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  struct one *const ones = calloc(n + 1ull, sizeof *ones);
  if (!ones) return zps_worker_fail(ZPS_ERR_NOMEM, "zenps_tensor_open_many: no memory for %u tensors", n);
  zps_err_t err = check(job, specs, n, ones, &error);
  zenps_status_t status = ZENPS_OK;
  if (err == ZPS_OK) {
    pthread_mutex_lock(&job->open);
    pthread_mutex_lock(&job->lock);
    status = zps_worker_job_check(job);
    pthread_mutex_unlock(&job->lock);
    if (status == ZENPS_OK) err = open_all(job, specs, n, ones, &error);
    pthread_mutex_unlock(&job->open);
  }
  for (uint32_t i = 0; status == ZENPS_OK && err == ZPS_OK && i < n; i++) tensors[i] = ones[i].tensor;
  free(ones);
  return zps_first_call(job, status != ZENPS_OK || err == ZPS_OK ? status : zps_worker_raise(&error));
}
