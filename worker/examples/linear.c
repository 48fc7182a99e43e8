/*
 * zenps-linear: logistic regression or a linear SVM on a libsvm file, one-vs-rest for several classes, by minibatch SGD
 * (linear_sgd.c) or stochastic coordinate descent (linear_scd.c): what SparCML's MPI-OPT does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/config.h"
#include "common/base/descriptors.h"
#include "common/base/exit.h"
#include "worker/examples/linear.h"

static const char *const loss_values[] = {"logistic", "hinge", NULL};
static const char *const method_values[] = {"sgd", "scd", NULL};
#define OPT(type, member, ...) ZPS_OPT_ROW(struct linear_options, type, member, .flags = ZPS_OPT_FLAG_ONLY, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_ENUM, method, .name = "method", .short_flag = 'm', .def = "sgd", .values = method_values,
        .help = "sgd: stochastic gradient descent. scd: stochastic coordinate descent, for the logistic loss alone. "
                "With scd every rank keeps all samples"),
    OPT(ZPS_OPT_ENUM, loss, .name = "loss", .short_flag = 'l', .def = "logistic", .values = loss_values,
        .help = "logistic regression, or a linear support vector machine (hinge)"),
    OPT(ZPS_OPT_UINT, epochs, .name = "epochs", .short_flag = 'e', .arg = "E", .def = "5", .min = 1, .max = 100000,
        .help = "passes over the training set"),
    OPT(ZPS_OPT_UINT, batch, .name = "batch", .short_flag = 'b', .arg = "B", .def = "512", .min = 1, .max = 1e9,
        .help = "samples per step, of all ranks together"),
    OPT(ZPS_OPT_UINT, coordinates, .name = "coordinates", .arg = "C", .def = "100", .min = 1, .max = 1000000,
        .help = "scd: coordinates per step and rank"),
    OPT(ZPS_OPT_DOUBLE, rate.first, .name = "rate", .short_flag = 'r', .arg = "ETA", .def = "0", .min = 0, .max = 1e6,
        .help = "learning rate of the first epoch (0: 2 for sgd, 1 for scd)"),
    OPT(ZPS_OPT_ENUM, rate.schedule, .name = "schedule", .def = "sqrt", .values = rate_schedules,
        .help = "learning rate of epoch e, from 0 on. sqrt: ETA / sqrt(1 + e). constant: ETA. inverse: "
                "ETA / (1 + F e). exponential: ETA F^e. bold: 5% more after the loss fell, times F after it grew"),
    OPT(ZPS_OPT_DOUBLE, rate.decay, .name = "decay", .arg = "F", .def = "0.5", .min = 0, .max = 1,
        .help = "F in --schedule"),
    OPT(ZPS_OPT_UINT, delay, .name = "delay", .arg = "D", .def = "0", .min = 0, .max = LINEAR_DELAY_MAX,
        .help = "sgd: compute a gradient without the sums of the last D steps, which are still on their way"),
    OPT(ZPS_OPT_UINT, staleness, .name = "staleness", .arg = "S", .def = "0", .min = 0, .max = LINEAR_DELAY_MAX,
        .help = "sgd: apply sums in order as they arrive, and wait only for sums more than S steps old. A slow rank "
                "then holds up no rank that is fewer steps ahead"),
    OPT(ZPS_OPT_UINT, threads, .name = "threads", .short_flag = 't', .arg = "T", .def = "1", .min = 1, .max = 1024,
        .help = "compute threads of each rank"),
    OPT(ZPS_OPT_DOUBLE, l2, .name = "l2", .arg = "LAMBDA", .def = "0", .min = 0, .max = 1,
        .help = "weight decay, for the rows of a step alone"),
    OPT(ZPS_OPT_UINT, holdout, .name = "holdout", .arg = "K", .def = "10", .min = 0, .max = 1000000,
        .help = "keep every K-th line for evaluation (0: none)"),
    OPT(ZPS_OPT_UINT, features, .name = "features", .short_flag = 'f', .arg = "N", .def = "0", .min = 0,
        .max = 4294967294.,
        .help = "take feature indices modulo N. This allows hashed indices of up to 64 bits (0: as they are)"),
    OPT(ZPS_OPT_UINT, seed, .name = "seed", .arg = "S", .def = "1", .min = 0, .max = 1e15,
        .help = "seed of the shuffle"),
    TRAIN_SYNC_OPTS,
    OPT(ZPS_OPT_BOOL, json, .name = "json", .short_flag = 'j', .help = "print one line of JSON per epoch"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenps-linear",
    .summary = "train a linear classifier on a libsvm file with sparse synchronisation",
    .args = "FILE",
    .description =
        "Example: zenpsrun -n 4 -- zenps-linear --epochs 3 news20.libsvm.xz\n"
        "FILE may be .xz or .gz. Each rank reads only its part of a plain file. A line is 'LABEL INDEX:VALUE ...', "
        "with "
        "indices from 1 on. A 'qid:N' after the label is ignored.\n"
        "In an elastic job (zenpsrun --elastic) training continues when ranks leave or join. The ranks then read FILE "
        "again.",
    .opts = opts,
    .config_size = sizeof(struct linear_options),
    .min_args = 1,
    .max_args = 1,
    .exits = ZPS_EXITS_CLIENT,
};

/* Combinations that cannot be had, before anything is opened. */
static bool check(const struct linear_options *options) {
  if (options->method == LINEAR_SCD && options->loss != LINEAR_LOGISTIC)
    return linear_fail("--method scd needs --loss logistic: the hinge has no curvature to step by");
  if (options->method == LINEAR_SCD && options->sync.sparsify > 0)
    return linear_fail("--method scd sends the steps of --coordinates coordinates, all of them: no --sparsify");
  const char *const late = options->delay > 0 ? "delay" : "staleness";
  if (options->delay > 0 && options->staleness > 0)
    return linear_fail("--delay and --staleness: sums are either always so late, or at most");
  if (options->delay + options->staleness == 0) return true;
  if (options->method == LINEAR_SCD)
    return linear_fail("--%s is for --method sgd: coordinates step from the sums of all before", late);
  if (options->sync.sparsify > 0)
    return linear_fail("--%s cannot be had with --sparsify: a residual is known when the sum is there", late);
  return true;
}

