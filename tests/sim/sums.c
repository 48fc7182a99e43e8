#include "tests/sim/sums.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"

/* Magnitudes differ, so that another order of additions gives other bits. */
static float value(uint64_t word) {
  const float magnitude = (float)(1 + (word & 0xffffff)) * (float)(1 << (word >> 24 & 15));
  return word >> 40 & 1 ? magnitude : -magnitude;
}

uint64_t sim_gradient(const struct sim_plan *plan, uint32_t tensor, uint64_t step, uint32_t rank, float *values,
                      int64_t *row_ids, float *packed) {
  const struct sim_tensor_plan *const of = &plan->tensors[tensor];
  struct zps_rng rng = {plan->seed * 1000003 + tensor * 7919 + step * 104729 + rank};
  uint64_t nnz = 0;
  for (uint64_t row = 0; row < of->rows; row++) {
    float *const at = values + row * of->width;
    const bool is_there = (zps_rng_u64(&rng) & 255) < of->density;
    for (uint32_t w = 0; w < of->width; w++) at[w] = is_there ? value(zps_rng_u64(&rng)) : 0;
    if (!is_there) continue;
    if (row_ids) row_ids[nnz] = (int64_t)row;
    if (packed) memcpy(packed + nnz * of->width, at, of->width * sizeof *at);
    nnz++;
  }
  return nnz;
}

bool sim_sum_check(const struct sim_plan *plan, uint32_t tensor, uint64_t step, struct sim_rows rows,
                   const float *result) {
  const struct sim_tensor_plan *const of = &plan->tensors[tensor];
  const uint64_t n = of->rows * of->width;
  float *const sum = calloc(n, sizeof *sum), *const one = malloc(n * sizeof *one);
  for (uint32_t rank = 0; rank < plan->world; rank++) {
    sim_gradient(plan, tensor, step, rank, one, NULL, NULL);
    for (uint64_t i = 0; i < n; i++) sum[i] += one[i];
  }
  if (of->op == ZENPS_OP_MEAN)
    for (uint64_t i = 0; i < n; i++) sum[i] *= 1.0f / (float)plan->world;
  const bool is_right = memcmp(sum + rows.first * of->width, result, rows.count * of->width * sizeof *sum) == 0;
  free(sum);
  free(one);
  return is_right;
}
