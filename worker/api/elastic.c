/* Elastic jobs: from one generation to the next. */
#include <zenps/elastic.h>

#include "worker/api/job.h"

static void copy(const struct zenps_job *job, zenps_generation_t *to) {
  const struct zps_generation *const from = &job->membership.generation;
  *to = (zenps_generation_t){.struct_size = to->struct_size,
                             .number = from->number,
                             .rank = (int)job->options.rank,
                             .world = (int)job->options.world,
                             .source = (int)from->source,
                             .step = from->step};
}

static zps_err_t check_size(const zenps_generation_t *generation, struct zps_error *error) {
  if (!generation || generation->struct_size == sizeof *generation) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "zenps_generation_t: struct_size is %zu; it must be %zu",
                  generation->struct_size, sizeof *generation);
}

zenps_status_t zenps_job_generation(const zenps_job_t *job, zenps_generation_t *generation) {
  struct zps_error error = {0};
  if (!job || !generation)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_job_generation: the %s is NULL", job ? "generation" : "job");
  if (check_size(generation, &error) != ZPS_OK) return zps_worker_raise(&error);
  copy(job, generation);
  return ZENPS_OK;
}

bool zenps_job_changed(const zenps_job_t *job) {
  return job && atomic_load_explicit(&job->changed, memory_order_relaxed);
}

bool zenps_status_recoverable(zenps_status_t status) {
  switch (status) {
    case ZENPS_ERR_PEER_LOST:
    case ZENPS_ERR_SERVER_LOST:
    case ZENPS_ERR_CLOSED:
    case ZENPS_ERR_MISSING:
    case ZENPS_ERR_STALE:
    case ZENPS_ERR_CANCELED:
    case ZENPS_ERR_TIMEOUT:
    case ZENPS_ERR_FABRIC: /* the first error of a rank that slept until the others went on without it */
      return true;
    default:
      return false;
  }
}

zenps_status_t zenps_job_next(zenps_job_t **job_p, uint64_t step, zenps_generation_t *generation) {
  struct zps_error error = {0};
  struct zenps_job *const job = job_p ? *job_p : NULL;
  if (!job) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_job_next: the job is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  if (job->options.max_world == 0)
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_job_next: job %s is not elastic: max_world (ZENPS_MAX_WORLD_SIZE) makes it so",
                           job->options.job);
  if (check_size(generation, &error) != ZPS_OK) return zps_worker_raise(&error);
  const struct zps_last_place last = {.generation = job->membership.generation.number,
                                      .rank = (uint32_t)job->options.rank,
                                      .job_id = job->membership.job_id,
                                      .step = step};
  struct zps_worker_options options;
  zps_worker_job_end(job, &options);
  *job_p = NULL;
  if (zps_worker_job_start(&options, &last, job_p, &error) != ZPS_OK) return zps_worker_raise(&error);
  if (generation) copy(*job_p, generation);
  return ZENPS_OK;
}
