/*
 * The bytes of reads to keep in flight to one peer: as many as its share of the links delivers in a round trip, and a
 * little more, which waits in a queue somewhere and keeps the link busy.
 *
 * A window of fixed size either starves fast fabrics or fills the queues of slow ones until packets are dropped; flows
 * then get unequal shares of a link, and a round takes as long as the slowest of them. Here every flow aims at the same
 * few bytes in queues, wherever these are, as delay-based congestion control does, so that shares become equal:
 *
 *     window = rate * (1.5 * (shortest round trip - NEAR_NS) + QUEUE_NS) + QUEUE_BYTES / flows,
 *     rate = window / round trip
 *
 * Half of a round trip is on top, because bytes that are asked for together come together, and wait for each other. The
 * first 5 ms of the shortest round trip do not count: QUEUE_NS covers them, and they are the processors' more than the
 * path's, so that endpoints which were not equally busy would get different shares.
 *
 * The shortest round trip is meant to be that of the path alone. A flow that was never alone in the queue of its peer
 * does not know it, and would take that queue for a long path and keep it full, which holds up all that the peer's host
 * sends. Links of 25 Mbit/s take 60 ms for the bytes that may wait, so no number tells the two apart: paths are
 * measured by messages while nothing waits, when a peer is new (zps_window_trip()). What counts is the second shortest
 * trip of all flows of an endpoint, where a flow's own is longer: the shortest may be that of a peer on the same host,
 * others those of processes that were busy. Pure: no clock, no network.
 */
#ifndef ZPS_NET_WINDOW_H
#define ZPS_NET_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#define ZPS_WINDOW_PIECE_BYTES (32u << 10) /* of the least piece of a larger window */

struct zps_window;

/* Knowledge that the flows of an endpoint share. All zeros: nothing. */
struct zps_window_paths {
  const struct zps_window *nearest; /* only compared */
  uint64_t nearest_ns, second_ns;   /* the shortest round trips of two flows; 0: none */
  unsigned most_flows;              /* in use at a time, lately */
  uint64_t most_flows_ns;           /* when it last was so many */
};

struct zps_window {
  uint64_t bytes;            /* the window */
  uint64_t least_trip_ns;    /* of all messages and pieces so far; UINT64_MAX: none has come */
  uint64_t since_ns;         /* begin of the measurement at hand; 0: none */
  uint64_t landed, trips_ns; /* in it: bytes, and the sum of the pieces' round trips */
  unsigned n_pieces;
  bool is_further; /* of a further rail to a peer: the first one's path counts for both */
  bool was_idle;   /* in it no bytes were left to ask for: short trips then do not call for a larger window */
};

void zps_window_init(struct zps_window *window);
/* A small message has come to the peer and been answered in `trip_ns`. */
void zps_window_trip(struct zps_window *window, struct zps_window_paths *paths, uint64_t trip_ns);
/* A piece has come, `trip_ns` after it was asked for; `n_flows` (>= 1) are in use. The window never exceeds
 * `most_bytes`. A flow's room in queues goes by the most flows of late: where a phase begins or ends an endpoint has
 * few, but then all endpoints may read from the same peer. */
void zps_window_landed(struct zps_window *window, struct zps_window_paths *paths, uint64_t len_bytes, uint64_t trip_ns,
                       uint64_t now_ns, unsigned n_flows, uint64_t most_bytes);
/* No bytes are left to ask for. */
void zps_window_idle(struct zps_window *window);
/* The bytes of a piece: several pieces make a window, two for each connection where it is large, and few enough that
 * they cost little. A small window is one piece: of many flows there is always one that keeps the link busy meanwhile.
 */
uint64_t zps_window_piece(const struct zps_window *window, uint64_t most_bytes, unsigned n_connections);

#endif
