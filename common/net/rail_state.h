/*
 * The state of one rail to one peer: whether reads use it, and when it is tried again. Pure.
 *
 * A single loss may be a connection that ended early, or one that this process cut. The rail is tried again after a
 * second, without a warning. A second loss without a read in between takes the rail out for a minute, then for two, and
 * so on: each attempt over a dead link may cost a read some seconds. A rail is unsteady after three losses, if reads
 * landed between them and it was in use for less than 10 minutes each time. Each loss is then told, and takes it out
 * for minutes. After 10 minutes of use it is steady again.
 */
#ifndef ZPS_NET_RAIL_STATE_H
#define ZPS_NET_RAIL_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"

struct zps_rail_state {
  bool is_out;       /* reads use other rails */
  bool was_lost;     /* since a read landed over it */
  bool is_told;      /* the loss; cleared by the next read, or, on an unsteady rail, after 10 minutes of use */
  unsigned n_losses; /* with reads, and less than 10 minutes of use, in between */
  uint64_t cut_ns, pause_ns;
  uint64_t back_ns;               /* when it was last tried again */
  uint64_t tell_at_ns, try_at_ns; /* ZPS_NEVER: it was told of, or need not be */
  uint64_t n_landed;              /* reads from the peer, at the loss */
};

struct zps_rail_state_due {
  bool tells, tries;
};

void zps_rail_state_init(struct zps_rail_state *way);
/* This process is about to end the connection itself. */
void zps_rail_state_cut(struct zps_rail_state *way, uint64_t now_ns);
/* The peer gets new connections, and reads use them at once. An unsteady rail stays unsteady. */
void zps_rail_state_renew(struct zps_rail_state *way, uint64_t now_ns);
/* `n_landed`: reads that landed from the peer so far, over any rail. */
void zps_rail_state_lost(struct zps_rail_state *way, uint64_t n_landed, uint64_t now_ns);
void zps_rail_state_landed(struct zps_rail_state *way);
/* It is told of when reads over other rails land: a process that dies loses all of its rails. */
struct zps_rail_state_due zps_rail_state_look(struct zps_rail_state *way, uint64_t n_landed, uint64_t now_ns);
/* When to look; ZPS_NEVER: it is in use, and steady. */
uint64_t zps_rail_state_look_ns(const struct zps_rail_state *way);

#endif
