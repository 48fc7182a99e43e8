/* Gradients that follow from seed, tensor, step and rank, and their sums in the order of ranks. */
#ifndef ZPS_TESTS_SIM_SUMS_H
#define ZPS_TESTS_SIM_SUMS_H

#include "tests/sim/plan.h"

/* `values` is rows * width; returns the rows that are not zero, listed in `row_ids` (rows of them at most), packed to
 * `packed`; these two may be NULL. */
uint64_t sim_gradient(const struct sim_plan *plan, uint32_t tensor, uint64_t step, uint32_t rank, float *values,
                      int64_t *row_ids, float *packed);
struct sim_rows {
  uint64_t first, count;
};
/* Whether `result` is these rows of the sum, bit for bit, without the ranks in `late`; where rows are left out (then it
 * has all rows), whether each is a sum of some ranks' rows, and all ranks of the run have the same. */
bool sim_sum_check(const struct sim_plan *plan, uint32_t run, uint32_t tensor, uint64_t step, struct sim_rows rows,
                   unsigned late, const float *result);
/* Whether the step's late ranks, as `rank` was told, are those that others were told. True for a lost rank. */
bool sim_late_is_that_of_others(uint32_t run, uint32_t tensor, uint64_t step, uint32_t rank, unsigned late);
/* The rank is lost in these steps of run 0: what it alone was told binds nobody. */
void sim_late_forget(uint64_t first_step, uint64_t n_steps, uint32_t rank);

#endif
