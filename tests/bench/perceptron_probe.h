/*
 * What a training step's selection is compared with: the counts that each kind of threshold would give for the same
 * residual plus gradient (Ok-Topk figures 4 and 6), and xi of Ok-Topk's assumption 1 (figure 5).
 */
#ifndef ZPS_BENCH_PERCEPTRON_PROBE_H
#define ZPS_BENCH_PERCEPTRON_PROBE_H

#include <stdbool.h>
#include <zenps/sparsify.h>
#include <zenps/zenps.h>

enum { PROBE_EXACT, PROBE_REUSED, PROBE_GAUSSIAN, PROBE_KINDS, PROBE_BINS = 24 };

struct probe_found {
  double threshold[PROBE_KINDS];
  double selected[PROBE_KINDS]; /* mean of the steps since the last one that was told */
  double xi;
  double
      histogram[PROBE_BINS]; /* share of |acc| in bins of a half power of two, the last from the greatest value down */
  double greatest;
};

struct probe;

/* Opens two tensors of `n` values. Collective. */
zenps_status_t probe_create(zenps_job_t *job, uint64_t n, double density, struct probe **probe_p);
void probe_destroy(struct probe *probe);

/* In every step; with `tell` also xi and the histogram, into *found: collective. `acc`: residual with the selection;
 * `sum`: what came back, in rows. */
zenps_status_t probe_step(struct probe *probe, const float *acc, const float *gradient, const zenps_grad_t *sum,
                          bool tell, struct probe_found *found);
/* Members of a JSON object, behind a comma. */
void probe_print(const struct probe_found *found);

#endif
