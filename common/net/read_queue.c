#include "common/net/read_queue.h"

#include <stddef.h>

void zps_read_queue_add(struct zps_read_queue *turns, struct zps_read_turn *turn) {
  struct zps_read_flow *const flow = turn->flow;
  if (turn->next) return;
  if (flow->turn) {
    turn->next = flow->turn; /* before the one that is next */
    turn->prev = flow->turn->prev;
    turn->prev->next = turn->next->prev = turn;
    return;
  }
  struct zps_read_flow **link = &turns->flows;
  while (*link) link = &(*link)->next;
  *link = flow;
  flow->next = NULL;
  flow->turn = turn->next = turn->prev = turn;
  flow->passed = 0;
}

void zps_read_queue_remove(struct zps_read_queue *turns, struct zps_read_turn *turn) {
  struct zps_read_flow *const flow = turn->flow;
  if (!turn->next) return;
  if (flow->turn == turn) flow->turn = turn->next == turn ? NULL : turn->next;
  turn->next->prev = turn->prev;
  turn->prev->next = turn->next;
  turn->next = turn->prev = NULL;
  if (flow->turn) return;
  struct zps_read_flow **link = &turns->flows;
  while (*link != flow) link = &(*link)->next;
  *link = flow->next;
}

/* Where it was idle, or could not go on, it begins where the others are now. */
static uint64_t start_of(const struct zps_read_queue *turns, const struct zps_read_flow *flow) {
  return flow->start > turns->now ? flow->start : turns->now;
}

static struct zps_read_flow *next_flow(const struct zps_read_queue *turns) {
  struct zps_read_flow *first = NULL;
  for (struct zps_read_flow *flow = turns->flows; flow; flow = flow->next)
    if (flow->passed != turns->n_walks && (!first || start_of(turns, flow) < start_of(turns, first))) first = flow;
  return first;
}

struct zps_read_turn *zps_read_queue_next(struct zps_read_queue *turns,
                                          bool (*may)(void *ctx, const struct zps_read_turn *turn), void *ctx) {
  turns->n_walks++;
  for (struct zps_read_flow *flow; (flow = next_flow(turns)) != NULL;) {
    struct zps_read_turn *turn = flow->turn;
    do {
      if (may(ctx, turn)) {
        flow->turn = turn;
        return turn;
      }
      turn = turn->next;
    } while (turn != flow->turn);
    flow->passed = turns->n_walks;
  }
  return NULL;
}

void zps_read_queue_take(struct zps_read_queue *turns, struct zps_read_turn *turn, uint64_t len_bytes) {
  struct zps_read_flow *const flow = turn->flow;
  flow->turn = turn->next;
  turns->now = start_of(turns, flow);
  flow->start = turns->now + (len_bytes + flow->weight - 1) / flow->weight;
}
