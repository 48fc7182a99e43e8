/* zenps-linear: the model's shape, scores and losses. */
#include "worker/examples/linear.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/machine.h"
#include "worker/tools/gather.h"

bool linear_fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("zenps-linear: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  return false;
}

/* A row of the model takes 4 bytes for each output, and 8 for each gradient. More rows than this cannot be had. */
enum { ROW_BYTES_LEAST = 12 };

static uint64_t memory_bytes(void) {
  const uint64_t bytes = zps_machine_memory_bytes();
  return bytes > 0 ? bytes : UINT64_MAX;
}

static uint32_t linear_index_most(void) {
  const uint64_t rows = memory_bytes() / ROW_BYTES_LEAST;
  return rows < UINT32_MAX ? (uint32_t)rows - 1 : UINT32_MAX - 1;
}

bool linear_fits(const struct linear *model) {
  const uint64_t n_gradients = model->is_whole ? 0 : model->options.threads;
  const uint64_t a_row = model->n_outputs * sizeof(float) + (n_gradients ? n_gradients : 1) * sizeof(int64_t);
  const uint64_t most = memory_bytes() / a_row;
  return model->n_features <= most ||
         linear_fail(
             "%u features of %u outputs take %llu MiB, and this machine has %llu: at most %llu fit; number "
             "features from 1 on without gaps, or take them modulo N (--features=N)",
             model->n_features - 1, model->n_outputs, (unsigned long long)(model->n_features * a_row >> 20),
             (unsigned long long)(memory_bytes() >> 20), (unsigned long long)most);
}

