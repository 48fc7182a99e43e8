#include "worker/api/first.h"

#include <string.h>

#include "worker/api/job.h"
#include "worker/api/request.h"

enum { FLUSH_MS = 200 };

/* The library's own rounds may well end well behind an error, such as a barrier ahead of the end of the program. */
static bool is_trainers(const struct zps_round_tensor *tensor) {
  return tensor->name[0] != '@' || strncmp(tensor->name, "@gather/", sizeof "@gather/" - 1) == 0;
}

/* Back-pressure and a buffer that is too small are told, and nothing is lost. */
static bool is_error(zps_err_t code) {
  return code != ZPS_OK && code != ZPS_ERR_AGAIN && code != ZPS_ERR_TRUNCATED && code != ZPS_ERR_FORKED;
}

/* Once the job has failed, its coordinator knows why. */
void zps_first_note(struct zenps_job *job, zps_err_t code, const char *text) {
  /* Ranks that move on to the next generation leave rounds behind. */
  const bool is_usual = job->options.max_world > 0 && (code == ZPS_ERR_CANCELED || code == ZPS_ERR_CLOSED);
  if (job->first.error.code || job->failed || job->closing || !is_error(code) || is_usual) return;
  job->first.is_seen = false;
  zps_fail(&job->first.error, code, "%.400s", text);
  zps_telemetry_failed(job);
}

void zps_first_round(struct zenps_job *job, const struct zenps_request *request, bool ok) {
  struct zps_first *const first = &job->first;
  /* An inner round's error is that of the request around it, if it is one at all: an agreement may be repeated. */
  if (!ok && !request->is_canceled && !request->then)
    zps_first_note(job, (zps_err_t)request->error.status, request->error.text);
  if (ok && first->is_seen && request->number > first->seen_at && is_trainers(&request->tensor->core))
    *first = (struct zps_first){.told = first->told, .n_flushing = first->n_flushing};
}

void zps_first_seen(struct zenps_job *job) {
  if (!job->first.error.code || job->first.is_seen) return;
  job->first.is_seen = true;
  job->first.seen_at = job->n_begun;
}

void zps_first_flush(struct zenps_job *job) {
  if (!job->first.error.code || job->closing || !atomic_load(&job->telemetry.on)) return;
  job->first.n_flushing++;
  pthread_mutex_unlock(&job->lock);
  zps_membership_flush(&job->membership, FLUSH_MS);
  pthread_mutex_lock(&job->lock);
  if (--job->first.n_flushing == 0) pthread_cond_broadcast(&job->done);
}

zenps_status_t zps_first_call(struct zenps_job *job, zenps_status_t status) {
  if (!is_error((zps_err_t)status) || status == ZENPS_IN_PROGRESS) return status;
  pthread_mutex_lock(&job->lock);
  zps_first_note(job, (zps_err_t)status, zenps_last_error()->text);
  zps_first_seen(job);
  zps_first_flush(job);
  pthread_mutex_unlock(&job->lock);
  return status;
}
