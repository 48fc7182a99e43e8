/*
 * A fair queue of reads. Peers with something to read belong to flows (jobs). Flows have turns by weight, in bytes, by
 * start-time fair queueing, as in common/base/fair.h; the peers of a flow go round. A flow that cannot go on at the
 * moment is passed over and saves nothing up. The length of a piece is found when its turn has come.
 *
 * Pure.
 */
#ifndef ZPS_NET_READ_QUEUE_H
#define ZPS_NET_READ_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

/* Embedded in what its peers belong to; must live as long as they take turns. */
struct zps_read_flow {
  uint32_t weight;            /* 1 or more; set before its first peer takes turns */
  struct zps_read_flow *next; /* private from here on */
  struct zps_read_turn *turn; /* of the peer that is next; NULL: none has anything to read */
  uint64_t start, passed;
};

/* A peer; embedded. */
struct zps_read_turn {
  struct zps_read_flow *flow;
  struct zps_read_turn *next, *prev; /* in the flow's ring; NULL: it is not in it */
};

/* Zeroed, there are none. */
struct zps_read_queue {
  struct zps_read_flow *flows; /* Flows that have peers, in order of arrival. */
  uint64_t now;                /* the start of the piece that was read last */
  uint64_t n_walks;
};

/* Puts a turn last in its flow. A turn that is in already keeps its place. */
void zps_read_queue_add(struct zps_read_queue *turns, struct zps_read_turn *turn);
/* Takes a turn out. A turn that is not in is left alone. */
void zps_read_queue_remove(struct zps_read_queue *turns, struct zps_read_turn *turn);
/* The first one that `may` read now, of the flow that is next; it stays its turn until it was taken. NULL: none may. */
struct zps_read_turn *zps_read_queue_next(struct zps_read_queue *turns,
                                          bool (*may)(void *ctx, const struct zps_read_turn *turn), void *ctx);
/* The one that was found has had its turn, of so many bytes. */
void zps_read_queue_take(struct zps_read_queue *turns, struct zps_read_turn *turn, uint64_t len_bytes);

#endif
