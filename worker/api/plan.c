/* What the coordinator says of a tensor's schemes: `tensor.plan`. */
#define ZPS_LOG_COMPONENT "tensor"
#include "common/base/log.h"
#include "worker/api/job.h"
#include "worker/choice/auto.h"

static zps_err_t read_run(const zps_json *object, struct zps_plan_run *run, struct zps_error *error) {
  const char *name;
  zps_err_t err = zps_json_get_hex(object, "from", &run->from, error);
  if (err == ZPS_OK) err = zps_json_get_hex(object, "until", &run->until, error);
  if (err == ZPS_OK) err = zps_json_get_str(object, "scheme", &name, error);
  if (err == ZPS_OK && !zps_plan_scheme_parse(name, &run->scheme))
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "there is no scheme '%.40s'", name);
  return err;
}

void zps_worker_plan(struct zenps_job *job, const zps_json *params) {
  const zps_json *array = zps_json_get(params, "runs");
  const bool whole = zps_json_opt_bool(params, "whole", false);
  struct zps_plan_run runs[ZPS_PLAN_RUNS];
  unsigned n = 0;
  uint64_t id = 0;
  struct zps_error error;
  zps_err_t err = zps_json_get_u64(params, "tensor", 0, UINT32_MAX, &id, &error);
  for (size_t i = 0; i < zps_json_array_len(array) && err == ZPS_OK && n < ZPS_PLAN_RUNS; i++)
    err = read_run(zps_json_at(array, i), &runs[n++], &error);
  if (err != ZPS_OK || n == 0) {
    zps_log_warn("the coordinator says of schemes what cannot be: %s", n ? error.text : "nothing");
    return;
  }
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    if (tensor->is_automatic && tensor->core.id == id) zps_automatic_learn(tensor->automatic, runs, n, whole);
  }
  pthread_mutex_unlock(&job->lock);
}
