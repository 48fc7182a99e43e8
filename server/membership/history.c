#include "server/membership/history.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "server/membership/members.h"

struct zps_history_record zps_history_of(const struct zps_member_job *job, const struct zps_error *cause,
                                         uint64_t now_ns, uint64_t utc_ms) {
  const struct zps_tally tally = zps_member_job_tally(job);
  struct zps_history_record record = {.job_id = job->job_id,
                                      .origin = job->origin,
                                      .tenant = job->tenant,
                                      .world = job->world,
                                      .n_left = job->n_left,
                                      .n_lost = job->n_lost,
                                      .n_servers = job->view.n_first,
                                      .n_places = job->view.n_places,
                                      .n_servers_lost = zps_member_job_servers_lost(job),
                                      .n_tensors = job->n_tensors,
                                      .epoch = job->view.epoch,
                                      .started_ms = job->started_ms,
                                      .ended_ms = utc_ms,
                                      .ran_ms = zps_member_job_age_ns(job, now_ns) / ZPS_NS_PER_MS,
                                      .rounds = tally.rounds,
                                      .bytes_out = tally.bytes_out,
                                      .bytes_in = tally.bytes_in};
  strcpy(record.name, job->name);
  strcpy(record.lost_servers, job->lost_servers);
  if (cause->code) record.cause = *cause;
  return record;
}

/* Records of older releases have no tenant. */
static const struct zps_origin *owner(const struct zps_history_record *record) {
  return record->tenant.is_known ? &record->tenant : &record->origin;
}

/* The oldest record of the tenant that has the most. So no tenant pushes another's records out. */
static unsigned dispensable(const struct zps_history *history) {
  unsigned index = 0, most = 0;
  for (unsigned i = 0; i < ZPS_HISTORY_MAX; i++) {
    unsigned n = 0;
    for (unsigned k = i; k < ZPS_HISTORY_MAX; k++)
      n += memcmp(owner(history->records[k]), owner(history->records[i]), sizeof(struct zps_origin)) == 0;
    if (n > most) index = i, most = n;
  }
  return index;
}

zps_err_t zps_history_add(struct zps_history *history, const struct zps_history_record *record) {
  struct zps_history_record **const records = history->records;
  struct zps_history_record *const copy = malloc(sizeof *copy);
  if (!copy) return ZPS_ERR_NOMEM;
  *copy = *record;
  if (history->n >= ZPS_HISTORY_MAX) {
    const unsigned gone = dispensable(history);
    free(records[gone]);
    memmove(&records[gone], &records[gone + 1], (ZPS_HISTORY_MAX - 1 - gone) * sizeof *records);
    records[ZPS_HISTORY_MAX - 1] = NULL;
  }
  history->n++;
  records[zps_history_len(history) - 1] = copy;
  return ZPS_OK;
}

unsigned zps_history_len(const struct zps_history *history) {
  return history->n < ZPS_HISTORY_MAX ? (unsigned)history->n : ZPS_HISTORY_MAX;
}

const struct zps_history_record *zps_history_at(const struct zps_history *history, unsigned index) {
  return history->records[index];
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

void zps_history_fini(struct zps_history *history) {
  for (unsigned i = 0; i < zps_history_len(history); i++) free(history->records[i]);
}
