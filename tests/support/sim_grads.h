/* Gradients for all ranks of a simulated job, and their plain sum. */
#ifndef ZPS_TESTS_SIM_GRADS_H
#define ZPS_TESTS_SIM_GRADS_H

#include "common/base/rng.h"
#include "worker/compute/gradient.h"

enum sim_values {
  SIM_DYADIC, /* small multiples of 1/8: every order of sums yields the same */
  SIM_RANDOM, /* rounding shows the order */
};

struct sim_grads {
  uint32_t n, width;
  enum zps_dtype dtype;
  uint64_t rows;
  struct zps_own_input *inputs; /* n; dense arrays, or unsorted COO rows for odd positions where asked for */
};

/* Each rank has about density * rows rows that are not zero: drawn anywhere; the same on all ranks (`overlap` 1); or
 * (`overlap` -1) only rows that are i modulo n, on rank i. */
struct sim_grads sim_grads_draw(struct zps_rng *rng, uint32_t n, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                                double density, int overlap, enum sim_values values, bool coo);
void sim_grads_free(struct sim_grads *grads);
/* Values of one rank's dense gradient, as doubles: rows * width of them, the caller's to free. */
double *sim_grads_dense(const struct sim_grads *grads, uint32_t i);
uint64_t sim_grads_nnz(const struct sim_grads *grads, uint32_t i);
/* The sum in rank order, rounded to the dtype after each addition, as doubles; `union_p`: rows that some rank has. */
double *sim_grads_sum(const struct sim_grads *grads, uint64_t *union_p);
/* Element `i` of an array of the dtype. */
double sim_load(enum zps_dtype dtype, const void *values, uint64_t i);

#endif
