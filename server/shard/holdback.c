#include "server/shard/holdback.h"

#include <stdlib.h>

#include "server/shard/job.h"
#include "server/shard/shard_impl.h"

enum { HELD_MAX = 4096 }; /* of a job: what is more leaves at once */

struct zps_held_abort {
  struct zps_held_abort *next;
  uint32_t rank;
  uint8_t type;
  struct zps_frame_abort abort;
};

void zps_holdback_begin(struct zps_job *job, uint64_t now_ns) {
  if (job->shard->hold_ns == 0 || job->is_closed || job->lost != ZPS_SHARD_NO_RANK || job->holdback.until_ns > 0)
    return;
  job->holdback.until_ns = now_ns + job->shard->hold_ns;
}

bool zps_holdback_takes(struct zps_job *job, uint32_t rank, const struct zps_frame *frame) {
  struct zps_holdback *const holdback = &job->holdback;
  const bool is_abort = frame->header.type == ZPS_FRAME_ABORT || frame->header.type == ZPS_FRAME_MISSED;
  if (holdback->until_ns == 0 || !is_abort || frame->u.abort.code != ZPS_ERR_PEER_LOST || holdback->n >= HELD_MAX)
    return false;
  struct zps_held_abort *const held = malloc(sizeof *held);
  if (!held) return false;
  *held = (struct zps_held_abort){.rank = rank, .type = frame->header.type, .abort = frame->u.abort};
  if (!holdback->first) holdback->last_p = &holdback->first;
  *holdback->last_p = held;
  holdback->last_p = &held->next;
  holdback->n++;
  return true;
}

void zps_holdback_drop(struct zps_job *job) {
  for (struct zps_held_abort *held; (held = job->holdback.first) != NULL;) {
    job->holdback.first = held->next;
    free(held);
  }
  job->holdback.n = 0;
}

void zps_holdback_end(struct zps_job *job) {
  job->holdback.until_ns = 0;
  for (const struct zps_held_abort *held = job->holdback.first; held; held = held->next) {
    struct zps_frame frame = {.header.type = held->type};
    frame.u.abort = held->abort;
    zps_member_send(&job->members[held->rank], &frame);
  }
  zps_holdback_drop(job);
}
