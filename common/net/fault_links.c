/* The fault injector's faults of connections: messages that later ones overtake, and connections that are cut. */
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/net/fault_impl.h"
#define ZPS_LOG_COMPONENT "fault"
#include "common/base/log.h"

enum { OVERTAKERS_MAX = 32 };         /* A link has no more frames under way behind one, so no more can overtake it. */
#define CLAIM_NS (50 * ZPS_NS_PER_MS) /* A stranger stays so long, at most. */
#define HELD_NS ZPS_NS_PER_MS         /* A message that nothing follows comes late, but comes. */

static void held_remove(struct fault_peer *peer, struct delayed **link) {
  struct delayed *const held = *link;
  *link = held->next;
  peer->n_held--;
  free(held);
}

/* Sends the held messages that are due, or that have been overtaken by as many as may be. */
static zps_err_t held_forward(struct fault *fault, struct fault_peer *peer, uint64_t now_ns, unsigned *sent_p) {
  struct delayed **link = &peer->held;
  while (*link) {
    const struct delayed *held = *link;
    if (held->n_ahead > 0 && held->due_ns > now_ns) {
      link = &(*link)->next;
      continue;
    }
    const zps_err_t code = zps_fault_forward(fault, peer, held->data, held->len);
    if (code == ZPS_ERR_AGAIN || code == ZPS_ERR_NOMEM) return code;
    held_remove(peer, link);
    ++*sent_p;
  }
  return ZPS_OK;
}

zps_err_t zps_fault_order(struct fault *fault, struct fault_peer *peer, const void *data, size_t len) {
  unsigned sent = 0;
  zps_err_t code = held_forward(fault, peer, 0, &sent);
  if (code != ZPS_OK) return code; /* Nothing more may overtake what could not leave. */
  if (!fault->shut && zps_fault_chance(fault, fault->rules.reorder)) {
    struct delayed *const held = zps_fault_delayed_create(data, len, zps_clock_ns() + HELD_NS);
    if (!held) return ZPS_ERR_NOMEM;
    held->n_ahead = 1 + (unsigned)zps_rng_below(&fault->rng, OVERTAKERS_MAX);
    held->next = peer->held;
    peer->held = held;
    peer->n_held++;
    return ZPS_OK;
  }
  code = zps_fault_forward(fault, peer, data, len);
  if (code != ZPS_OK) return code;
  for (struct delayed *held = peer->held; held; held = held->next) held->n_ahead--;
  return ZPS_OK;
}

unsigned zps_fault_held_send(struct fault *fault, uint64_t now_ns) {
  unsigned sent = 0;
  for (struct fault_peer *peer = fault->peers; peer && !fault->silent; peer = peer->next)
    if (held_forward(fault, peer, now_ns, &sent) != ZPS_OK) zps_log_trace("held messages wait for the fabric");
  return sent;
}

static void cut(struct fault *fault, struct fault_peer *peer, bool tells_us, bool tells_peer) {
  zps_log_debug("endpoint %s cuts the connection to a peer", fault->net.info.address);
  zps_fault_peer_clear(peer);
  zps_fault_reads_cut(fault, peer);
  const struct zps_net_ops *const ops = peer->inner->net->ops;
  if (ops->cut)
    ops->cut(peer->inner, tells_us, tells_peer);
  else
    zps_net_peer_cut(peer->inner);
}

static void cut_by_dice(struct fault *fault, struct fault_peer *peer) {
  const uint64_t dice = zps_rng_u64(&fault->rng);
  cut(fault, peer, dice & 1, dice & 2);
}

/* The peer's connection ends. Messages and reads of this end go to the stranger, until that one leaves. */
static void claim(struct fault *fault, struct fault_peer *peer) {
  cut(fault, peer, false, true);
  peer->claimed_to_ns = zps_clock_ns() + 1 + zps_rng_below(&fault->rng, CLAIM_NS);
}

void zps_fault_claims_end(struct fault *fault, uint64_t now_ns) {
  for (struct fault_peer *peer = fault->peers; peer; peer = peer->next) {
    if (peer->claimed_to_ns == 0 || peer->claimed_to_ns > now_ns) continue;
    peer->claimed_to_ns = 0;
    zps_fault_reads_cut(fault, peer);
  }
}

static bool may_cut(const struct fault *fault) {
  return !fault->silent && !fault->shut && !fault->closing;
}

void zps_fault_cut_by_chance(struct fault *fault, struct fault_peer *peer) {
  if (may_cut(fault) && zps_fault_chance(fault, fault->rules.cut)) cut_by_dice(fault, peer);
  if (may_cut(fault) && zps_fault_chance(fault, fault->rules.claim)) claim(fault, peer);
}

void zps_fault_cut_by_time(struct fault *fault, uint64_t now_ns) {
  if (fault->rules.cut_ns == 0 || !may_cut(fault)) return;
  const bool is_due = fault->next_cut_ns > 0 && fault->next_cut_ns <= now_ns;
  if (is_due || fault->next_cut_ns == 0) fault->next_cut_ns = now_ns + fault->rules.cut_ns;
  if (!is_due) return;
  uint64_t n_peers = 0;
  for (const struct fault_peer *peer = fault->peers; peer; peer = peer->next) n_peers++;
  if (n_peers == 0) return;
  struct fault_peer *peer = fault->peers;
  for (uint64_t i = zps_rng_below(&fault->rng, n_peers); i > 0; i--) peer = peer->next;
  cut_by_dice(fault, peer);
}

uint64_t zps_fault_links_next_due_ns(const struct fault *fault) {
  uint64_t due_ns = ZPS_NEVER;
  if (!may_cut(fault)) return due_ns;
  if (fault->next_cut_ns > 0 && fault->peers) due_ns = fault->next_cut_ns;
  for (const struct fault_peer *peer = fault->peers; peer; peer = peer->next) {
    if (peer->claimed_to_ns > 0 && peer->claimed_to_ns < due_ns) due_ns = peer->claimed_to_ns;
    for (const struct delayed *held = peer->held; held; held = held->next)
      if (held->due_ns < due_ns) due_ns = held->due_ns;
  }
  return due_ns;
}
