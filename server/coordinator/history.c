#include "server/coordinator/history.h"

#include <string.h>

void zps_history_add(struct zps_history *history, const struct zps_action *ended, uint64_t now_ns, int64_t ended_s) {
  const struct zps_member_job *job = ended->job;
  const struct zps_tally tally = zps_member_job_tally(job);
  struct zps_history_record *record = &history->records[history->n++ % ZPS_HISTORY_MAX];
  *record = (struct zps_history_record){.job_id = job->job_id,
                                        .origin = job->origin,
                                        .world = job->world,
                                        .n_left = job->n_left,
                                        .n_lost = job->n_lost,
                                        .n_servers = job->view.n_first,
                                        .n_places = job->view.n_places,
                                        .n_servers_lost = zps_member_job_servers_lost(job),
                                        .n_tensors = job->n_tensors,
                                        .epoch = job->view.epoch,
                                        .ran_ns = now_ns > job->started_ns ? now_ns - job->started_ns : 0,
                                        .ended_s = ended_s,
                                        .rounds = tally.rounds,
                                        .bytes_out = tally.bytes_out,
                                        .bytes_in = tally.bytes_in};
  strcpy(record->name, job->name);
  strcpy(record->lost_servers, job->lost_servers);
  if (ended->code) zps_fail(&record->cause, ended->code, "%s", ended->text);
}

unsigned zps_history_len(const struct zps_history *history) {
  return history->n < ZPS_HISTORY_MAX ? (unsigned)history->n : ZPS_HISTORY_MAX;
}

const struct zps_history_record *zps_history_at(const struct zps_history *history, unsigned index) {
  const uint64_t oldest = history->n - zps_history_len(history);
  return &history->records[(oldest + index) % ZPS_HISTORY_MAX];
}

zps_err_t zps_history_tell(const struct zps_history *history, uint64_t job_id, zps_err_t err, struct zps_error *error) {
  for (unsigned i = zps_history_len(history); i-- > 0;) {
    const struct zps_history_record *const record = zps_history_at(history, i);
    if (record->job_id == job_id)
      return zps_fail(error, err, "job '%.60s' 0x%016llx is over: %.400s", record->name, (unsigned long long)job_id,
                      record->cause.code ? record->cause.text : "all ranks have left");
  }
  return err;
}
