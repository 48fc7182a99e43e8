#include "server/membership/notes.h"

#include "server/membership/elastic.h"

static void note_job(const struct zps_members *members, const struct zps_member_job *job) {
  zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_JOB, .job = job});
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_member_tensor *tensor = job->tensors[i];
    zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_TENSOR, .job = job, .tensor = tensor});
  }
  for (const struct zps_member_group *group = job->groups; group; group = group->next)
    if (group->is_met)
      zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_GROUP, .job = job, .group = group});
}

/* Counters last: servers that are made again count, too. */
void zps_members_note_all(const struct zps_members *members) {
  for (unsigned i = 0; i < members->n_servers; i++)
    zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SERVER, .server = members->servers[i]});
  for (const struct zps_member_job *job = members->jobs; job; job = job->next)
    if (job->state >= ZPS_JOB_RUNNING) note_job(members, job);
  for (const struct zps_member_elastic *elastic = members->elastics; elastic; elastic = elastic->next)
    if (zps_members_elastic_moves(elastic))
      zps_members_note(members, &(struct zps_member_note){.type = ZPS_NOTE_SEATS, .elastic = elastic});
  zps_members_expelled_note_all(members);
  zps_members_history_note_all(members);
  zps_members_note_counters(members);
}
