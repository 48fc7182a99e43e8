/*
 * How many rows a set has, and the union of several, from a few of its rows: a bottom-k sketch (the smallest hashes of
 * the set). A sketch of a union is made of its parts' sketches, so gamma_k of any k ranks is known without looking at
 * their rows again; what is off is about 1 / sqrt(ZPS_PLAN_SKETCH). A server makes one of each contribution to one
 * partition while it checks the ranks there: rows fall into partitions by their hash, so one stands for all.
 */
#ifndef ZPS_PLAN_SKETCH_H
#define ZPS_PLAN_SKETCH_H

#include <stdint.h>

enum { ZPS_PLAN_SKETCH = 1024 };

struct zps_plan_sketch {
  uint32_t n;                         /* hashes kept */
  uint64_t hash[ZPS_PLAN_SKETCH + 1]; /* a heap, the greatest first; one more than is kept, for the estimate */
};

void zps_plan_sketch_clear(struct zps_plan_sketch *sketch);
/* Rows each at most once per sketch; any order. */
void zps_plan_sketch_add(struct zps_plan_sketch *sketch, const uint32_t *rows, uint32_t n);
/* `sketch` becomes that of the union. */
void zps_plan_sketch_merge(struct zps_plan_sketch *sketch, const struct zps_plan_sketch *other);
/* Rows in the set: exact while all are kept. */
double zps_plan_sketch_rows(const struct zps_plan_sketch *sketch);

#endif