bool linear_read(struct linear *model, const char *path) {
  struct zps_error error;
  struct libsvm_share share = {.path = path,
                               .holdout = (unsigned)model->options.holdout,
                               .features = (uint32_t)model->options.features,
                               .index_most = linear_index_most(),
                               .rank = model->is_whole ? 0 : model->train.rank,
                               .world = model->is_whole ? 1 : model->train.world};
  if (libsvm_count(&share, &error) != ZPS_OK) return linear_fail("%s", error.text);
  if (!model->is_whole) {
    double own[] = {share.in_parts, (double)share.n_lines}, *all;
    if (zps_gather(model->train.job, "lines", 0, 2, own, &all) != ZENPS_OK) {
      libsvm_close(&share);
      return train_fail(&model->train, "cannot divide the file among the ranks");
    }
    bool alike = true;
    for (int rank = 0; rank < share.world; rank++) {
      alike = alike && (all[2 * rank] != 0) == share.in_parts;
      if (rank < share.rank) share.lines_before += (uint64_t)all[2 * rank + 1];
    }
    free(all);
    if (!alike) {
      libsvm_close(&share);
      return linear_fail("%s is a plain file on some ranks and compressed, or a pipe, on others", path);
    }
  }
  if (libsvm_read(&share, &model->data, &error) != ZPS_OK) return linear_fail("%s", error.text);
  return true;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static bool add_class(struct linear *model, double label) {
  for (uint32_t i = 0; i < model->n_classes; i++)
    if (model->classes[i] == label) return true;
  if (model->n_classes == LINEAR_CLASSES_MAX)
    return linear_fail("more than %d classes; is this a regression file?", (int)LINEAR_CLASSES_MAX);
  model->classes[model->n_classes++] = label;
  return true;
}

enum { FEATURES, TRAINING, HELD_OUT, N_CLASSES, FIRST_CLASS, SHAPE_WIDTH = FIRST_CLASS + LINEAR_CLASSES_MAX };

/* Adds what another rank has; `before`: it is a lower one. */
static bool add_shape(struct linear *model, const double *theirs, bool before, uint64_t *places) {
  for (int i = 0; i < (int)theirs[N_CLASSES]; i++)
    if (!add_class(model, theirs[FIRST_CLASS + i])) return false;
  if (theirs[FEATURES] > model->n_features) model->n_features = (uint32_t)theirs[FEATURES];
  const uint64_t training = (uint64_t)theirs[TRAINING], held_out = (uint64_t)theirs[HELD_OUT];
  if (before) places[0] += training, places[2] += held_out;
  places[1] += training;
  places[3] += held_out;
  return true;
}

bool linear_agree(struct linear *model, const char *path) {
  const struct sample_set *sets[] = {&model->data.training, &model->data.held_out};
  for (int s = 0; s < 2; s++)
    for (uint64_t i = 0; i < sets[s]->n_own; i++)
      if (!add_class(model, sets[s]->labels[i])) return false;
  double own[SHAPE_WIDTH] = {0}, *all;
  own[FEATURES] = model->data.n_features;
  own[TRAINING] = (double)model->data.training.n_own;
  own[HELD_OUT] = (double)model->data.held_out.n_own;
  own[N_CLASSES] = model->n_classes;
  memcpy(own + FIRST_CLASS, model->classes, sizeof model->classes);
  if (zps_gather(model->train.job, "shape", 0, SHAPE_WIDTH, own, &all) != ZENPS_OK)
    return train_fail(&model->train, "cannot agree on the shape of the model");
  uint64_t places[4] = {0};
  bool ok = true;
  for (int rank = 0; ok && rank < model->train.world; rank++)
    ok = add_shape(model, all + (size_t)rank * SHAPE_WIDTH, rank < model->train.rank, places);
  free(all);
  if (!ok) return false;
  if (!model->is_whole && model->data.training.stride == 1)
    libsvm_place(&model->data, places[0], places[1], places[2], places[3]);
  qsort(model->classes, model->n_classes, sizeof *model->classes, ascending);
  model->n_outputs = model->n_classes > 2 ? model->n_classes : 1;
  struct zps_error error;
  if (libsvm_check(&model->data, path, &error) != ZPS_OK) return linear_fail("%s", error.text);
  return true;
}

void linear_forget(struct linear *model) {
  libsvm_free(&model->data);
  model->n_classes = 0;
  model->n_features = 0;
}

float linear_target(const struct linear *model, double label, uint32_t k) {
  return label == model->classes[model->n_outputs == 1 ? model->n_classes - 1 : k] ? 1.0f : -1.0f;
}

void linear_scores(const struct linear *model, const struct sample *sample, float *scores) {
  memset(scores, 0, model->n_outputs * sizeof *scores);
  for (uint32_t i = 0; i < sample->n; i++) {
    const float *weights = model->weights + (size_t)sample->index[i] * model->n_outputs;
    for (uint32_t k = 0; k < model->n_outputs; k++) scores[k] += sample->value[i] * weights[k];
  }
}

double linear_loss(const struct linear *model, float y, float score, float *slope_p) {
  const float margin = y * score;
  if (model->options.loss == LINEAR_HINGE) {
    *slope_p = margin < 1 ? -y : 0;
    return margin < 1 ? 1 - margin : 0;
  }
  *slope_p = (float)(-y / (1.0 + exp(margin)));
  return margin > 0 ? log1p(exp(-margin)) : log1p(exp(margin)) - margin;
}

uint64_t linear_evaluate(const struct linear *model) {
  const struct sample_set *set = &model->data.held_out;
  const uint64_t first = model->is_whole ? (uint64_t)model->train.rank : 0;
  const uint64_t stride = model->is_whole ? (uint64_t)model->train.world : 1;
  float scores[LINEAR_CLASSES_MAX];
  uint64_t correct = 0;
  for (uint64_t i = first; i < set->n_own; i += stride) {
    const struct sample sample = sample_at(set, i);
    uint32_t best = 0;
    linear_scores(model, &sample, scores);
    for (uint32_t k = 1; k < model->n_outputs; k++)
      if (scores[k] > scores[best]) best = k;
    const double predicted =
        model->n_outputs > 1 ? model->classes[best] : model->classes[scores[0] > 0 ? model->n_classes - 1 : 0];
    correct += predicted == sample.label;
  }
  return correct;
}

/* ------------------------------------------------------------ the learning rate */

const char *const rate_schedules[] = {"sqrt", "constant", "inverse", "exponential", "bold", NULL};

void rate_begin(struct rate *rate, const struct rate_options *options) {
  *rate = (struct rate){.options = options, .now = options->first, .last_loss = INFINITY};
}

double rate_of(struct rate *rate, uint64_t epoch, double last_loss) {
  const struct rate_options *options = rate->options;
  const double e = (double)epoch;
  switch ((enum rate_schedule)options->schedule) {
    case RATE_SQRT:
      return options->first / sqrt(1 + e);
    case RATE_CONSTANT:
      return options->first;
    case RATE_INVERSE:
      return options->first / (1 + options->decay * e);
    case RATE_EXPONENTIAL:
      return options->first * pow(options->decay, e);
    case RATE_BOLD:
      break;
  }
  if (epoch > 0) rate->now *= last_loss <= rate->last_loss ? 1.05 : options->decay;
  if (epoch > 0) rate->last_loss = last_loss;
  return rate->now;
}
