#include "tests/sim/sums.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"

enum {
  STEPS_MAX = 1024, /* attempts at steps, of a run */
  KEPT = 8,         /* steps of a tensor whose gradients are at hand: ranks are never far apart */
};

/* Magnitudes differ, so that another order of additions gives other bits. */
static float value(uint64_t word) {
  const float magnitude = (float)(1 + (word & 0xffffff)) * (float)(1 << (word >> 24 & 15));
  return word >> 40 & 1 ? magnitude : -magnitude;
}

/* Whole numbers whose sums are exact, in whatever order. */
static float plain_value(uint64_t word) {
  const float magnitude = (float)(1 + (word & 0xffff));
  return word >> 40 & 1 ? magnitude : -magnitude;
}

static void gradient_make(const struct sim_plan *plan, uint32_t tensor, uint64_t step, uint32_t rank, float *values) {
  const struct sim_tensor_plan *const of = &plan->tensors[tensor];
  struct zps_rng rng = {plan->seed * 1000003 + tensor * 7919 + step * 104729 + rank};
  float (*const make)(uint64_t word) = of->order == SIM_ORDER_RANKS ? value : plain_value;
  for (uint64_t row = 0; row < of->rows; row++) {
    float *const at = values + row * of->width;
    const bool is_there = (zps_rng_u64(&rng) & 255) < of->density;
    for (uint32_t w = 0; w < of->width; w++) at[w] = is_there ? make(zps_rng_u64(&rng)) : 0;
  }
}

/* The gradients of all ranks, one behind the other, until those of KEPT other steps were asked for. */
static const float *gradients(const struct sim_plan *plan, uint32_t tensor, uint64_t step) {
  static struct {
    uint64_t step;
    float *values; /* NULL: none yet */
  } kept[SIM_JOBS_MAX][SIM_TENSORS_MAX][KEPT], *at;
  const uint64_t n = plan->tensors[tensor].rows * plan->tensors[tensor].width;
  at = &kept[plan->job][tensor][step % KEPT];
  float **const values = &at->values;
  if (*values && at->step == step) return *values;
  if (!*values) *values = malloc(SIM_RANKS_MAX * n * sizeof **values); /* generations have more or fewer */
  at->step = step;
  for (uint32_t rank = 0; rank < plan->world; rank++) gradient_make(plan, tensor, step, rank, *values + rank * n);
  return *values;
}

uint64_t sim_gradient(const struct sim_plan *plan, uint32_t tensor, uint64_t step, uint32_t rank, float *values,
                      int64_t *row_ids, float *packed) {
  const struct sim_tensor_plan *const of = &plan->tensors[tensor];
  const uint64_t n = of->rows * of->width;
  uint64_t nnz = 0;
  memcpy(values, gradients(plan, tensor, step) + rank * n, n * sizeof *values);
  for (uint64_t row = 0; row < of->rows && (row_ids || packed); row++) {
    const float *const at = values + row * of->width;
    bool is_there = false; /* no value of a row that is there is 0 */
    for (uint32_t w = 0; w < of->width && !is_there; w++) is_there = at[w] != 0;
    if (!is_there) continue;
    if (row_ids) row_ids[nnz] = (int64_t)row;
    if (packed) memcpy(packed + nnz * of->width, at, of->width * sizeof *at);
    nnz++;
  }
  return nnz;
}

static float factor_of(const struct sim_plan *plan, const struct sim_tensor_plan *of, unsigned late) {
  const int n = (int)plan->world - __builtin_popcount(late);
  return of->op == ZENPS_OP_MEAN ? 1.0f / (float)n : 1.0f;
}

