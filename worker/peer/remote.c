/* Frames of other ranks for a round, and the loss of a rank. */
#include <inttypes.h>
#include <stdio.h>

#include "common/base/bisect.h"
#include "worker/peer/peer.h"

bool zps_peer_takes_part(const struct zps_round *base, uint32_t rank) {
  const struct zps_peer_plan *plan = &base->tensor->peer->plan;
  uint32_t low = 0, high = plan->n;
  if (rank == base->plane->rank) return false;
  zps_bisect(low, high, middle, zps_peer_rank(plan, middle) < rank);
  return low < plan->n && zps_peer_rank(plan, low) == rank;
}

/* Frames of this rank belong to this round: it has not ended its part yet. */
static bool takes(const struct zps_peer_round *round, uint32_t rank) {
  const struct zps_peer_remote *remote = &round->remotes[rank];
  return !remote->aborted && !remote->done;
}

/* A rank cannot be through before it has announced all that it sends: a DONE before that is of an earlier attempt. */
static void on_done(struct zps_peer_round *round, uint32_t rank) {
  struct zps_round *base = &round->base;
  round->remotes[rank].heard = true;
  if (!zps_round_machine_over(base->machine) && (!round->launched || zps_run_expects(&round->run, rank))) return;
  round->remotes[rank].done = true;
  zps_round_touch(base);
  zps_peer_check_through(round);
}

/* A rank's text begins with job, tensor and step, as ours does: the reason follows. */
void zps_peer_aborted(struct zps_peer_round *round, uint32_t rank, const struct zps_frame_abort *abort) {
  struct zps_round *base = &round->base;
  round->remotes[rank].aborted = round->remotes[rank].heard = true;
  zps_round_touch(base);
  for (uint32_t i = 0; abort->code == ZPS_ERR_TIMEOUT && i < abort->n_ranks; i++) {
    if (zps_peer_takes_part(base, abort->ranks[i])) round->remotes[abort->ranks[i]].accused = true;
  }
  if (zps_round_machine_over(base->machine)) return;
  base->reason = *abort;
  zps_round_event(base, ZPS_MACHINE_ABORTED, 0, rank, abort->code);
}

static bool on_messages(struct zps_peer_round *round, uint32_t rank, const struct zps_frame *frame) {
  const struct zps_frame_round *messages = &frame->u.round;
  if (!takes(round, rank)) return false;
  round->base.stats.bytes_in += frame->len_bytes;
  for (uint32_t i = 0; i < messages->n_slices; i++) zps_peer_message(round, rank, &messages->slices[i]);
  return true;
}

/* A rank that gives up a step with a sum here hears DONE, once. If the round has failed here after its commit, a second
 * ABORT belongs to the rank's next attempt. */
static bool on_abort(struct zps_peer_round *round, const struct zps_remote *from, const struct zps_frame_abort *abort) {
  const bool is_done = round->base.committed && round->base.machine->state != ZPS_MACHINE_FAILED;
  if (!is_done && !takes(round, from->index)) return false;
  zps_peer_aborted(round, from->index, abort);
  if (round->base.committed && !round->remotes[from->index].is_told_done) zps_rounds_answer_done(from, abort);
  return true;
}

bool zps_peer_frame(struct zps_round *base, const struct zps_remote *from, const struct zps_frame *frame) {
  struct zps_peer_round *round = zps_peer_of(base);
  if (!from->is_rank) return false;
  if (!zps_peer_takes_part(base, from->index)) return true;
  switch (frame->header.type) {
    case ZPS_FRAME_PEER:
      return on_messages(round, from->index, frame);
    case ZPS_FRAME_DONE:
      on_done(round, from->index);
      return true;
    default:
      return on_abort(round, from, &frame->u.abort);
  }
}

/* Nothing of the rank is awaited, nothing is to be sent to it, and the scheme will not ask for more. */
static bool is_through_with(const struct zps_peer_round *round, uint32_t rank) {
  return round->launched && !zps_run_waits_for(&round->run, rank) && round->remotes[rank].first_send == ZPS_PEER_NONE &&
         round->run.n_calls == 0 && !zps_peer_needs_done(round, rank);
}

void zps_peer_remote_lost(struct zps_round *base, const struct zps_remote *lost, const char *why) {
  if (!lost->is_rank || !zps_peer_takes_part(base, lost->index)) return;
  zps_round_touch(base);
  if (zps_round_machine_over(base->machine) || is_through_with(zps_peer_of(base), lost->index)) return;
  base->reason.n_ranks = 1;
  base->reason.ranks[0] = lost->index;
  if (lost->left_ns) {
    snprintf(base->reason.text, sizeof base->reason.text, "rank %" PRIu32 " (host %s) left the job", lost->index,
             lost->name);
    zps_round_event(base, ZPS_MACHINE_ABORTED, 0, lost->index, ZPS_ERR_CLOSED);
    return;
  }
  snprintf(base->reason.text, sizeof base->reason.text, "rank %" PRIu32 " (host %s) is lost: %.200s", lost->index,
           lost->name, why);
  zps_round_event(base, ZPS_MACHINE_SERVER_LOST, 0, lost->index, ZPS_OK);
}
