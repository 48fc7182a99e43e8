/*
 * xi of Ok-Topk's assumption 1, as training goes on [Ok-Topk equation 5, section 5.1, figure 5]: how far the update
 * that a scheme makes is from that of the k greatest values of all accumulators' sum, over the norm of what the whole
 * gradient would have made of the step:
 *
 *   xi = |Topk(1/P sum acc_i) - u/P| / |alpha 1/P sum G_i|
 *
 * where u is the scheme's result, Topk(sum Topk(acc_i)) but for its thresholds. It takes two further sums of a step.
 */
#ifndef ZPS_EXAMPLES_TRAIN_XI_H
#define ZPS_EXAMPLES_TRAIN_XI_H

#include <stdbool.h>
#include <zenps/sparsify.h>
#include <zenps/zenps.h>

struct grad; /* train.h */

struct train_xi { /* of one tensor; all zeros: not measured */
  uint64_t every; /* steps */
  uint64_t n, k;  /* values, and those that are kept */
  zenps_tensor_t *accumulators, *gradients;
  float *sum;        /* of the accumulators */
  bool due;          /* between before() and after(); */
  double whole_norm; /* the denominator, times P */
};

/* False, with zenps_last_error()'s reason. Collective. */
bool train_xi_open(struct train_xi *xi, zenps_job_t *job, const char *name, uint64_t rows, uint32_t width, uint64_t k,
                   uint64_t every);
void train_xi_close(struct train_xi *xi);
/* Of step `step`: `accumulator` is what the rank selects from, n values; `rate` times `grad` what came to it. Does
 * nothing where the step is not due. Collective. */
bool train_xi_before(struct train_xi *xi, uint64_t step, const void *accumulator, const struct grad *grad, double rate);
/* `update`: the result, rows of one value each, which ascend. *xi_p, where the step was due: true in *is_p. */
bool train_xi_after(struct train_xi *xi, const zenps_grad_t *update, bool *is_p, double *xi_p);

#endif
