/*
 * How many bytes of reads to keep in flight to one peer: what its share of the links delivers in a round trip, and a
 * little more, which waits in a queue somewhere and keeps the link busy.
 *
 * A window of fixed size either starves fast fabrics or fills the queues of slow ones until packets are dropped; flows
 * then get unequal shares of a link, and a round takes as long as the slowest of them. Here every flow aims at the same
 * few bytes in queues, wherever these are, as delay-based congestion control does, so that shares become equal:
 *
 *     window = rate * (shortest round trip + QUEUE_NS) + QUEUE_BYTES / flows,   rate = window / round trip
 *
 * The shortest round trip is meant to be that of the path alone. A flow that was never alone in the queue of its peer
 * does not know it, and would take that queue for a long path and keep it full, which holds up all that the peer's host
 * sends. So what counts is the second shortest of all flows of an endpoint, where a flow's own is longer: the shortest
 * may be that of a peer on the same host. And below 25 ms it counts as none: all of a cluster's paths are much shorter,
 * and endpoints that began behind different queues would get different shares. Pure: no clock, no network.
 */
#ifndef ZPS_NET_WINDOW_H
#define ZPS_NET_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

struct zps_window;

/* What the flows of an endpoint know together. All zeros: nothing. */
struct zps_window_paths {
  const struct zps_window *nearest; /* only compared */
  uint64_t nearest_ns, second_ns;   /* the shortest round trips of two flows; 0: none */
};

struct zps_window {
  uint64_t bytes;            /* the window */
  uint64_t least_trip_ns;    /* of all pieces so far; UINT64_MAX: none has come */
  uint64_t since_ns;         /* begin of the measurement at hand; 0: none */
  uint64_t landed, trips_ns; /* in it: bytes, and the sum of the pieces' round trips */
  unsigned n_pieces;
  bool was_idle; /* in it nothing was left to ask for: short trips then do not call for more */
};

void zps_window_init(struct zps_window *window);
/* A piece has come, `trip_ns` after it was asked for; `n_flows` (>= 1) share the queues. The window never exceeds
 * `most`. */
void zps_window_landed(struct zps_window *window, struct zps_window_paths *paths, uint64_t len_bytes, uint64_t trip_ns,
                       uint64_t now_ns, unsigned n_flows, uint64_t most_bytes);
/* Nothing is left to ask for. */
void zps_window_idle(struct zps_window *window);
/* What to read at a time: several pieces to a window, and few enough that they cost little. */
uint64_t zps_window_piece(const struct zps_window *window, uint64_t most_bytes);

#endif
