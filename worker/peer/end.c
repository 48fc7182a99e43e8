/* How a round between ranks ends: which ranks were waited for, and which may still read. */
#include <inttypes.h>
#include <stdio.h>

#include "common/base/text.h"
#include "worker/peer/peer.h"

/* The rank has said how the round ended there, or will not say it. */
static bool has_spoken(const struct zps_round *base, uint32_t rank) {
  const struct zps_peer_remote *peer = &zps_peer_of(base)->remotes[rank];
  const struct zps_remote *remote = &base->plane->ranks[rank];
  return peer->aborted || peer->done || remote->lost || remote->left_ns;
}

/* The rank sends no more frames for the round, and reads nothing. In rounds of schemes with zero copy a DONE follows
 * its ABORT, unless the ABORT came before the round had begun here: then the rank was told of nothing to read. */
static bool has_ended(const struct zps_round *base, uint32_t rank) {
  const struct zps_peer_remote *peer = &zps_peer_of(base)->remotes[rank];
  const bool still_reads = base->tensor->peer->scheme->zerocopy && peer->reads && peer->aborted && !peer->done;
  const struct zps_remote *remote = &base->plane->ranks[rank];
  return has_spoken(base, rank) && (!still_reads || remote->lost || remote->left_ns);
}

/* Others may still give up a round that went well for them here, and has failed all the same: what they say of it must
 * not meet another attempt. */
bool zps_peer_quiet(const struct zps_round *base) {
  const bool ok = base->committed && base->machine->state == ZPS_MACHINE_DONE;
  /* A job that failed elsewhere: no rank reads for it any more. */
  if (base->rounds->fail_code != ZPS_OK && base->rounds->fail_code != ZPS_ERR_CLOSED) return true;
  if (!ok && !zps_peer_of(base)->launched) return true; /* nothing was sent, so nothing can be late */
  for (uint32_t i = 0; i < zps_peer_n_others(base); i++) {
    const uint32_t r = zps_peer_other(base, i);
    if (has_ended(base, r)) continue;
    if (!ok || zps_peer_of(base)->remotes[r].reads) return false;
  }
  return true;
}

/* At the deadline, live ranks say which ranks they wait for: that shows which rank says nothing. */
bool zps_peer_known(const struct zps_round *base) {
  if (base->machine->code != ZPS_ERR_TIMEOUT) return true;
  for (uint32_t i = 0; i < zps_peer_n_others(base); i++)
    if (!has_spoken(base, zps_peer_other(base, i))) return false;
  return true;
}

/* Where it has failed all the same, and all have spoken of it, nothing of it can come late: what comes is of another
 * attempt. */
bool zps_peer_is_past(const struct zps_peer_round *round) {
  const struct zps_round *base = &round->base;
  if (!base->committed || base->machine->state == ZPS_MACHINE_DONE) return base->committed;
  for (uint32_t i = 0; i < zps_peer_n_others(base); i++)
    if (!has_spoken(base, zps_peer_other(base, i))) return !base->tensor->peer->scheme->zerocopy;
  return false;
}

static bool awaits(const struct zps_peer_round *round, uint32_t rank) {
  return !round->launched || zps_run_waits_for(&round->run, rank) || zps_peer_serve_awaits(round, rank) ||
         (round->decoded && zps_peer_needs_done(round, rank));
}

uint32_t zps_peer_awaited(const struct zps_peer_round *round, uint32_t *ranks, uint32_t max) {
  uint32_t n = 0;
  for (uint32_t i = 0; round->launched && i < zps_peer_n_others(&round->base) && n < max; i++) {
    const uint32_t r = zps_peer_other(&round->base, i);
    if (awaits(round, r)) ranks[n++] = r;
  }
  return n;
}

uint32_t zps_peer_waits_for(const struct zps_round *base, uint32_t *ranks, uint32_t max) {
  const struct zps_peer_round *const round = zps_peer_of(base);
  return round->own_ready ? zps_peer_awaited(round, ranks, max) : 0;
}

static void name(struct zps_round *base, uint32_t rank) {
  struct zps_frame_abort *reason = &base->reason;
  zps_text_add(reason->text, sizeof reason->text, "%s rank %" PRIu32 " (host %s)", reason->n_ranks ? "," : "", rank,
               base->plane->ranks[rank].name);
  if (reason->n_ranks < ZPS_WIRE_RANKS_MAX) reason->ranks[reason->n_ranks++] = rank;
}

/* Names the awaited ranks that have said nothing; where all have spoken, all awaited ranks. */
static void explain_timeout(struct zps_round *base) {
  const struct zps_peer_round *round = zps_peer_of(base);
  struct zps_frame_abort *reason = &base->reason;
  snprintf(reason->text, sizeof reason->text, "the deadline of %" PRIu64 " ms passed ",
           (uint64_t)((base->deadline_ns - base->start_ns) / ZPS_NS_PER_MS));
  reason->n_ranks = 0;
  if (!round->own_ready) {
    zps_text_add(reason->text, sizeof reason->text, "before the gradient was read");
    return;
  }
  zps_text_add(reason->text, sizeof reason->text, "without the messages of");
  for (int all = 0; all < 2 && reason->n_ranks == 0; all++) {
    if (all && round->serve.silent[0] != '\0') { /* all ranks are there: servers are missing */
      snprintf(reason->text, sizeof reason->text, "%s", round->serve.silent);
      return;
    }
    for (uint32_t i = 0; i < zps_peer_n_others(base); i++) {
      const uint32_t r = zps_peer_other(base, i);
      const bool waited = awaits(round, r) || round->remotes[r].accused;
      if (waited && (all || !has_spoken(base, r))) name(base, r);
    }
  }
  if (reason->n_ranks == 0)
    zps_text_add(reason->text, sizeof reason->text, " no rank: they are here, but not all is computed");
}

void zps_peer_explain(struct zps_round *base) {
  struct zps_frame_abort *reason = &base->reason;
  const uint32_t blame = base->machine->blame;
  if (base->machine->code == ZPS_OK) return;
  if (base->machine->code == ZPS_ERR_TIMEOUT) {
    explain_timeout(base);
    return;
  }
  if (reason->text[0] != '\0') return;
  if (blame != ZPS_MACHINE_ALL)
    zps_text_add(reason->text, sizeof reason->text, "rank %" PRIu32 " (host %s): ", blame,
                 base->plane->ranks[blame].name);
  zps_text_add(reason->text, sizeof reason->text, "%s", zps_err_str(base->machine->code));
}