static bool is_sum(const struct sim_plan *plan, uint32_t tensor, const float *all, struct sim_rows rows, unsigned late,
                   const float *result) {
  const struct sim_tensor_plan *const of = &plan->tensors[tensor];
  const uint64_t n = of->rows * of->width, first = rows.first * of->width;
  const float factor = factor_of(plan, of, late);
  bool is_right = true;
  for (uint64_t i = 0; i < rows.count * of->width && is_right; i++) {
    float sum = 0;
    for (uint32_t rank = 0; rank < plan->world; rank++)
      if (!(late >> rank & 1)) sum += all[rank * n + first + i];
    if (of->op == ZENPS_OP_MEAN) sum *= factor;
    is_right = memcmp(&sum, &result[i], sizeof sum) == 0;
  }
  return is_right;
}

/* Whether a row is the sum of these ranks' rows. */
static bool is_sum_of(const struct sim_plan *plan, const struct sim_tensor_plan *of, const float *all, unsigned ranks,
                      const float *row, uint64_t at) {
  const uint64_t n = of->rows * of->width;
  const float factor = factor_of(plan, of, 0);
  bool is_right = true;
  for (uint32_t w = 0; w < of->width && is_right; w++) {
    float sum = 0;
    for (uint32_t rank = 0; rank < plan->world; rank++)
      if (ranks >> rank & 1) sum += all[rank * n + at + w];
    is_right = sum * factor == row[w];
  }
  return is_right;
}

/* Whether each row is the sum of some ranks' rows, or of none. */
static bool is_sum_of_some(const struct sim_plan *plan, uint32_t tensor, const float *all, const float *result) {
  const struct sim_tensor_plan *const of = &plan->tensors[tensor];
  bool is_right = true;
  for (uint64_t at = 0; at < of->rows * of->width && is_right; at += of->width) {
    unsigned ranks = 0;
    while (ranks < 1u << plan->world && !is_sum_of(plan, of, all, ranks, result + at, at)) ranks++;
    is_right = ranks < 1u << plan->world;
  }
  return is_right;
}

/* Whether it is what the first rank had that looked at this sum. */
static bool is_that_of_others(const struct sim_plan *plan, uint32_t run, uint32_t tensor, uint64_t step,
                              const float *result) {
  static uint64_t digests[SIM_RUNS_MAX][SIM_TENSORS_MAX][STEPS_MAX];
  const struct sim_tensor_plan *const of = &plan->tensors[tensor];
  uint64_t digest = 1;
  for (uint64_t i = 0; i < of->rows * of->width; i++) {
    uint32_t word;
    memcpy(&word, &result[i], sizeof word);
    digest = (digest ^ word) * 1099511628211u;
  }
  if (digest == 0) digest = 1;
  uint64_t *const first = &digests[run][tensor][step % STEPS_MAX];
  if (*first == 0) *first = digest;
  return *first == digest;
}

/* The late ranks of a step, and the ranks that were told so. A bit each. */
static struct late { unsigned late, told, lost; } lates[SIM_RUNS_MAX][SIM_TENSORS_MAX][STEPS_MAX];

bool sim_late_is_that_of_others(uint32_t run, uint32_t tensor, uint64_t step, uint32_t rank, unsigned late) {
  struct late *const known = &lates[run][tensor][step % STEPS_MAX];
  if (known->lost >> rank & 1) return true;
  if (known->told == 0) known->late = late;
  known->told |= 1u << rank;
  return known->late == late;
}

void sim_late_forget(uint64_t first_step, uint64_t n_steps, uint32_t rank) {
  for (uint32_t t = 0; t < SIM_TENSORS_MAX; t++) {
    for (uint64_t step = first_step; step < first_step + n_steps; step++) {
      lates[0][t][step % STEPS_MAX].told &= ~(1u << rank);
      lates[0][t][step % STEPS_MAX].lost |= 1u << rank;
    }
  }
}

bool sim_sum_check(const struct sim_plan *plan, uint32_t run, uint32_t tensor, uint64_t step, struct sim_rows rows,
                   unsigned late, const float *result) {
  const float *const all = gradients(plan, tensor, step);
  if (plan->tensors[tensor].order != SIM_ORDER_SOME) return is_sum(plan, tensor, all, rows, late, result);
  return is_sum_of_some(plan, tensor, all, result) && is_that_of_others(plan, run, tensor, step, result);
}
