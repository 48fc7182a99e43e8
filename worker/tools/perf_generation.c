/* Elastic jobs: a case whose ranks change goes on in the next generation, with the steps that are left. */
#include <stdio.h>

#include "worker/tools/perf.h"

static void tell(const struct perf *perf) {
  const zenps_generation_t *generation = &perf->generation;
  const unsigned long long left = (unsigned long long)perf->left;
  if (generation->number == 0 || generation->rank != 0) return;
  if (perf->options.json)
    printf("{\"generation\": %u, \"world\": %d, \"left\": %llu}\n", generation->number, generation->world, left);
  else
    printf("generation %u: %d ranks, %llu steps are left\n", generation->number, generation->world, left);
  fflush(stdout);
}

/* A rank that was lost when all steps were done leaves the figures of one to be told. */
static void know(struct perf *perf) {
  const uint64_t steps = perf->options.steps, done = perf->generation.number > 0 ? perf->generation.step : 0;
  perf->left = done < steps ? steps - done : 1;
  perf->done = 0;
  perf->goes_on = false;
  tell(perf);
}

zenps_status_t perf_generation_find(struct perf *perf) {
  perf->generation = (zenps_generation_t){.struct_size = sizeof perf->generation};
  const zenps_status_t status = zenps_job_generation(perf->job, &perf->generation);
  if (status == ZENPS_OK) know(perf);
  return status;
}

bool perf_generation_is_over(struct perf *perf, zenps_status_t status) {
  const bool is_elastic = perf->generation.number > 0 && !perf->options.cases;
  perf->goes_on = is_elastic && (status == ZENPS_OK ? zenps_job_changed(perf->job) : zenps_status_recoverable(status));
  return perf->goes_on;
}

zenps_status_t perf_generation_next(struct perf *perf) {
  const zenps_status_t status = zenps_job_next(&perf->job, perf->generation.step + perf->done, &perf->generation);
  if (status != ZENPS_OK) return status;
  *perf->n_gathers_p = 0;
  know(perf);
  return status;
}
