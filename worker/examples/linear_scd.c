/*
 * Stochastic coordinate descent on the primal of logistic regression (SparCML, section 8.3; Richtarik and Takac's
 * distributed random block coordinate descent).
 *
 * Each rank owns a slice of the coordinates (features) and takes so many of them in a step, in an order drawn anew for
 * each pass. It has all samples, as columns, and the scores of all samples, so a coordinate's derivative needs no other
 * rank. What travels is the steps of the coordinates: disjoint rows, a sparse all-gather. With them every rank brings
 * weights and scores up to date, in the same order, so these are the same bits everywhere.
 *
 * A coordinate steps by -derivative / (beta * curvature), its curvature being at most sum(x^2) / 4n + l2, and beta = 1
 * + (omega - 1)(tau - 1)/(F - 1) for tau coordinates a step out of F and at most omega nonzeros in a sample: the bound
 * under which coordinates that step at once cannot overshoot in expectation. --rate scales that.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "worker/examples/linear.h"

struct column_entry {
  uint32_t sample;
  float value;
};

struct linear_scd {
  struct linear *model;
  struct train_tensor steps;
  uint64_t step;
  uint64_t *column;             /* n_features + 1: where each column begins in `entries` */
  struct column_entry *entries; /* samples ascend in a column */
  float *scores;                /* samples x outputs */
  uint32_t first, n_own;        /* coordinates of this rank's */
  uint32_t *order;              /* this pass's order of them */
  uint32_t n_most;              /* the most that any rank has */
  double beta;
  /* of the step at hand */
  const uint32_t *chosen;
  double rate;
  float *own_steps; /* of each one chosen, n_outputs */
};

/* Of weights that others have trained. */
static void score(struct linear_scd *scd) {
  const struct linear *model = scd->model;
  const uint32_t n_outputs = model->n_outputs;
  for (uint32_t j = 0; j < model->n_features; j++) {
    const float *const weights = model->weights + (size_t)j * n_outputs;
    for (uint64_t e = scd->column[j]; e < scd->column[j + 1]; e++) {
      float *const scores = scd->scores + (size_t)scd->entries[e].sample * n_outputs;
      for (uint32_t k = 0; k < n_outputs; k++) scores[k] += scd->entries[e].value * weights[k];
    }
  }
}

/* Samples become columns. */
static bool transpose(struct linear_scd *scd) {
  const struct linear *model = scd->model;
  const struct sample_set *set = &model->data.training;
  uint64_t longest = 1;
  scd->column = calloc((size_t)model->n_features + 1, sizeof *scd->column);
  scd->entries = malloc(set->n_entries * sizeof *scd->entries);
  scd->scores = calloc(set->n_own * model->n_outputs, sizeof *scd->scores);
  if (!scd->column || !scd->entries || !scd->scores) return false;
  for (uint64_t i = 0; i < set->n_entries; i++) scd->column[set->index[i] + 1]++;
  for (uint32_t j = 0; j < model->n_features; j++) scd->column[j + 1] += scd->column[j];
  for (uint64_t i = 0; i < set->n_own; i++) {
    const struct sample sample = sample_at(set, i);
    if (sample.n > longest) longest = sample.n;
    for (uint32_t e = 0; e < sample.n; e++)
      scd->entries[scd->column[sample.index[e]]++] = (struct column_entry){(uint32_t)i, sample.value[e]};
  }
  memmove(scd->column + 1, scd->column, model->n_features * sizeof *scd->column); /* they are at the next one's start */
  scd->column[0] = 0;
  const double tau = (double)model->options.coordinates * model->train.world, n = model->n_features;
  scd->beta = n > 1 ? 1 + ((double)longest - 1) * ((tau < n ? tau : n) - 1) / (n - 1) : 1;
  return true;
}

bool linear_scd_open(struct linear *model, struct linear_scd **scd_p) {
  struct linear_scd *scd = *scd_p = calloc(1, sizeof *scd);
  if (!scd) return linear_fail("out of memory");
  scd->model = model;
  if (model->data.training.n_own > UINT32_MAX) return linear_fail("--method scd takes at most 4294967295 samples");
  const uint64_t rank = (uint64_t)model->train.rank, world = (uint64_t)model->train.world, n = model->n_features;
  scd->first = (uint32_t)(n * rank / world);
  scd->n_own = (uint32_t)(n * (rank + 1) / world) - scd->first;
  scd->n_most = (uint32_t)((n + world - 1) / world);
  scd->order = malloc(((size_t)scd->n_own + 1) * sizeof *scd->order);
  const uint64_t n_step = model->options.coordinates < scd->n_own ? model->options.coordinates : scd->n_own;
  scd->own_steps = malloc((n_step + 1) * model->n_outputs * sizeof *scd->own_steps);
  if (!scd->order || !scd->own_steps || !transpose(scd))
    return linear_fail("out of memory for %u features", model->n_features);
  if (model->progress.steps > 0) score(scd);
  return train_tensor_open(&model->train, &scd->steps, "weights", n, model->n_outputs, &model->options.sync);
}

