/*
 * zenps-linear: logistic regression or a linear SVM by minibatch SGD on a libsvm file, one-vs-rest for several classes.
 *
 * The weights are one tensor: a row per feature, a column per class. A document touches few features, so a batch's
 * gradient has few rows, and only these travel. The batch is drawn from the whole training set by the same shuffle
 * everywhere; each rank computes the part of it that it has read. So n ranks take the same steps as one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/base/rng.h"
#include "worker/examples/libsvm.h"
#include "worker/examples/train.h"
#include "worker/tools/gather.h"

enum { CLASSES_MAX = 256 };

struct options {
  uint64_t epochs, batch, holdout, seed;
  double rate, l2;
  int loss; /* 0 logistic, 1 hinge */
  struct train_sync sync;
  bool json;
};

static const char *const loss_values[] = {"logistic", "hinge", NULL};
#define OPT(type_, field, ...) \
  { .type = (type_), .offset = offsetof(struct options, field), .flags = ZPS_OPT_NO_FILE | ZPS_OPT_NO_ENV, __VA_ARGS__ }
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_ENUM, loss, .name = "loss", .short_flag = 'l', .def = "logistic", .values = loss_values,
        .help = "logistic regression, or a linear support vector machine (hinge)"),
    OPT(ZPS_OPT_UINT, epochs, .name = "epochs", .short_flag = 'e', .arg = "E", .def = "5", .min = 1, .max = 100000,
        .help = "passes over the training set"),
    OPT(ZPS_OPT_UINT, batch, .name = "batch", .short_flag = 'b', .arg = "B", .def = "512", .min = 1, .max = 1e9,
        .help = "samples of a step, over all ranks together"),
    OPT(ZPS_OPT_DOUBLE, rate, .name = "rate", .short_flag = 'r', .arg = "ETA", .def = "2", .min = 0, .max = 1e6,
        .help = "learning rate of the first epoch; falls with the square root of the epoch"),
    OPT(ZPS_OPT_DOUBLE, l2, .name = "l2", .arg = "LAMBDA", .def = "0", .min = 0, .max = 1,
        .help = "weight decay of the rows that a step touches"),
    OPT(ZPS_OPT_UINT, holdout, .name = "holdout", .arg = "K", .def = "10", .min = 0, .max = 1000000,
        .help = "every K-th line is kept for evaluation (0: none)"),
    OPT(ZPS_OPT_UINT, seed, .name = "seed", .arg = "S", .def = "1", .min = 0, .max = 1e15, .help = "of the shuffle"),
    TRAIN_SYNC_OPTS,
    OPT(ZPS_OPT_BOOL, json, .name = "json", .short_flag = 'j', .help = "print one line of JSON per epoch"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenps-linear",
    .summary = "train a linear classifier on a libsvm file with sparse synchronisation",
    .args = "FILE",
    .description = "Example: zenpsrun -n 4 -- zenps-linear --epochs 3 news20.libsvm.xz\nFILE may be .xz.",
    .opts = opts,
    .config_size = sizeof(struct options),
    .min_args = 1,
    .max_args = 1,
    .exits = ZPS_EXITS_CLIENT,
};

struct model {
  struct options options;
  struct train train;
  struct libsvm data;
  double classes[CLASSES_MAX];   /* ascending labels */
  uint32_t n_classes, n_outputs; /* two classes need one output: positive for the second */
  struct train_tensor gradient;
  float *weights;  /* features x outputs */
  uint32_t *order; /* this epoch's shuffle of the training set */
};

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static bool add_class(struct model *model, double label) {
  for (uint32_t i = 0; i < model->n_classes; i++)
    if (model->classes[i] == label) return true;
  if (model->n_classes == CLASSES_MAX) {
    fprintf(stderr, "zenps-linear: more than %d classes; is this a regression file?\n", (int)CLASSES_MAX);
    return false;
  }
  model->classes[model->n_classes++] = label;
  return true;
}

