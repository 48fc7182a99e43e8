#include "server/daemon/agent_jobs.h"

#include <stdio.h>
#include <stdlib.h>

#define ZPS_LOG_COMPONENT "agent"
#include "common/base/log.h"

/* ------------------------------------------------------------ jobs */

struct zps_agent_job *zps_agent_job_create(void) {
  return calloc(1, sizeof(struct zps_agent_job));
}

void zps_agent_job_destroy(struct zps_agent_job *job) {
  if (!job) return;
  free(job->tensors);
  free(job);
}

void zps_agent_jobs_fini(struct zps_agent_jobs *jobs) {
  while (jobs->first) zps_agent_jobs_forget(jobs, jobs->first->job_id);
}

void zps_agent_jobs_add(struct zps_agent_jobs *jobs, struct zps_agent_job *job, uint64_t job_id, const char *name) {
  job->job_id = job_id;
  snprintf(job->name, sizeof job->name, "%s", name);
  job->incarnation = jobs->incarnation;
  job->next = jobs->first;
  jobs->first = job;
  jobs->n++;
}

struct zps_agent_job *zps_agent_jobs_find(const struct zps_agent_jobs *jobs, uint64_t job_id) {
  struct zps_agent_job *job = jobs->first;
  while (job && job->job_id != job_id) job = job->next;
  return job;
}

void zps_agent_jobs_forget(struct zps_agent_jobs *jobs, uint64_t job_id) {
  for (struct zps_agent_job **link = &jobs->first; *link; link = &(*link)->next) {
    if ((*link)->job_id != job_id) continue;
    struct zps_agent_job *job = *link;
    *link = job->next;
    jobs->n--;
    zps_agent_job_destroy(job);
    return;
  }
}

uint64_t *zps_agent_jobs_list(const struct zps_agent_jobs *jobs) {
  uint64_t *list = calloc(jobs->n + 1u, sizeof *list), n = 0;
  for (const struct zps_agent_job *job = jobs->first; list && job; job = job->next) list[n++] = job->job_id;
  return list;
}

/* ------------------------------------------------------------ tensors */

bool zps_agent_job_has(const struct zps_agent_job *job, uint32_t tensor) {
  for (uint32_t i = 0; i < job->n_tensors; i++)
    if (job->tensors[i] == tensor) return true;
  return false;
}

zps_err_t zps_agent_job_add_tensor(struct zps_agent_job *job, uint32_t tensor) {
  if (job->n_tensors == job->cap_tensors) {
    const uint32_t cap = job->cap_tensors ? 2 * job->cap_tensors : 16;
    uint32_t *grown = realloc(job->tensors, cap * sizeof *grown);
    if (!grown) return ZPS_ERR_NOMEM;
    job->tensors = grown;
    job->cap_tensors = cap;
  }
  job->tensors[job->n_tensors++] = tensor;
  return ZPS_OK;
}

void zps_agent_job_forget_tensor(struct zps_agent_job *job, uint32_t tensor) {
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

void zps_agent_job_keep(struct zps_agent_jobs *jobs, struct zps_agent_job *job, const uint32_t *tensors, uint32_t n) {
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
    zps_agent_job_forget_tensor(job, tensor);
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
  zps_agent_jobs_forget(jobs, job->job_id);
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
