#include "common/plan/sketch.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

enum { KEPT = ZPS_PLAN_SKETCH + 1 };

void zps_plan_sketch_clear(struct zps_plan_sketch *sketch) {
  sketch->n = 0;
}

static void swap(uint64_t *a, uint64_t *b) {
  const uint64_t t = *a;
  *a = *b;
  *b = t;
}

static void sift_up(uint64_t *heap, uint32_t i) {
  for (; i > 0 && heap[(i - 1) / 2] < heap[i]; i = (i - 1) / 2) swap(heap + i, heap + (i - 1) / 2);
}

static void sift_down(uint64_t *heap, uint32_t n) {
  for (uint32_t i = 0, child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && heap[child + 1] > heap[child]) child++;
    if (heap[i] >= heap[child]) return;
    swap(heap + i, heap + child);
  }
}

static void add_hash(struct zps_plan_sketch *sketch, uint64_t hash) {
  if (sketch->n < KEPT) {
    sketch->hash[sketch->n] = hash;
    sift_up(sketch->hash, sketch->n++);
  } else if (hash < sketch->hash[0]) {
    sketch->hash[0] = hash;
    sift_down(sketch->hash, KEPT);
  }
}

void zps_plan_sketch_add(struct zps_plan_sketch *sketch, const uint32_t *rows, uint32_t n) {
  /* The finaliser keeps zero: rows are moved away from it. */
  for (uint32_t i = 0; i < n; i++) add_hash(sketch, zps_hash_mix64(rows[i] ^ 0x9e3779b97f4a7c15ull));
}

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

void zps_plan_sketch_merge(struct zps_plan_sketch *sketch, const struct zps_plan_sketch *other) {
  uint64_t all[2 * KEPT];
  memcpy(all, sketch->hash, sketch->n * sizeof all[0]);
  memcpy(all + sketch->n, other->hash, other->n * sizeof all[0]);
  const uint32_t n = sketch->n + other->n;
  qsort(all, n, sizeof all[0], compare);
  sketch->n = 0;
  for (uint32_t i = 0; i < n && sketch->n < KEPT; i++) {
    if (i == 0 || all[i] != all[i - 1]) add_hash(sketch, all[i]);
  }
}

double zps_plan_sketch_rows(const struct zps_plan_sketch *sketch) {
  if (sketch->n < KEPT) return sketch->n;
  return ZPS_PLAN_SKETCH / ((double)sketch->hash[0] / 0x1p64);
}
