#include "server/daemon/agent_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "agent"
#include "common/base/enlarge.h"
#include "common/base/log.h"

/* ------------------------------------------------------------ jobs */

static void job_destroy(struct zps_agent_job *job) {
  if (!job) return;
  free(job->tensors);
  free(job);
}

static void add_job(struct zps_agent_jobs *jobs, struct zps_agent_job *job, uint64_t job_id, const char *name) {
  job->job_id = job_id;
  snprintf(job->name, sizeof job->name, "%s", name);
  job->incarnation = jobs->incarnation;
  job->next = jobs->first;
  jobs->first = job;
  jobs->n++;
}

static struct zps_agent_job *find_job(const struct zps_agent_jobs *jobs, uint64_t job_id) {
  struct zps_agent_job *job = jobs->first;
  while (job && job->job_id != job_id) job = job->next;
  return job;
}

static void forget_job(struct zps_agent_jobs *jobs, uint64_t job_id) {
  for (struct zps_agent_job **link = &jobs->first; *link; link = &(*link)->next) {
    if ((*link)->job_id != job_id) continue;
    struct zps_agent_job *job = *link;
    *link = job->next;
    jobs->n--;
    job_destroy(job);
    return;
  }
}

void zps_agent_jobs_fini(struct zps_agent_jobs *jobs) {
  while (jobs->first) forget_job(jobs, jobs->first->job_id);
}

uint64_t *zps_agent_jobs_list(const struct zps_agent_jobs *jobs) {
  uint64_t *list = calloc(jobs->n + 1u, sizeof *list), n = 0;
  for (const struct zps_agent_job *job = jobs->first; list && job; job = job->next) list[n++] = job->job_id;
  return list;
}

/* ------------------------------------------------------------ tensors */

static zps_err_t add_tensor(struct zps_agent_job *job, uint32_t tensor) {
  if (!zps_enlarge_for_one(&job->tensors, &job->cap_tensors, job->n_tensors, 16, sizeof *job->tensors))
    return ZPS_ERR_NOMEM;
  job->tensors[job->n_tensors++] = tensor;
  return ZPS_OK;
}

static void forget_tensor(struct zps_agent_job *job, uint32_t tensor) {
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    if (job->tensors[i] != tensor) continue;
    job->tensors[i] = job->tensors[--job->n_tensors];
    return;
  }
}

static bool is_listed(const uint32_t *tensors, uint32_t n, uint32_t tensor) {
  for (uint32_t i = 0; i < n; i++)
    if (tensors[i] == tensor) return true;
  return false;
}

/* Closes all tensors but these on the shard. */
static void keep_tensors(struct zps_agent_jobs *jobs, struct zps_agent_job *job, const uint32_t *tensors, uint32_t n) {
  zps_log_about(.job = job->name);
  for (uint32_t i = 0; i < job->n_tensors;) {
    const uint32_t tensor = job->tensors[i];
    if (is_listed(tensors, n, tensor)) {
      i++;
      continue;
    }
    zps_log_info("job 0x%016llx: tensor %u was closed meanwhile", (unsigned long long)job->job_id, tensor);
    const zps_err_t err = zps_shard_tensor_close(jobs->shard, job->job_id, tensor, NULL);
    if (err == ZPS_ERR_TIMEOUT) jobs->is_stuck = true;
    if (err) zps_log_debug("job 0x%016llx: tensor %u was already closed", (unsigned long long)job->job_id, tensor);
    forget_tensor(job, tensor);
  }
}

/* ------------------------------------------------------------ orphans */

/* After close() or leave() of the shard. */
static void end_job(struct zps_agent_jobs *jobs, const struct zps_agent_job *job, zps_err_t err, const char *reason) {
  if (err == ZPS_ERR_TIMEOUT) {
    jobs->is_stuck = true;
    return;
  }
  zps_log_about(.job = job->name);
  zps_log_warn("job 0x%016llx is closed: %s", (unsigned long long)job->job_id, reason);
  if (err) zps_log_debug("job 0x%016llx was already closed", (unsigned long long)job->job_id);
  forget_job(jobs, job->job_id);
}

static void close_job(struct zps_agent_jobs *jobs, const struct zps_agent_job *job, const char *reason) {
  end_job(jobs, job, zps_shard_job_close(jobs->shard, job->job_id, reason), reason);
}

static void leave_job(struct zps_agent_jobs *jobs, const struct zps_agent_job *job, const char *reason) {
  end_job(jobs, job, zps_shard_job_leave(jobs->shard, job->job_id, reason), reason);
}