static const char *unit_of(const struct linear *model) {
  return model->is_whole ? "coordinates" : "samples";
}

/* The end of an epoch: what it has come to, and the rate of the next. */
static bool end_epoch(struct linear *model) {
  struct linear_progress *const progress = &model->progress;
  double sums[3] = {model->loss, (double)model->n_samples, (double)linear_evaluate(model)};
  if (!train_sum(&model->train, sums, 3)) return false;
  const double held_out = (double)model->data.held_out.n_all;
  const double loss = sums[1] > 0 ? sums[0] / sums[1] : 0, metric = held_out > 0 ? sums[2] / held_out : 0;
  if (!train_report(&model->train, (unsigned)progress->epoch + 1, loss, "accuracy", metric, unit_of(model)))
    return false;
  progress->rate = rate_of(&model->rate, progress->epoch + 1, loss);
  progress->loss = loss;
  progress->metric = metric;
  progress->epoch++;
  progress->step = 0;
  progress->steps++;
  model->loss = 0;
  model->n_samples = 0;
  return true;
}

/* The state of the rank that has come furthest. */
static bool take_state(struct linear *model) {
  struct linear_progress *const progress = &model->progress;
  const uint64_t epoch = progress->epoch;
  const struct train_state parts[] = {{model->weights, model->n_weights * sizeof *model->weights},
                                      {progress, sizeof *progress},
                                      {&model->rate.now, sizeof model->rate.now},
                                      {&model->rate.last_loss, sizeof model->rate.last_loss}};
  if (!train_take(&model->train, parts, sizeof parts / sizeof parts[0])) return false;
  if (progress->epoch != epoch) {
    model->loss = 0;
    model->n_samples = 0;
  }
  return !train_is_untold(&model->train, progress->epoch) ||
         train_report(&model->train, (unsigned)progress->epoch, progress->loss, "accuracy", progress->metric,
                      unit_of(model));
}

