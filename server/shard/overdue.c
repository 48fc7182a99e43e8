#include "server/shard/overdue.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "server/shard/job.h"
#include "server/shard/pull.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/tensor.h"

/* A rank is lost only if it is overdue at two consecutive looks, patience/16 apart, and neither came late. Its word may
 * be here unread, where this process itself was stopped. */
enum { LOOKS = 16, LATE = 3 };

struct look {
  struct zps_shard_round *round;
  uint64_t now_ns, patience_ns, again_ns;
  bool is_second; /* what was overdue at the first look is so for good */
  bool any_overdue;
  uint64_t next_ns;
};

static void give_up(struct zps_shard_round *round, uint32_t rank, uint64_t owed_ns) {
  const struct zps_tensor *tensor = round->tensor;
  char text[ZPS_NAME_MAX + 160];
  snprintf(text, sizeof text,
           "%.0f s after its deadline it has not said that it has read the sums of tensor %s, step %" PRIu64,
           (double)owed_ns / (double)ZPS_NS_PER_S, tensor->name, round->machine->config.step);
  zps_member_fail(&tensor->job->members[rank], ZPS_ERR_PEER_LOST, text);
}

static void look_at(struct look *look, uint32_t rank, uint64_t deadline_ns) {
  const struct zps_member *member = &look->round->tensor->job->members[rank];
  const uint64_t due_ns = deadline_ns + look->patience_ns;
  if (!member->link || member->is_failing) return;
  if (look->now_ns < due_ns) {
    if (due_ns < look->next_ns) look->next_ns = due_ns;
  } else if (look->is_second && due_ns <= look->round->overdue_ns) {
    give_up(look->round, rank, look->now_ns - deadline_ns);
  } else {
    look->any_overdue = true;
  }
}

uint64_t zps_overdue_look(struct zps_shard_round *round, uint64_t now_ns) {
  const uint64_t patience_ns = round->tensor->job->shard->patience_ns, since_ns = now_ns - round->overdue_ns;
  struct look look = {.round = round,
                      .now_ns = now_ns,
                      .patience_ns = patience_ns,
                      .again_ns = patience_ns / LOOKS,
                      .next_ns = ZPS_NEVER};
  look.is_second = round->overdue_ns > 0 && since_ns >= look.again_ns && since_ns <= LATE * look.again_ns;
  for (uint32_t rank = 0; rank < round->machine->world; rank++)
    if (zps_shard_machine_reads(round->machine, rank)) look_at(&look, rank, round->until_ns[rank]);
  for (const struct zps_shard_pull *pull = round->pulls; pull; pull = pull->next)
    look_at(&look, pull->rank, pull->deadline_ns);
  if (!look.any_overdue) return look.next_ns;
  if (round->overdue_ns == 0 || since_ns >= look.again_ns) round->overdue_ns = now_ns;
  const uint64_t again_ns = round->overdue_ns + look.again_ns;
  return again_ns < look.next_ns ? again_ns : look.next_ns;
}