bool zps_agent_jobs_restart(struct zps_agent_jobs *jobs) {
  jobs->is_stuck = !zps_shard_answers(jobs->shard);
  while (jobs->first && !jobs->is_stuck)
    leave_job(jobs, jobs->first, "the server's progress thread was stuck, and did not take a call");
  return !jobs->is_stuck;
}

static bool knows(const uint64_t *known, uint32_t n, uint64_t job_id) {
  for (uint32_t i = 0; i < n; i++)
    if (known[i] == job_id) return true;
  return false;
}

void zps_agent_jobs_registered(struct zps_agent_jobs *jobs, uint64_t incarnation, const uint64_t *known, uint32_t n,
                               uint64_t now_ns) {
  for (struct zps_agent_job *job = jobs->first, *next; job; job = next) {
    next = job->next;
    if (job->incarnation == 0) job->incarnation = incarnation;
    if (knows(known, n, job->job_id)) {
      job->orphan_ns = 0;
      job->incarnation = incarnation;
    } else if (job->incarnation == incarnation) {
      leave_job(jobs, job, "the coordinator closed it, or took this server for lost, while there was no connection");
    } else if (!job->orphan_ns) {
      job->orphan_ns = now_ns;
      zps_log_about(.job = job->name);
      zps_log_warn("job 0x%016llx is unknown to the coordinator: this server keeps it for now",
                   (unsigned long long)job->job_id);
    }
  }
  jobs->incarnation = incarnation;
}

void zps_agent_jobs_unregistered(struct zps_agent_jobs *jobs) {
  jobs->incarnation = 0;
}

void zps_agent_jobs_tick(struct zps_agent_jobs *jobs, uint64_t grace_ns, uint64_t now_ns) {
  for (struct zps_agent_job *job = jobs->first, *next; job; job = next) {
    next = job->next;
    if (job->orphan_ns && now_ns >= job->orphan_ns + grace_ns)
      close_job(jobs, job, "the coordinator has known nothing of it for 10 minutes");
  }
}

/* ------------------------------------------------------------ the coordinator's calls: read, then carried out on the
 * shard */

static zps_err_t job_open(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_job_spec spec;
  zps_err_t err = zps_control_job_open_read(params, &spec, error);
  if (err) return err;
  struct zps_agent_job *job = calloc(1, sizeof *job); /* ahead of the call, so that noting the job cannot fail */
  err =
      job ? zps_shard_job_open(jobs->shard, &spec, error) : zps_fail(error, ZPS_ERR_NOMEM, "no memory for another job");
  if (err)
    job_destroy(job);
  else
    add_job(jobs, job, spec.job_id, spec.name);
  zps_job_spec_fini(&spec);
  return err;
}

static zps_err_t tensor_open(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_tensor_spec spec;
  zps_err_t err = zps_control_tensor_open_read(params, &spec, error);
  if (err) return err;
  struct zps_agent_job *const job = find_job(jobs, spec.job_id);
  if (!job || !is_listed(job->tensors, job->n_tensors, spec.tensor)) {
    err = zps_shard_tensor_open(jobs->shard, &spec, error);
    if (!err && job && add_tensor(job, spec.tensor)) {
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
  struct zps_agent_job *const job = find_job(jobs, call.job_id);
  if (job) forget_tensor(job, call.tensor);
  return zps_shard_tensor_close(jobs->shard, call.job_id, call.tensor, error);
}

static zps_err_t tensor_keep(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_tensor_keep keep;
  const zps_err_t err = zps_control_tensor_keep_read(params, &keep, error);
  if (err) return err;
  struct zps_agent_job *const job = find_job(jobs, keep.job_id);
  if (job) keep_tensors(jobs, job, keep.tensors, keep.n);
  free(keep.tensors);
  return job ? ZPS_OK : zps_fail(error, ZPS_ERR_UNKNOWN, "no job 0x%016llx here", (unsigned long long)keep.job_id);
}

static zps_err_t job_close(struct zps_agent_jobs *jobs, const zps_json *params, struct zps_error *error) {
  struct zps_job_call call;
  zps_err_t err = zps_control_job_close_read(params, &call, error);
  if (err) return err;
  err = zps_shard_job_close(jobs->shard, call.job_id, call.text);
  if (err == ZPS_ERR_TIMEOUT) return zps_fail(error, err, "the shard is stuck");
  forget_job(jobs, call.job_id);
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
      zps_json_get_hex(params, "job_id", &job_id, NULL) ? NULL : find_job(jobs, job_id);
  snprintf(name, ZPS_NAME_MAX + 1, "%s",
           job                               ? job->name
           : strcmp(method, "job.open") == 0 ? zps_json_opt_str(params, "name", "")
                                             : "");
}
