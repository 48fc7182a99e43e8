/* Why jobs end: the first error of a job's ranks, and the history of jobs that have ended. */
#include <string.h>

#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

/* Of a rank that goes on after each. The journal and the log are told of no more. */
enum { ERRORS_MAX = 64 };

static void note_cause(const struct zps_members *members, const struct zps_member_job *job) {
  zps_members_note(members, .type = ZPS_NOTE_JOB_CAUSE, .job = job);
}

/* A job's first error is the one to act on; later ones are mostly its consequences. */
static void log_error(const struct zps_member_job *job, const struct zps_member_rank *rank, bool is_first,
                      const struct zps_error *why) {
  zps_log_about(.job = job->name, ZPS_LOG_RANK(rank->rank));
  struct zps_error error;
  zps_fail(&error, why->code, "job '%.60s': rank %u (host %.60s, pid %u) failed: %s: %.250s", job->name, rank->rank,
           rank->host, rank->pid, zps_err_name(why->code), why->text);
  zps_log_failure(is_first ? ZPS_LOG_WARN : ZPS_LOG_INFO, &error);
}

static bool are_same(const struct zps_error *one, const struct zps_error *other) {
  return one->code == other->code && strcmp(one->text, other->text) == 0;
}

zps_err_t zps_members_rank_failed(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                  const struct zps_error *why, struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  const zps_err_t err = zps_members_running(job, job_id, error);
  /* A rank that had gone on when its job failed otherwise may say so yet. */
  const bool is_late = err && !why->code && job && job->job_id == job_id && job->state == ZPS_JOB_CLOSING;
  if (err && !is_late) return err;
  struct zps_member_rank *const rank = job->ranks[client->rank];
  const bool is_own = job->cause.error.code && job->cause.rank == rank->rank;
  const bool is_first = job->cause.error.code == ZPS_OK || is_own; /* It has gone on after the one before. */
  const bool is_told = is_own && are_same(&job->cause.error, why);
  const bool is_new = why->code && (why->code != rank->failed || (is_own && !is_told));
  const bool was_told = rank->n_failed <= ERRORS_MAX;
  if (is_new && was_told) rank->n_failed++;
  const bool is_heard = rank->n_failed <= ERRORS_MAX;
  if (is_new && is_heard) log_error(job, rank, is_first, why);
  rank->failed = why->code;
  if (why->code ? is_told || !is_first : !is_own) return ZPS_OK;
  const bool is_stale = is_own && was_told && !is_heard; /* The journal keeps no error that is not the last one. */
  job->cause = (struct zps_member_cause){.rank = 0};
  if (!why->code && is_heard) note_cause(members, job);
  if (is_stale) note_cause(members, job);
  if (!why->code) return ZPS_OK;
  job->cause = (struct zps_member_cause){.rank = rank->rank, .error = *why};
  if (is_heard) note_cause(members, job);
  return ZPS_OK;
}

const struct zps_error *zps_member_job_cause(const struct zps_member_job *job) {
  const bool is_same = job->cause.error.code == job->error.code; /* Of a lost process the coordinator knows more. */
  return job->cause.error.code && !is_same ? &job->cause.error : &job->error;
}

/* ------------------------------------------------------------ history */

const struct zps_history *zps_members_history(const struct zps_members *members) {
  return &members->history;
}

void zps_members_history_keep(struct zps_members *members, const struct zps_history_record *record) {
  zps_log_about(.job = record->name);
  if (zps_history_add(&members->history, record))
    zps_log_warn_limited("no memory to keep how job '%s' ended", record->name);
}

void zps_members_job_ended(struct zps_members *members, const struct zps_member_job *job) {
  const struct zps_error *const cause = zps_member_job_cause(job);
  const struct zps_history_record record = zps_history_of(job, cause, members->now_ns, zps_members_utc_ms(members));
  zps_members_history_keep(members, &record);
  zps_members_note(members, .type = ZPS_NOTE_JOB_ENDED, .ended = &record);
}

void zps_members_history_note_all(const struct zps_members *members) {
  for (unsigned i = 0; i < zps_history_len(&members->history); i++)
    zps_members_note(members, .type = ZPS_NOTE_JOB_ENDED, .ended = zps_history_at(&members->history, i));
}

/* ------------------------------------------------------------ given back */

zps_err_t zps_members_restore_cause(struct zps_members *members, uint64_t job_id,
                                    const struct zps_member_cause *cause) {
  struct zps_member_job *const job = zps_members_job_find(members, job_id);
  if (!job || cause->rank >= job->world) return ZPS_ERR_PROTOCOL;
  job->cause = *cause;
  job->ranks[cause->rank]->failed = cause->error.code;
  return ZPS_OK;
}
