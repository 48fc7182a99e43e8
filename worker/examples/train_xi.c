#include "worker/examples/train_xi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "worker/examples/train.h"

static bool open_sum(zenps_job_t *job, const char *name, const char *of, uint64_t rows, uint32_t width,
                     zenps_tensor_t **tensor) {
  char full[128];
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = "balanced";
  options.values = ZENPS_VALUES_RAW;
  snprintf(full, sizeof full, "%.100s.%s", name, of);
  return zenps_tensor_open(job, full, rows, width, ZENPS_F32, &options, tensor) == ZENPS_OK;
}

bool train_xi_open(struct train_xi *xi, zenps_job_t *job, const char *name, uint64_t rows, uint32_t width, uint64_t k,
                   uint64_t every) {
  *xi = (struct train_xi){.n = rows * width, .k = k, .every = every};
  xi->sum = malloc(xi->n * sizeof *xi->sum);
  return xi->sum && open_sum(job, name, "accumulators", xi->n, 1, &xi->accumulators) &&
         open_sum(job, name, "gradients", rows, width, &xi->gradients);
}

void train_xi_close(struct train_xi *xi) {
  free(xi->sum);
  *xi = (struct train_xi){0};
}

static bool sum_up(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in, zenps_grad_t *out,
                   zenps_request_t **request) {
  return zenps_allreduce(tensor, step, in, out, request) == ZENPS_OK && zenps_wait(*request, -1) == ZENPS_OK;
}

static bool sum_accumulators(struct train_xi *xi, uint64_t step, const void *accumulator) {
  zenps_grad_t in, out;
  zenps_request_t *request = NULL;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_DENSE;
  in.values = (void *)(uintptr_t)accumulator;
  out.values = xi->sum;
  const bool ok = sum_up(xi->accumulators, step, &in, &out, &request);
  zenps_request_free(request);
  return ok;
}

static bool sum_gradients(struct train_xi *xi, uint64_t step, const struct grad *grad, double rate) {
  zenps_grad_t in, out;
  zenps_request_t *request = NULL;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_ROWS;
  in.nnz = grad->n;
  in.row_ids = grad->row_ids;
  in.values = grad->values;
  const bool ok = sum_up(xi->gradients, step, &in, &out, &request);
  double squares = 0;
  for (uint64_t i = 0; ok && i < out.nnz * grad->width; i++) {
    const double value = rate * (double)((const float *)out.values)[i];
    squares += value * value;
  }
  xi->whole_norm = sqrt(squares);
  zenps_request_free(request);
  return ok;
}

bool train_xi_before(struct train_xi *xi, uint64_t step, const void *accumulator, const struct grad *grad,
                     double rate) {
  xi->due = xi->every > 0 && step % xi->every == 0;
  return !xi->due || (sum_accumulators(xi, step, accumulator) && sum_gradients(xi, step, grad, rate));
}

/* Of two lists of rows. */
static double distance(const zenps_grad_t *a, const zenps_grad_t *b) {
  double squares = 0;
  for (uint64_t i = 0, j = 0; i < a->nnz || j < b->nnz;) {
    const bool has_a = j == b->nnz || (i < a->nnz && a->row_ids[i] <= b->row_ids[j]);
    const bool has_b = i == a->nnz || (j < b->nnz && b->row_ids[j] <= a->row_ids[i]);
    double off = has_a ? (double)((const float *)a->values)[i] : 0;
    if (has_b) off -= (double)((const float *)b->values)[j];
    squares += off * off;
    i += has_a;
    j += has_b;
  }
  return sqrt(squares);
}

bool train_xi_after(struct train_xi *xi, const zenps_grad_t *update, bool *is_p, double *xi_p) {
  *is_p = xi->due && xi->whole_norm > 0;
  if (!*is_p) return true;
  zenps_sparsifier_options_t options;
  zenps_sparsifier_t *greatest;
  zenps_grad_t best;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  ZENPS_GRAD_INIT(&best);
  options.k = xi->k;
  if (zenps_sparsifier_create(&options, xi->n, ZENPS_F32, &greatest) != ZENPS_OK) return false;
  const bool ok = zenps_sparsifier_select(greatest, xi->sum, &best) == ZENPS_OK;
  if (ok) *xi_p = distance(&best, update) / xi->whole_norm;
  zenps_sparsifier_destroy(greatest);
  xi->due = false;
  return ok;
}