/* Each rank has read a part: agree on the number of features and on the classes. */
static bool agree_on_shape(struct model *model, uint32_t *n_features_p) {
  enum { FEATURES, N_CLASSES, FIRST_CLASS, WIDTH = FIRST_CLASS + CLASSES_MAX };
  const struct sample_set *sets[] = {&model->data.training, &model->data.held_out};
  for (int s = 0; s < 2; s++)
    for (uint64_t i = 0; i < sets[s]->n_own; i++)
      if (!add_class(model, sets[s]->labels[i])) return false;
  double own[WIDTH] = {0}, *all;
  own[FEATURES] = model->data.n_features;
  own[N_CLASSES] = model->n_classes;
  memcpy(own + FIRST_CLASS, model->classes, sizeof model->classes);
  if (zps_gather(model->train.job, "shape", 0, WIDTH, own, &all) != ZENPS_OK) {
    fprintf(stderr, "zenps-linear: %s\n", zenps_last_error()->text);
    return false;
  }
  double features = 0;
  bool ok = true;
  for (int rank = 0; rank < model->train.world; rank++) {
    const double *theirs = all + (size_t)rank * WIDTH;
    features = fmax(features, theirs[FEATURES]);
    for (int i = 0; ok && i < (int)theirs[N_CLASSES]; i++) ok = add_class(model, theirs[FIRST_CLASS + i]);
  }
  free(all);
  qsort(model->classes, model->n_classes, sizeof *model->classes, ascending);
  model->n_outputs = model->n_classes > 2 ? model->n_classes : 1;
  *n_features_p = (uint32_t)features;
  return ok;
}

/* +1 or -1: is the sample of the class that output `k` stands for? */
static float target(const struct model *model, double label, uint32_t k) {
  return label == model->classes[model->n_outputs == 1 ? model->n_classes - 1 : k] ? 1.0f : -1.0f;
}

static void scores_of(const struct model *model, const struct sample *sample, float *scores) {
  memset(scores, 0, model->n_outputs * sizeof *scores);
  for (uint32_t i = 0; i < sample->n; i++) {
    const float *weights = model->weights + (size_t)sample->index[i] * model->n_outputs;
    for (uint32_t k = 0; k < model->n_outputs; k++) scores[k] += sample->value[i] * weights[k];
  }
}

/* Adds one sample's gradient; its loss is returned, negative when memory is short. */
static double add_gradient(struct model *model, const struct sample *sample) {
  float scores[CLASSES_MAX], slopes[CLASSES_MAX];
  double loss = 0;
  scores_of(model, sample, scores);
  for (uint32_t k = 0; k < model->n_outputs; k++) {
    const float y = target(model, sample->label, k), margin = y * scores[k];
    if (model->options.loss == 0) {
      loss += margin > 0 ? log1p(exp(-margin)) : log1p(exp(margin)) - margin;
      slopes[k] = (float)(-y / (1.0 + exp(margin)));
    } else {
      loss += margin < 1 ? 1 - margin : 0;
      slopes[k] = margin < 1 ? -y : 0;
    }
  }
  for (uint32_t i = 0; i < sample->n; i++) {
    float *row = grad_row(&model->gradient.grad, sample->index[i]);
    if (!row) return -1;
    for (uint32_t k = 0; k < model->n_outputs; k++) row[k] += sample->value[i] * slopes[k];
  }
  return loss;
}

/* Applies the summed gradient of `n` samples to the rows it touches. */
static void apply(struct model *model, uint64_t n, double rate) {
  const zenps_grad_t *sum = &model->gradient.sum;
  const float scale = (float)(rate / (double)n), keep = (float)(1 - rate * model->options.l2);
  for (uint64_t i = 0; i < sum->nnz; i++) {
    float *weights = model->weights + (size_t)sum->row_ids[i] * model->n_outputs;
    const float *row = (const float *)sum->values + i * model->n_outputs;
    for (uint32_t k = 0; k < model->n_outputs; k++) weights[k] = keep * weights[k] - scale * row[k];
  }
}

/* The same permutation on every rank. */
static void shuffle(struct model *model, uint64_t epoch) {
  const uint64_t n = model->data.training.n_all;
  struct zps_rng rng = {model->options.seed * 1000003 + epoch};
  for (uint64_t i = 0; i < n; i++) model->order[i] = (uint32_t)i;
  for (uint64_t i = n; i > 1; i--) {
    const uint64_t j = zps_rng_below(&rng, i);
    const uint32_t swap = model->order[i - 1];
    model->order[i - 1] = model->order[j];
    model->order[j] = swap;
  }
}

