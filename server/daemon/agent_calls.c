/* The coordinator's calls: read, then carried out on the shard. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/daemon/agent_jobs.h"

static zps_err_t job_open(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_job_spec spec;
  zps_err_t err = zps_control_job_open_read(params, &spec, error);
  if (err) return err;
  struct zps_agent_job *job = zps_agent_job_create();
  err =
      job ? zps_shard_job_open(jobs->shard, &spec, error) : zps_fail(error, ZPS_ERR_NOMEM, "no memory for another job");
  if (err)
    zps_agent_job_destroy(job);
  else
    zps_agent_jobs_add(jobs, job, spec.job_id, spec.name);
  zps_job_spec_fini(&spec);
  return err;
}

static zps_err_t tensor_open(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_tensor_spec spec;
  zps_err_t err = zps_control_tensor_open_read(params, &spec, error);
  if (err) return err;
  struct zps_agent_job *const job = zps_agent_jobs_find(jobs, spec.job_id);
  if (!job || !zps_agent_job_has(job, spec.tensor)) {
    err = zps_shard_tensor_open(jobs->shard, &spec, error);
    if (!err && job && zps_agent_job_add_tensor(job, spec.tensor)) {
      err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for another tensor");
      if (zps_shard_tensor_close(jobs->shard, spec.job_id, spec.tensor, NULL)) err = ZPS_ERR_NOMEM;
    }
  }
  zps_tensor_spec_fini(&spec);
  return err;
}

static zps_err_t tensor_forget(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_job_call call;
  const zps_err_t err = zps_control_tensor_forget_read(params, &call, error);
  if (err) return err;
  struct zps_agent_job *const job = zps_agent_jobs_find(jobs, call.job_id);
  if (job) zps_agent_job_forget_tensor(job, call.tensor);
  return zps_shard_tensor_close(jobs->shard, call.job_id, call.tensor, error);
}

static zps_err_t tensor_keep(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_tensor_keep keep;
  const zps_err_t err = zps_control_tensor_keep_read(params, &keep, error);
  if (err) return err;
  struct zps_agent_job *const job = zps_agent_jobs_find(jobs, keep.job_id);
  if (job) zps_agent_job_keep(jobs, job, keep.tensors, keep.n);
  free(keep.tensors);
  return job ? ZPS_OK : zps_fail(error, ZPS_ERR_UNKNOWN, "no job 0x%016llx here", (unsigned long long)keep.job_id);
}

static zps_err_t job_close(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_job_call call;
  zps_err_t err = zps_control_job_close_read(params, &call, error);
  if (err) return err;
  err = zps_shard_job_close(jobs->shard, call.job_id, call.text);
  if (err == ZPS_ERR_TIMEOUT) return zps_fail(error, err, "the shard is stuck");
  zps_agent_jobs_forget(jobs, call.job_id);
  return err ? zps_fail(error, err, "no job 0x%016llx here", (unsigned long long)call.job_id) : ZPS_OK;
}

static zps_err_t job_view(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_job_view message;
  zps_err_t err = zps_control_job_view_read(params, &message, error);
  if (err) return err;
  err = zps_shard_job_view(jobs->shard, &message, error);
  zps_job_view_fini(&message);
  return err;
}

static zps_err_t job_replay(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_job_steps set;
  zps_err_t err = zps_control_job_steps_read(params, &set, error);
  if (err) return err;
  err = zps_shard_job_replay(jobs->shard, set.job_id, set.epoch, error);
  zps_job_steps_fini(&set);
  return err;
}

static zps_err_t rank_gone(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_rank_gone gone;
  zps_err_t err = zps_control_rank_gone_read(params, &gone, error);
  if (err) return err;
  err = zps_shard_rank_gone(jobs->shard, gone.job_id, gone.rank, gone.code, gone.text);
  if (err == ZPS_ERR_TIMEOUT) return zps_fail(error, err, "the shard is stuck");
  return err ? zps_fail(error, err, "no rank %u of job 0x%016llx here", gone.rank, (unsigned long long)gone.job_id)
             : ZPS_OK;
}

static const struct {
  const char *name;
  zps_err_t (*run)(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error);
} calls[] = {{"job.open", job_open},       {"tensor.open", tensor_open}, {"tensor.forget", tensor_forget},
             {"tensor.keep", tensor_keep}, {"job.close", job_close},     {"rank.gone", rank_gone},
             {"job.view", job_view},       {"job.replay", job_replay}};

static zps_err_t carry_out(struct zps_agent_jobs *jobs, const char *method, const zps_json *params, zps_json **result_p,
                           struct zps_error *error) {
  for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    if (strcmp(calls[i].name, method) == 0) return calls[i].run(jobs, params, error);
  }
  if (strcmp(method, "stats.get") != 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "this server has no method '%.100s'", method);
  return zps_agent_stats(jobs->shard, result_p, error);
}

zps_err_t zps_agent_carry_out(struct zps_agent_jobs *jobs, const char *method, const zps_json *params,
                              zps_json **result_p, struct zps_error *error) {
  const zps_err_t err = carry_out(jobs, method, params, result_p, error);
  if (err == ZPS_ERR_TIMEOUT) jobs->is_stuck = true;
  return err;
}

void zps_agent_call_job(const struct zps_agent_jobs *jobs, const char *method, const zps_json *params,
                        char name[ZPS_NAME_MAX + 1]) {
  uint64_t job_id;
  const struct zps_agent_job *const job =
      zps_json_get_hex(params, "job_id", &job_id, NULL) ? NULL : zps_agent_jobs_find(jobs, job_id);
  snprintf(name, ZPS_NAME_MAX + 1, "%s",
           job                               ? job->name
           : strcmp(method, "job.open") == 0 ? zps_json_opt_str(params, "name", "")
                                             : "");
}