static bool run_epochs(struct linear *model, struct linear_sgd *sgd, struct linear_scd *scd) {
  if (model->train.generation.number <= 1) model->train.start_s = train_seconds(); /* what others cost is theirs */
  while (model->progress.epoch < model->options.epochs) {
    if (!(sgd ? linear_sgd_epoch(sgd) : linear_scd_epoch(scd))) return false;
    if (!end_epoch(model)) return false;
  }
  return true;
}

static bool have_weights(struct linear *model, const char *path) {
  const size_t n = (size_t)model->n_features * model->n_outputs;
  if (!model->weights) {
    model->weights = calloc(n, sizeof *model->weights);
    model->n_weights = n;
  }
  if (!model->weights) return linear_fail("out of memory for %u features", model->n_features);
  return model->n_weights == n ||
         linear_fail("%s has changed: it had %zu weights, and now has %zu", path, model->n_weights, n);
}

/* Trains until the end, or until the ranks of the job are others: the samples are divided among those there are. */
static bool run_generation(struct linear *model, const char *path) {
  struct train *train = &model->train;
  struct linear_sgd *sgd = NULL;
  struct linear_scd *scd = NULL;
  if (!linear_read(model, path) || !linear_agree(model, path) || !linear_fits(model) || !have_weights(model, path))
    return false;
  if (train->rank == 0 && !train->json && train->generation.number <= 1)
    printf("%llu training and %llu held-out samples, %u features, %u classes, %d ranks over %s\n",
           (unsigned long long)model->data.training.n_all, (unsigned long long)model->data.held_out.n_all,
           model->n_features - 1, model->n_classes, train->world, zenps_provider(train->job));
  const bool ok = take_state(model) &&
                  (model->is_whole ? linear_scd_open(model, &scd) : linear_sgd_open(model, &sgd)) &&
                  run_epochs(model, sgd, scd);
  linear_sgd_close(sgd);
  linear_scd_close(scd);
  return ok;
}

static bool run(struct linear *model, const char *path) {
  struct stat about;
  bool is_done;
  model->is_whole = model->options.method == LINEAR_SCD;
  if (model->options.rate.first == 0) model->options.rate.first = model->is_whole ? 1 : 2;
  if (model->options.threads > 1 &&
      zps_workpool_create((unsigned)model->options.threads - 1, "linear", &model->pool) != ZPS_OK)
    return linear_fail("cannot start %llu threads", (unsigned long long)model->options.threads);
  if (model->train.generation.number > 0 && stat(path, &about) == 0 && !S_ISREG(about.st_mode)) {
    model->train.status = ZPS_EXIT_USAGE;
    return linear_fail("%s is no file: the ranks of an elastic job read theirs anew when they change", path);
  }
  rate_begin(&model->rate, &model->options.rate);
  model->progress.rate = rate_of(&model->rate, 0, 0);
  do {
    is_done = run_generation(model, path);
    linear_forget(model);
  } while (!is_done && train_next(&model->train, model->progress.steps));
  return is_done;
}

int main(int argc, char **argv) {
  static struct linear model;
  struct zps_config_rest rest;
  struct zps_error error;
  zps_descriptors_fill();
  if (zps_config_load(&table, argc, argv, NULL, &model.options, &rest, &error) != ZPS_OK) {
    linear_fail("%s", error.text);
    return ZPS_EXIT_USAGE;
  }
  if (rest.exit_now) return ZPS_EXIT_OK;
  if (!check(&model.options)) return ZPS_EXIT_USAGE;
  const bool ok =
      train_open(&model.train, "zenps-linear", &model.options.sync, model.options.json) && run(&model, rest.argv[0]);
  train_close(&model.train, ok);
  zps_workpool_destroy(model.pool);
  free(model.weights);
  zps_config_fini(&table, &model.options);
  return ok ? ZPS_EXIT_OK : model.train.status;
}
