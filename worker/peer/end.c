/* How a round between workers ends: who was waited for, and who may still read. */
#include <inttypes.h>
#include <stdio.h>

#include "common/base/text.h"
#include "worker/peer/peer.h"
#include "worker/api/job.h"
#include "worker/choice/topology.h"
#include "worker/api/tensor.h"

/* It has said how the round ended there, or will not. */
static bool has_spoken(const struct zps_round *round, uint32_t rank) {
  const struct zps_peer_remote *peer = &round->exchange->peers[rank];
  const struct zps_remote *remote = &round->plane->ranks[rank];
  return peer->aborted || peer->done || remote->lost || remote->left_ns;
}

/* Nothing of it follows, nor does it read. Of rounds of schemes that lend gradients DONE follows an ABORT; it may have
 * come before the round had begun here, when nothing was told. */
static bool has_ended(const struct zps_round *round, uint32_t rank) {
  const struct zps_peer_remote *peer = &round->exchange->peers[rank];
  const bool still_reads = round->exchange->scheme->scheme->lends && peer->told && peer->aborted && !peer->done;
  const struct zps_remote *remote = &round->plane->ranks[rank];
  return has_spoken(round, rank) && (!still_reads || remote->lost || remote->left_ns);
}

bool zps_peer_quiet(const struct zps_round *round) {
  const struct zps_plane *plane = round->plane;
  const bool ok = round->exchange->finishing;
  /* A job that failed elsewhere: nobody reads for it any more. */
  if (plane->fail_code != ZPS_OK && plane->fail_code != ZPS_ERR_CLOSED) return true;
  if (!ok && !round->exchange->launched) return true; /* nothing was sent, so nothing can be late */
  for (uint32_t r = 0; r < plane->world; r++) {
    if (r == plane->rank || has_ended(round, r)) continue;
    if (!ok || round->exchange->peers[r].told) return false;
  }
  return true;
}

/* At the deadline, ranks that live say whom they wait for, which shows who does not say anything. */
bool zps_peer_known(const struct zps_round *round) {
  const struct zps_plane *plane = round->plane;
  if (!zps_peer_is_revoked(round->exchange)) return false;
  if (round->machine->code != ZPS_ERR_TIMEOUT) return true;
  for (uint32_t r = 0; r < plane->world; r++) {
    if (r != plane->rank && !has_spoken(round, r)) return false;
  }
  return true;
}

static bool awaits(const struct zps_peer_round *exchange, uint32_t rank) {
  if (rank == exchange->round->plane->rank) return false;
  return !exchange->launched || zps_run_waits_for(&exchange->run, rank) || zps_peer_serve_awaits(exchange, rank) ||
         (exchange->decoded && zps_peer_needs_done(exchange, rank));
}

void zps_peer_name_awaited(const struct zps_peer_round *exchange, struct zps_frame_abort *abort) {
  abort->n_ranks = 0;
  for (uint32_t r = 0; r < exchange->round->plane->world && abort->n_ranks < ZPS_WIRE_RANKS_MAX; r++) {
    if (exchange->launched && awaits(exchange, r)) abort->ranks[abort->n_ranks++] = r;
  }
}

static void name(struct zps_round *round, uint32_t rank) {
  struct zps_frame_abort *reason = &round->reason;
  zps_text_add(reason->text, sizeof reason->text, "%s rank %" PRIu32 " (host %s)", reason->n_ranks ? "," : "", rank,
               round->plane->ranks[rank].name);
  if (reason->n_ranks < ZPS_WIRE_RANKS_MAX) reason->ranks[reason->n_ranks++] = rank;
}

/* Those that are waited for and have said nothing; where all have, those that are waited for. */
static void explain_timeout(struct zps_round *round) {
  const struct zps_peer_round *exchange = round->exchange;
  const struct zps_plane *plane = round->plane;
  struct zps_frame_abort *reason = &round->reason;
  snprintf(reason->text, sizeof reason->text, "the deadline of %" PRIu64 " ms passed ",
           (uint64_t)((round->deadline_ns - round->start_ns) / ZPS_NS_PER_MS));
  reason->n_ranks = 0;
  if (!exchange->own_ready) {
    zps_text_add(reason->text, sizeof reason->text, "before the gradient was read");
    return;
  }
  zps_text_add(reason->text, sizeof reason->text, "without the messages of");
  for (int all = 0; all < 2 && reason->n_ranks == 0; all++) {
    if (all && exchange->serve.silent[0] != '\0') { /* all ranks are there: it is servers that are not */
      snprintf(reason->text, sizeof reason->text, "%s", exchange->serve.silent);
      return;
    }
    for (uint32_t r = 0; r < plane->world; r++) {
      const bool waited = awaits(exchange, r) || exchange->peers[r].accused;
      if (r != plane->rank && waited && (all || !has_spoken(round, r))) name(round, r);
    }
  }
  if (reason->n_ranks == 0)
    zps_text_add(reason->text, sizeof reason->text, " no rank: they are here, but not all is computed");
}

void zps_peer_explain(struct zps_round *round) {
  struct zps_frame_abort *reason = &round->reason;
  const uint32_t blame = round->machine->blame;
  if (round->machine->code == ZPS_OK) return;
  if (round->machine->code == ZPS_ERR_TIMEOUT) {
    explain_timeout(round);
    return;
  }
  if (reason->text[0] != '\0') return;
  if (blame != ZPS_MACHINE_ALL)
    zps_text_add(reason->text, sizeof reason->text, "rank %" PRIu32 " (host %s): ", blame,
                 round->plane->ranks[blame].name);
  zps_text_add(reason->text, sizeof reason->text, "%s", zps_err_str(round->machine->code));
}
