/*
 * A queue whose items belong to flows, which are served in proportion to their weights: start-time fair queueing. An
 * item has a start, in units of cost by weight: where its flow's last one ends, or where the queue is now, whichever is
 * later; the one with the smallest start is next. So a flow that has asked for little is never behind more than one
 * item of each other flow for each of its own, however many they have queued; a flow that was idle has saved nothing
 * up; and items of one flow, or of none, leave as they came.
 *
 * Pure, and one thread's at a time, but for references to flows, which any thread takes and gives back.
 */
#ifndef ZPS_BASE_FAIR_H
#define ZPS_BASE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#define ZPS_FAIR_WEIGHT_MAX 1000u

/* What a flow has been served, in cost. */
struct zps_fair_served {
  uint64_t all;       /* since it began */
  uint64_t contested; /* of that, while items of other flows were waiting */
  uint64_t waited;    /* of others', while items of this one were waiting: summed over its items */
};

/* There until its last reference is given back and its last item was taken. */
struct zps_fair_flow {
  uint32_t weight;
  unsigned n_users; /* references and items; any thread changes it */
  unsigned n_queued;
  uint64_t end; /* of its last item */
  struct zps_fair_served served;
};

/* A reference to a flow of this weight, 1 to ZPS_FAIR_WEIGHT_MAX. NULL: no memory. */
struct zps_fair_flow *zps_fair_flow_create(uint32_t weight);
/* Both allow NULL. */
struct zps_fair_flow *zps_fair_flow_ref(struct zps_fair_flow *flow);
void zps_fair_flow_unref(struct zps_fair_flow *flow);

struct zps_fair_item {
  struct zps_fair_item *next;
  struct zps_fair_flow *flow;
  uint64_t start, cost, others; /* others: what the other flows had been served when it came */
};

/* Zeroed, it is empty. */
struct zps_fair {
  struct zps_fair_item *first, *last; /* by ascending start; equal ones as they came */
  unsigned n, n_owned;                /* n_owned: of flows */
  uint64_t now;                       /* the start of the item that was taken last */
  uint64_t served;                    /* cost of all items of flows that were taken */
};

/* `cost` is at most 2^48, and counts as 1 where it is 0. `flow` NULL: behind all that is there. */
void zps_fair_add(struct zps_fair *fair, struct zps_fair_flow *flow, struct zps_fair_item *item, uint64_t cost);
/* NULL: it is empty. */
struct zps_fair_item *zps_fair_take(struct zps_fair *fair);
/* Takes out all for which `is_it` says so, as if they had never come, but for where their flows end. How many. */
unsigned zps_fair_remove(struct zps_fair *fair, bool (*is_it)(void *ctx, const struct zps_fair_item *item), void *ctx);

#endif
