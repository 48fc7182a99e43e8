/*
 * Whose turn it is to have a piece read. Peers that have something to read belong to flows (jobs), which have turns by
 * weight, in bytes, by start-time fair queueing, as in common/base/fair.h; peers of a flow go round. Here a flow that
 * cannot go on at the moment is passed over and saves nothing up, and a piece is as long as it is found to be when its
 * turn has come.
 *
 * Pure.
 */
#ifndef ZPS_NET_TURNS_H
#define ZPS_NET_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/* Embedded in what its peers belong to; must live as long as they take turns. */
struct zps_turns_flow {
  uint32_t weight;             /* 1 or more; set before its first peer takes turns */
  struct zps_turns_flow *next; /* private from here on */
  struct zps_turn *turn;       /* of the peer that is next; NULL: none has anything to read */
  uint64_t start, passed;
};

/* A peer; embedded. */
struct zps_turn {
  struct zps_turns_flow *flow;
  struct zps_turn *next, *prev; /* in the flow's ring; NULL: it is not in it */
};

/* Zeroed, there are none. */
struct zps_turns {
  struct zps_turns_flow *flows; /* Flows that have peers, in order of arrival. */
  uint64_t now;                 /* the start of the piece that was read last */
  uint64_t n_walks;
};

/* Puts a turn last in its flow. A turn that is in already keeps its place. */
void zps_turns_add(struct zps_turns *turns, struct zps_turn *turn);
/* Takes a turn out. A turn that is not in is left alone. */
void zps_turns_remove(struct zps_turns *turns, struct zps_turn *turn);
/* The first one that `may` read now, of the flow that is next; it stays its turn until it was taken. NULL: none may. */
struct zps_turn *zps_turns_next(struct zps_turns *turns, bool (*may)(void *ctx, const struct zps_turn *turn),
                                void *ctx);
/* The one that was found has had its turn, of so many bytes. */
void zps_turns_take(struct zps_turns *turns, struct zps_turn *turn, uint64_t len_bytes);

#endif
