/* Processes that an administrator has expelled: they are known again, by the places that they had, when they call as
 * the ranks that they were, also after the coordinator has started again. The last ones are. */
#include <stdio.h>

#include "server/membership/members_impl.h"

static void note(const struct zps_members *members, const struct zps_member_expelled *one) {
  zps_members_note(members, .type = ZPS_NOTE_EXPELLED, .expelled = one);
}

void zps_members_restore_expelled(struct zps_members *members, const struct zps_member_expelled *image) {
  members->expelled[members->n_expelled++ % ZPS_EXPELLED_MAX] = *image;
}

void zps_members_expelled_add(struct zps_members *members, const struct zps_member_job *job,
                              const struct zps_member_rank *rank, const char *reason) {
  struct zps_member_expelled one = {.job_id = job->job_id, .rank = rank->rank, .secret = rank->secret};
  snprintf(one.why, sizeof one.why, "%s", reason);
  zps_members_restore_expelled(members, &one);
  note(members, &one);
}

/* The oldest first, so that they are forgotten in the same order. */
void zps_members_expelled_note_all(const struct zps_members *members) {
  const unsigned n = members->n_expelled < ZPS_EXPELLED_MAX ? members->n_expelled : ZPS_EXPELLED_MAX;
  for (unsigned i = members->n_expelled - n; i != members->n_expelled; i++)
    note(members, &members->expelled[i % ZPS_EXPELLED_MAX]);
}

zps_err_t zps_members_may_be_back(const struct zps_members *members, uint64_t job_id, uint32_t rank, uint64_t secret,
                                  struct zps_error *error) {
  for (unsigned i = 0; i < ZPS_EXPELLED_MAX && i < members->n_expelled; i++) {
    const struct zps_member_expelled *const one = &members->expelled[i];
    if (one->job_id != job_id || one->rank != rank || (secret && one->secret != secret)) continue;
    return zps_fail(error, ZPS_ERR_REFUSED, "this process was rank %u of job 0x%016llx, and is in it no longer: %s",
                    rank, (unsigned long long)job_id, one->why);
  }
  return ZPS_OK;
}
