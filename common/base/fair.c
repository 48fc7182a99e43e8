#include "common/base/fair.h"

#include <stdlib.h>

struct zps_fair_flow *zps_fair_flow_create(uint32_t weight) {
  struct zps_fair_flow *const flow = calloc(1, sizeof *flow);
  if (!flow) return NULL;
  flow->weight = weight;
  flow->n_users = 1;
  return flow;
}

struct zps_fair_flow *zps_fair_flow_ref(struct zps_fair_flow *flow) {
  if (flow) __atomic_fetch_add(&flow->n_users, 1, __ATOMIC_RELAXED);
  return flow;
}

void zps_fair_flow_unref(struct zps_fair_flow *flow) {
  if (flow && __atomic_fetch_sub(&flow->n_users, 1, __ATOMIC_ACQ_REL) == 1) free(flow);
}

static uint64_t others_of(const struct zps_fair *fair, const struct zps_fair_flow *flow) {
  return fair->served - flow->served.all;
}

/* Where only one flow has items, or none, these ascend as they come: the last one is looked at first. */
static void insert(struct zps_fair *fair, struct zps_fair_item *item) {
  item->next = NULL;
  fair->n++;
  if (!fair->last || fair->last->start <= item->start) {
    *(fair->last ? &fair->last->next : &fair->first) = item;
    fair->last = item;
    return;
  }
  struct zps_fair_item **at = &fair->first;
  while ((*at)->start <= item->start) at = &(*at)->next;
  item->next = *at;
  *at = item;
}

void zps_fair_add(struct zps_fair *fair, struct zps_fair_flow *flow, struct zps_fair_item *item, uint64_t cost) {
  item->flow = flow;
  item->cost = cost ? cost : 1;
  item->start = fair->last ? fair->last->start : fair->now;
  if (flow) {
    item->start = flow->end > fair->now ? flow->end : fair->now;
    item->others = others_of(fair, flow);
    flow->end = item->start + (item->cost + flow->weight - 1) / flow->weight;
    zps_fair_flow_ref(flow)->n_queued++;
    fair->n_owned++;
  }
  insert(fair, item);
}

static void leave(struct zps_fair *fair, const struct zps_fair_item *item) {
  fair->n--;
  if (!item->flow) return;
  fair->n_owned--;
  item->flow->n_queued--;
}

/* Items of no flow are no others: they are helpers of whoever is being served. */
static void count(struct zps_fair *fair, const struct zps_fair_item *item) {
  struct zps_fair_flow *const flow = item->flow;
  flow->served.waited += others_of(fair, flow) - item->others;
  flow->served.all += item->cost;
  if (fair->n_owned > flow->n_queued) flow->served.contested += item->cost;
  fair->served += item->cost;
}

struct zps_fair_item *zps_fair_take(struct zps_fair *fair) {
  struct zps_fair_item *const item = fair->first;
  if (!item) return NULL;
  fair->first = item->next;
  if (!fair->first) fair->last = NULL;
  fair->now = item->start;
  leave(fair, item);
  if (item->flow) count(fair, item);
  zps_fair_flow_unref(item->flow);
  return item;
}

unsigned zps_fair_remove(struct zps_fair *fair, bool (*is_it)(void *ctx, const struct zps_fair_item *item), void *ctx) {
  unsigned n = 0;
  struct zps_fair_item **at = &fair->first;
  fair->last = NULL;
  while (*at) {
    struct zps_fair_item *const item = *at;
    if (is_it(ctx, item)) {
      *at = item->next;
      leave(fair, item);
      zps_fair_flow_unref(item->flow);
      n++;
    } else {
      fair->last = item;
      at = &item->next;
    }
  }
  return n;
}
