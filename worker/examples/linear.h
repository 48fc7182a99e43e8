/*
 * zenps-linear, in parts: linear.c is the program, linear_model.c the model, its shape and the learning rate,
 * linear_sgd.c and linear_scd.c the two methods.
 *
 * The weights are one tensor: a row per feature, a column per output.
 */
#ifndef ZPS_EXAMPLES_LINEAR_H
#define ZPS_EXAMPLES_LINEAR_H

#include <stdint.h>

#include "common/base/workpool.h"
#include "worker/examples/libsvm.h"
#include "worker/examples/train_elastic.h"

/* Learning rates from epoch to epoch. */
enum rate_schedule { RATE_SQRT, RATE_CONSTANT, RATE_INVERSE, RATE_EXPONENTIAL, RATE_BOLD };
extern const char *const rate_schedules[];

struct rate_options {
  double first; /* of epoch 0 */
  double decay;
  int schedule;
};

struct rate {
  const struct rate_options *options; /* borrowed */
  double now, last_loss;
};

void rate_begin(struct rate *rate, const struct rate_options *options);
/* The rate of `epoch`. Ask for epochs in their order. `last_loss`: of the epoch before, the same on all ranks; ignored
 * for epoch 0.
 *   sqrt         first / sqrt(1 + epoch)
 *   inverse      first / (1 + decay * epoch)
 *   exponential  first * decay^epoch
 *   bold         5% more after a loss that fell, times `decay` after a loss that grew ("bold driver") */
double rate_of(struct rate *rate, uint64_t epoch, double last_loss);

enum { LINEAR_CLASSES_MAX = 256, LINEAR_DELAY_MAX = 16 };
enum linear_method { LINEAR_SGD, LINEAR_SCD };
enum linear_loss { LINEAR_LOGISTIC, LINEAR_HINGE };

struct linear_options {
  uint64_t epochs, batch, coordinates, holdout, features, seed, threads, delay, staleness;
  double l2;
  struct rate_options rate;
  int method, loss;
  struct train_sync sync;
  bool json;
};

/* How far training has come, on all ranks alike. */
struct linear_progress {
  uint64_t steps;       /* with the ends of epochs */
  uint64_t epoch, step; /* those that are done, the steps of this epoch; scd: 1 when its pass is done */
  double rate;          /* of this epoch */
  double loss, metric;  /* of the last one */
};

struct linear {
  struct linear_options options;
  struct train train;
  struct libsvm data;
  bool is_whole;                      /* every rank has all samples, else its own */
  double classes[LINEAR_CLASSES_MAX]; /* ascending labels */
  uint32_t n_classes, n_outputs;      /* two classes need one output: positive for the second */
  uint32_t n_features;
  float *weights; /* features x outputs */
  size_t n_weights;
  struct rate rate;
  struct linear_progress progress;
  double loss;               /* sum over this rank's n_samples in this epoch */
  uint64_t n_samples;        /* samples of this epoch that this rank has seen */
  struct zps_workpool *pool; /* NULL: one thread */
};

/* One line of a message on stderr, "zenps-linear: ..."; returns false. */
bool linear_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Reads the file. In parts, `model->data` has no numbers before linear_agree(). Collective. */
bool linear_read(struct linear *model, const char *path);
/* Number of features, classes, and the places of the ranks' samples: the same on all ranks. Collective. */
bool linear_agree(struct linear *model, const char *path);
/* Whether the model of this shape can be in memory. */
bool linear_fits(const struct linear *model);
/* Frees the samples, and forgets their shape. */
void linear_forget(struct linear *model);
/* +1 or -1: is the sample of the class that output `k` stands for? */
float linear_target(const struct linear *model, double label, uint32_t k);
/* One score for each output. */
void linear_scores(const struct linear *model, const struct sample *sample, float *scores);
/* The loss at `score` of an output whose target is `y`, and its derivative by the score. */
double linear_loss(const struct linear *model, float y, float score, float *slope_p);
/* Correct predictions among the held-out samples that this rank evaluates. */
uint64_t linear_evaluate(const struct linear *model);

/* A method: its state, an epoch of it, or what is left of one, and its end. What fails has been said on stderr. */
struct linear_sgd;
struct linear_scd;
bool linear_sgd_open(struct linear *model, struct linear_sgd **sgd_p);
bool linear_sgd_epoch(struct linear_sgd *sgd);
void linear_sgd_close(struct linear_sgd *sgd); /* NULL is allowed */
bool linear_scd_open(struct linear *model, struct linear_scd **scd_p);
bool linear_scd_epoch(struct linear_scd *scd);
void linear_scd_close(struct linear_scd *scd); /* NULL is allowed */

#endif
