#include "tests/bench/perceptron_probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct probe {
  zenps_sparsifier_t *kinds[PROBE_KINDS];
  zenps_tensor_t *tensors[2]; /* exact sums of acc and of the gradient */
  double selected[PROBE_KINDS];
  uint64_t n, steps, sums;
  uint32_t world;
  float *zeros, *acc, *gradient; /* the latter two: means over ranks */
};

zenps_status_t probe_create(zenps_job_t *job, uint64_t n, double density, struct probe **probe_p) {
  static const zenps_sparsify_t kinds[] = {ZENPS_SPARSIFY_TOPK, ZENPS_SPARSIFY_REUSED, ZENPS_SPARSIFY_GAUSSIAN};
  struct probe *probe = calloc(1, sizeof *probe);
  if (!probe) return ZENPS_ERR_NOMEM;
  *probe_p = probe;
  probe->n = n;
  probe->world = (uint32_t)zenps_world(job);
  probe->zeros = calloc(n, sizeof(float));
  probe->acc = calloc(n, sizeof(float));
  probe->gradient = calloc(n, sizeof(float));
  zenps_status_t status = probe->zeros && probe->acc && probe->gradient ? ZENPS_OK : ZENPS_ERR_NOMEM;
  for (int i = 0; status == ZENPS_OK && i < PROBE_KINDS; i++) {
    zenps_sparsifier_options_t options;
    ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
    options.kind = kinds[i];
    options.density = density;
    options.unrefined = 1;
    status = zenps_sparsifier_create(&options, n, ZENPS_F32, &probe->kinds[i]);
  }
  for (int i = 0; status == ZENPS_OK && i < 2; i++)
    status = zenps_tensor_open(job, i == 0 ? "probe.acc" : "probe.gradient", n, 1, ZENPS_F32, NULL, &probe->tensors[i]);
  return status;
}

void probe_destroy(struct probe *probe) {
  if (!probe) return;
  for (int i = 0; i < PROBE_KINDS; i++) zenps_sparsifier_destroy(probe->kinds[i]);
  free(probe->zeros);
  free(probe->acc);
  free(probe->gradient);
  free(probe);
}

/* A kind's selection of `acc`, which its residual becomes; it sends nothing. */
static zenps_status_t select_of(struct probe *probe, int kind, const float *acc, zenps_grad_t *out) {
  ZENPS_GRAD_INIT(out);
  memcpy(zenps_sparsifier_residual(probe->kinds[kind]), acc, probe->n * sizeof *acc);
  return zenps_sparsifier_select(probe->kinds[kind], probe->zeros, out);
}

static zenps_status_t mean_of(struct probe *probe, int tensor, const float *values, float *mean) {
  zenps_grad_t in, out;
  zenps_request_t *request;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_DENSE;
  in.values = (void *)values;
  out.values = mean;
  zenps_status_t status = zenps_allreduce(probe->tensors[tensor], probe->sums, &in, &out, &request);
  if (status != ZENPS_OK) return status;
  status = zenps_wait(request, -1);
  zenps_request_free(request);
  for (uint64_t i = 0; i < probe->n; i++) mean[i] /= (float)probe->world;
  return status;
}

/* Of the true global top-k of the mean accumulator and the update that is applied, the distance over the norm of the
 * mean gradient, which the rate is in already [Ok-Topk assumption 1]. */
static zenps_status_t find_xi(struct probe *probe, const float *acc, const float *gradient, const zenps_grad_t *sum,
                              double *xi_p) {
  zenps_status_t status = mean_of(probe, 0, acc, probe->acc);
  if (status == ZENPS_OK) status = mean_of(probe, 1, gradient, probe->gradient);
  probe->sums++;
  zenps_grad_t truth;
  if (status == ZENPS_OK) status = select_of(probe, PROBE_EXACT, probe->acc, &truth);
  if (status != ZENPS_OK) return status;
  const float *applied = sum->values, *wanted = truth.values;
  double distance = 0, norm = 0;
  uint64_t i = 0, j = 0;
  while (i < sum->nnz || j < truth.nnz) { /* both ascend */
    const int64_t a = i < sum->nnz ? sum->row_ids[i] : INT64_MAX, b = j < truth.nnz ? truth.row_ids[j] : INT64_MAX;
    const double x = a <= b ? (double)applied[i++] / probe->world : 0, y = b <= a ? (double)wanted[j++] : 0;
    distance += (x - y) * (x - y);
  }
  for (uint64_t v = 0; v < probe->n; v++) norm += (double)probe->gradient[v] * (double)probe->gradient[v];
  *xi_p = norm > 0 ? sqrt(distance / norm) : 0;
  return zenps_sparsifier_cancel(probe->kinds[PROBE_EXACT]);
}

static void count(const float *acc, uint64_t n, struct probe_found *found) {
  float greatest = 0;
  for (uint64_t i = 0; i < n; i++) greatest = fmaxf(greatest, fabsf(acc[i]));
  found->greatest = greatest;
  memset(found->histogram, 0, sizeof found->histogram);
  for (uint64_t i = 0; i < n; i++) {
    const double halves = acc[i] != 0 ? floor(2 * log2((double)greatest / (double)fabsf(acc[i]))) : PROBE_BINS;
    const int bin = halves < PROBE_BINS - 1 ? (int)halves : PROBE_BINS - 1;
    found->histogram[PROBE_BINS - 1 - bin] += 1 / (double)n;
  }
}

zenps_status_t probe_step(struct probe *probe, const float *acc, const float *gradient, const zenps_grad_t *sum,
                          bool tell, struct probe_found *found) {
  zenps_status_t status = ZENPS_OK;
  probe->steps++;
  for (int kind = 0; status == ZENPS_OK && kind < PROBE_KINDS; kind++) {
    zenps_sparsifier_stats_t stats = {.struct_size = sizeof stats};
    zenps_grad_t out;
    status = select_of(probe, kind, acc, &out);
    if (status == ZENPS_OK) status = zenps_sparsifier_stats(probe->kinds[kind], &stats);
    if (status == ZENPS_OK) status = zenps_sparsifier_cancel(probe->kinds[kind]);
    probe->selected[kind] += (double)stats.selected;
    found->threshold[kind] = stats.threshold;
    found->selected[kind] = probe->selected[kind] / (double)probe->steps;
  }
  if (status != ZENPS_OK || !tell) return status;
  memset(probe->selected, 0, sizeof probe->selected);
  probe->steps = 0;
  count(acc, probe->n, found);
  return find_xi(probe, acc, gradient, sum, &found->xi);
}

void probe_print(const struct probe_found *found) {
  static const char *const names[PROBE_KINDS] = {"exact", "reused", "gaussian"};
  for (int i = 0; i < PROBE_KINDS; i++)
    printf(", \"%s_threshold\": %.6g, \"%s_selected\": %.1f", names[i], found->threshold[i], names[i],
           found->selected[i]);
  printf(", \"xi\": %.6g, \"greatest\": %.6g, \"histogram\": [", found->xi, found->greatest);
  for (int i = 0; i < PROBE_BINS; i++) printf("%s%.6g", i ? ", " : "", found->histogram[i]);
  printf("]");
}
