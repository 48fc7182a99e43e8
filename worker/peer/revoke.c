/*
 * How the trainer gets the gradient back that other ranks read where it lies (zerocopy.c), when the round has failed.
 *
 * A read that is under way cannot be taken back from the fabric: closing the registration does not end it, and what the
 * trainer writes there next would go to the rank. So ranks that have failed read no further, and say DONE behind their
 * ABORT when their reads are over; the trainer is told when all have. A rank from which nothing has come had not begun
 * the round when it took our ABORT, and reads nothing then.
 *
 * A rank may be dead, or hang, and then it says nothing. The trainer gets its gradient all the same, but not before the
 * endpoint of this process is shut: nothing else ends a read that is being answered. That costs the job, which is why
 * it is done only where the job has failed anyway, or the rank is lost, and after a second of patience with ranks that
 * live. A job that goes on past the deadline of a round, with a rank that hangs and may come back, is not ended for it:
 * there the gradient comes back at the deadline, and the rank may read it until it says DONE, for its own failed round.
 */
#include <inttypes.h>
#include <stdio.h>

#include "worker/peer/peer.h"

/* How long a rank may have worked on the round before its first frame is here, and how long ranks that live have to say
 * that they are through. */
#define HEAR_NS ZPS_NS_PER_S
/* Links do not say when frames have left, or were taken: how often they are looked at. */
#define LOOK_SOON_NS (2 * ZPS_NS_PER_MS)
#define LOOK_NS (20 * ZPS_NS_PER_MS)

static void look_at(struct zps_round *base, uint64_t at_ns) {
  if (at_ns > base->deadline_ns && zps_clock_ns() < base->deadline_ns) at_ns = base->deadline_ns;
  base->report_at_ns = at_ns;
  zps_rounds_due(base->rounds, at_ns);
}

void zps_peer_revoke(struct zps_peer_round *round) {
  struct zps_round *base = &round->base;
  round->hear_until_ns = zps_clock_ns() + HEAR_NS;
  if (!round->base.tensor->peer->scheme->zerocopy) return;
  zps_peer_owe_done(round);
  if (round->exposed.handle) look_at(base, round->hear_until_ns);
}

void zps_peer_confirm_abort(struct zps_peer_round *round, uint32_t rank) {
  const struct zps_remote *remote = &round->base.plane->ranks[rank];
  struct zps_peer_remote *peer = &round->remotes[rank];
  if (peer->is_marked || !peer->reads_gradient) return;
  peer->is_marked = zps_link_mark(remote->link, &peer->mark);
  if (peer->is_marked) zps_link_ask(remote->link);
}

/* The rank has taken our ABORT. */
static bool has_been_told(struct zps_peer_round *round, uint32_t rank) {
  const struct zps_remote *remote = &round->base.plane->ranks[rank];
  const struct zps_peer_remote *peer = &round->remotes[rank];
  if (!remote->link || peer->owes_abort) return false;
  zps_peer_confirm_abort(round, rank);
  return peer->is_marked && zps_link_has_taken(remote->link, peer->mark);
}

static bool may_read(struct zps_peer_round *round, uint32_t rank, uint64_t now_ns) {
  const struct zps_peer_remote *peer = &round->remotes[rank];
  if (!peer->reads_gradient || peer->done) return false;
  if (peer->heard || !has_been_told(round, rank)) return true;
  return now_ns < round->hear_until_ns && now_ns < round->base.deadline_ns;
}

static bool job_is_over(const struct zps_round *base) {
  return base->rounds->fail_code != ZPS_OK;
}

/* Nothing is to be expected of the rank any more. */
static bool is_gone(const struct zps_round *base, uint32_t rank) {
  const struct zps_remote *remote = &base->plane->ranks[rank];
  const struct zps_frame_abort *failure = &base->rounds->failure;
  if (remote->lost) return true;
  if (!job_is_over(base)) return false;
  for (uint32_t i = 0; i < failure->n_ranks; i++)
    if (failure->ranks[i] == rank) return true;
  return remote->left_ns > 0;
}

/* The others know from us how their rounds ended. */
static bool others_are_told(const struct zps_round *base) {
  for (uint32_t r = 0; r < base->plane->world; r++) {
    const struct zps_remote *remote = &base->plane->ranks[r];
    if (remote->link && !is_gone(base, r) && !zps_link_is_through(remote->link)) return false;
  }
  return true;
}

/* Results of rounds that went well, for which a job that is being closed waits. */
static bool any_serves(const struct zps_rounds *rounds) {
  for (const struct zps_round *round = rounds->all; round; round = round->all_next)
    if (round->serving) return true;
  return false;
}

/* all_gone: no rank that may still read the gradient is alive. */
static bool must_shut(const struct zps_peer_round *round, bool all_gone, uint64_t now_ns) {
  const struct zps_round *base = &round->base;
  if (!job_is_over(base)) return all_gone && now_ns >= round->hear_until_ns;
  if (base->rounds->fail_code == ZPS_ERR_CLOSED && any_serves(base->rounds) && now_ns < base->deadline_ns) return false;
  return now_ns >= base->rounds->failed_ns + HEAR_NS || (all_gone && others_are_told(base));
}

static void shut(struct zps_round *base, uint32_t rank) {
  struct zps_frame_abort failure = {.code = ZPS_ERR_PEER_LOST, .n_ranks = 1, .ranks = {rank}};
  snprintf(failure.text, sizeof failure.text,
           "rank %" PRIu32 " (host %s) may still read the gradient of tensor %.100s, step %" PRIu64
           ", which the trainer gets back: this rank's connections are ended",
           rank, base->plane->ranks[rank].name, base->tensor->name, base->step);
  zps_rounds_shut(base->rounds, &failure);
}

bool zps_peer_gives_back(struct zps_round *base, uint64_t now_ns) {
  struct zps_peer_round *round = zps_peer_of(base);
  uint32_t reader = UINT32_MAX;
  bool all_gone = true;
  if (!round->exposed.handle || base->plane->shut || base->machine->state == ZPS_MACHINE_DONE) return true;
  for (uint32_t i = 0; i < zps_peer_n_others(base); i++) {
    const uint32_t r = zps_peer_other(base, i);
    if (!may_read(round, r, now_ns)) continue;
    if (reader == UINT32_MAX) reader = r;
    all_gone = all_gone && is_gone(base, r);
  }
  if (reader == UINT32_MAX) return true;
  if (must_shut(round, all_gone, now_ns)) {
    shut(base, reader);
  } else if (!job_is_over(base) && !all_gone && now_ns >= base->deadline_ns) {
    return round->stays_exposed = true; /* without this the rank would lose its connection when it goes on */
  } else if (job_is_over(base)) {
    look_at(base, now_ns + LOOK_SOON_NS);
  } else {
    look_at(base, now_ns + LOOK_NS > round->hear_until_ns ? now_ns + LOOK_NS : round->hear_until_ns);
  }
  return false;
}