static bool run_epoch(struct model *model, uint64_t epoch, uint64_t *step, double *loss_p) {
  struct train *train = &model->train;
  const struct sample_set *set = &model->data.training;
  const double rate = model->options.rate / sqrt((double)epoch + 1);
  double loss = 0;
  shuffle(model, epoch);
  for (uint64_t start = 0; start < set->n_all; start += model->options.batch) {
    const uint64_t end = start + model->options.batch < set->n_all ? start + model->options.batch : set->n_all;
    for (uint64_t i = start; i < end; i++) {
      const uint64_t number = model->order[i];
      if (number % (uint64_t)train->world != (uint64_t)train->rank) continue;
      const struct sample sample = sample_at(set, number / (uint64_t)train->world);
      const double sample_loss = add_gradient(model, &sample);
      if (sample_loss < 0) {
        fprintf(stderr, "zenps-linear: out of memory for a batch's gradient\n");
        return false;
      }
      loss += sample_loss;
      train->samples++;
    }
    if (!train_sync_start(train, &model->gradient, (*step)++) || !train_sync_wait(train, &model->gradient))
      return false;
    apply(model, end - start, rate);
    train_sync_done(&model->gradient);
  }
  *loss_p = loss;
  return true;
}

/* Correct predictions among this rank's held-out samples. */
static uint64_t evaluate(const struct model *model) {
  const struct sample_set *set = &model->data.held_out;
  float scores[CLASSES_MAX];
  uint64_t correct = 0;
  for (uint64_t i = 0; i < set->n_own; i++) {
    const struct sample sample = sample_at(set, i);
    uint32_t best = 0;
    scores_of(model, &sample, scores);
    for (uint32_t k = 1; k < model->n_outputs; k++)
      if (scores[k] > scores[best]) best = k;
    const double predicted =
        model->n_outputs > 1 ? model->classes[best] : model->classes[scores[0] > 0 ? model->n_classes - 1 : 0];
    correct += predicted == sample.label;
  }
  return correct;
}

static bool run(struct model *model, const char *path) {
  struct train *train = &model->train;
  struct zps_error error;
  uint32_t n_features;
  if (libsvm_read(path, (unsigned)model->options.holdout, train->rank, train->world, &model->data, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-linear: %s\n", error.text);
    return false;
  }
  if (!agree_on_shape(model, &n_features)) return false;
  if (!train_tensor_open(train, &model->gradient, "weights", n_features, model->n_outputs, &model->options.sync))
    return false;
  model->weights = calloc((size_t)n_features * model->n_outputs, sizeof *model->weights);
  model->order = malloc(model->data.training.n_all * sizeof *model->order);
  if (!model->weights || !model->order) {
    fprintf(stderr, "zenps-linear: out of memory for %u features\n", n_features);
    return false;
  }
  if (train->rank == 0 && !train->json)
    printf("%llu training and %llu held-out samples, %u features, %u classes, %d ranks over %s\n",
           (unsigned long long)model->data.training.n_all, (unsigned long long)model->data.held_out.n_all,
           n_features - 1, model->n_classes, train->world, zenps_provider(train->job));
  train->start_s = train_seconds();
  uint64_t step = 0;
  for (uint64_t epoch = 0; epoch < model->options.epochs; epoch++) {
    double sums[2] = {0, 0};
    if (!train_epoch(&model->gradient, &model->options.sync, epoch)) return false;
    if (!run_epoch(model, epoch, &step, &sums[0])) return false;
    sums[1] = (double)evaluate(model);
    if (!train_sum(train, sums, 2)) return false;
    const double held_out = (double)model->data.held_out.n_all;
    if (!train_report(train, (unsigned)epoch + 1, sums[0] / (double)model->data.training.n_all, "accuracy",
                      held_out > 0 ? sums[1] / held_out : 0, "samples"))
      return false;
  }
  return true;
}

int main(int argc, char **argv) {
  static struct model model;
  struct zps_config_rest rest;
  struct zps_error error;
  if (zps_config_load(&table, argc, argv, NULL, &model.options, &rest, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-linear: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  if (rest.exit_now) return ZPS_EXIT_OK;
  const bool ok = train_open(&model.train, "zenps-linear", model.options.json) && run(&model, rest.argv[0]);
  train_tensor_close(&model.gradient);
  train_close(&model.train);
  libsvm_free(&model.data);
  free(model.weights);
  free(model.order);
  zps_config_fini(&table, &model.options);
  return ok ? ZPS_EXIT_OK : model.train.status;
}