void linear_scd_close(struct linear_scd *scd) {
  if (!scd) return;
  train_tensor_close(&scd->steps);
  free(scd->column);
  free(scd->entries);
  free(scd->scores);
  free(scd->order);
  free(scd->own_steps);
  free(scd);
}

/* The step of coordinate number i of those chosen. */
static void compute_step(void *ctx, unsigned i) {
  const struct linear_scd *scd = ctx;
  const struct linear *model = scd->model;
  const struct sample_set *set = &model->data.training;
  const uint32_t j = scd->chosen[i], n_outputs = model->n_outputs;
  const double n = (double)set->n_all;
  double slopes[LINEAR_CLASSES_MAX] = {0}, squares = 0;
  for (uint64_t e = scd->column[j]; e < scd->column[j + 1]; e++) {
    const struct column_entry *entry = &scd->entries[e];
    squares += (double)entry->value * entry->value;
    for (uint32_t k = 0; k < n_outputs; k++) {
      float slope;
      const float y = linear_target(model, set->labels[entry->sample], k);
      linear_loss(model, y, scd->scores[(size_t)entry->sample * n_outputs + k], &slope);
      slopes[k] += (double)entry->value * slope;
    }
  }
  const double curvature = squares / (4 * n) + model->options.l2;
  for (uint32_t k = 0; k < n_outputs; k++) {
    const double slope = slopes[k] / n + model->options.l2 * model->weights[(size_t)j * n_outputs + k];
    scd->own_steps[(size_t)i * n_outputs + k] =
        curvature > 0 ? (float)(-scd->rate * slope / (scd->beta * curvature)) : 0;
  }
}

/* Everybody's steps, on weights and scores. */
static void apply(struct linear_scd *scd) {
  struct linear *model = scd->model;
  const zenps_grad_t *sum = &scd->steps.sum;
  const uint32_t n_outputs = model->n_outputs;
  for (uint64_t i = 0; i < sum->nnz; i++) {
    const uint64_t j = (uint64_t)sum->row_ids[i];
    const float *steps = (const float *)sum->values + i * n_outputs;
    for (uint32_t k = 0; k < n_outputs; k++) model->weights[j * n_outputs + k] += steps[k];
    for (uint64_t e = scd->column[j]; e < scd->column[j + 1]; e++) {
      float *scores = scd->scores + (size_t)scd->entries[e].sample * n_outputs;
      for (uint32_t k = 0; k < n_outputs; k++) scores[k] += scd->entries[e].value * steps[k];
    }
  }
}

/* The loss of this rank's share of the samples. */
static void sum_loss(struct linear_scd *scd) {
  struct linear *model = scd->model;
  const struct sample_set *set = &model->data.training;
  float slope;
  model->loss = 0;
  model->n_samples = 0;
  for (uint64_t i = (uint64_t)model->train.rank; i < set->n_own; i += (uint64_t)model->train.world) {
    for (uint32_t k = 0; k < model->n_outputs; k++)
      model->loss +=
          linear_loss(model, linear_target(model, set->labels[i], k), scd->scores[i * model->n_outputs + k], &slope);
    model->n_samples++;
  }
}

/* A pass over all coordinates, in an order of its own. Other ranks than those that began it begin it anew, since they
 * share the coordinates out anew. */
static bool pass(struct linear_scd *scd) {
  struct linear *model = scd->model;
  const uint32_t n_step = (uint32_t)model->options.coordinates;
  struct zps_rng rng = {(model->options.seed * 1000003 + model->progress.epoch) * 65537 + (uint64_t)model->train.rank};
  for (uint32_t i = 0; i < scd->n_own; i++) { /* a shuffle from the inside out */
    const uint64_t j = zps_rng_below(&rng, (uint64_t)i + 1);
    scd->order[i] = scd->order[j];
    scd->order[j] = scd->first + i;
  }
  scd->rate = model->progress.rate;
  for (uint32_t at = 0; at < scd->n_most; at += n_step) {
    if (train_changed(&model->train)) return false;
    const uint32_t begin = at < scd->n_own ? at : scd->n_own, left = scd->n_own - begin;
    const uint32_t n = left < n_step ? left : n_step;
    scd->chosen = scd->order + begin;
    zps_workpool_for(model->pool, n, compute_step, scd);
    for (uint32_t i = 0; i < n; i++) {
      float *row = grad_row(&scd->steps.grad, scd->chosen[i]);
      if (!row) return linear_fail("out of memory for a step");
      memcpy(row, scd->own_steps + (size_t)i * model->n_outputs, model->n_outputs * sizeof *row);
    }
    model->train.samples += n;
    if (!train_sync_start(&model->train, &scd->steps, scd->step++, 1) || !train_sync_wait(&model->train, &scd->steps))
      return false;
    apply(scd);
    train_sync_done(&scd->steps);
    model->progress.steps++;
  }
  model->progress.step = 1;
  return true;
}

bool linear_scd_epoch(struct linear_scd *scd) {
  if (scd->model->progress.step == 0 && !pass(scd)) return false;
  sum_loss(scd);
  return true;
}
