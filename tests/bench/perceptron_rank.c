/*
 * One rank that trains a perceptron (perceptron.h) with sparse or dense sums: top-k SGD with a residual [SparCML
 * algorithm 1, Ok-Topk algorithm 2]: acc = residual + rate * gradient, of which some values travel; weights lose the
 * sum over ranks / ranks. Every rank has samples of its own. Rank 0 prints a line of JSON for every --every steps.
 *
 *   zenpsrun -n 8 --servers 8 -- perceptron-rank --select topk --scheme oktopk
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zenps/sparsify.h>
#include <zenps/zenps.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/plan/schemes.h"
#include "tests/bench/perceptron.h"
#include "tests/bench/perceptron_probe.h"
#include "worker/tools/gather.h"

enum { TEST_SAMPLES = 1000 };

struct options {
  uint64_t steps, batch, every, period, seed;
  double density, rate;
  char *sizes, *scheme, *rows;
  int select;
  bool overlap, probe, unrefined;
};

static const char *const selections[] = {"none", "topk", "sampled", "reused", "gaussian", "buckets", NULL};
#define OPT(type_, field, ...) \
  { .type = (type_), .offset = offsetof(struct options, field), .flags = ZPS_OPT_NO_FILE | ZPS_OPT_NO_ENV, __VA_ARGS__ }
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_STRING, sizes, .name = "sizes", .arg = "LIST", .def = "128,256,128,10",
        .help = "inputs, neurons of hidden layers, classes"),
    OPT(ZPS_OPT_UINT, steps, .name = "steps", .arg = "N", .def = "300", .min = 1, .max = 1e6, .help = "to train"),
    OPT(ZPS_OPT_UINT, batch, .name = "batch", .arg = "B", .def = "16", .min = 1, .max = 1e6, .help = "samples a rank"),
    OPT(ZPS_OPT_UINT, every, .name = "every", .arg = "N", .def = "50", .min = 1, .max = 1e6, .help = "steps of a line"),
    OPT(ZPS_OPT_DOUBLE, rate, .name = "rate", .arg = "ETA", .def = "0.1", .min = 0, .max = 100, .help = "of learning"),
    OPT(ZPS_OPT_STRING, scheme, .name = "scheme", .arg = "NAME", .help = "of the sums"),
    OPT(ZPS_OPT_ENUM, select, .name = "select", .def = "none", .values = selections,
        .help = "what of a gradient travels"),
    OPT(ZPS_OPT_DOUBLE, density, .name = "density", .arg = "D", .def = "0.01", .min = 1e-9, .max = 1, .help = "k / n"),
    OPT(ZPS_OPT_UINT, period, .name = "period", .arg = "N", .def = "32", .min = 1, .max = 1e6,
        .help = "selections from one exact threshold of --select reused to the next"),
    OPT(ZPS_OPT_BOOL, unrefined, .name = "unrefined", .help = "thresholds are taken at their word, as in the papers"),
    OPT(ZPS_OPT_BOOL, overlap, .name = "overlap", .help = "a tensor for each layer, sent while others are computed"),
    OPT(ZPS_OPT_BOOL, probe, .name = "probe",
        .help = "in every line what each kind of threshold would select, and xi of Ok-Topk's assumption 1"),
    OPT(ZPS_OPT_STRING, rows, .name = "rows", .arg = "FILE", .help = "write the values selected, a step a line"),
    OPT(ZPS_OPT_UINT, seed, .name = "seed", .arg = "S", .def = "1", .min = 0, .max = 1e15, .help = "of all samples"),
    {0},
};
static const struct zps_opt_table table = {.program = "perceptron-rank",
                                           .summary = "train a perceptron with sparse or dense sums of gradients",
                                           .opts = opts,
                                           .config_size = sizeof(struct options),
                                           .exits = ZPS_EXITS_CLIENT};

/* Since the last line. */
enum { COMPUTE_MS, SELECT_MS, SYNC_MS, BYTES_OUT, BYTES_IN, SELECTED, KEPT, LOSS, N_SUMS };

struct trainer {
  struct options options;
  struct perceptron net;
  zenps_job_t *job;
  uint32_t world, rank, n_tensors;
  zenps_tensor_t *tensors[PERCEPTRON_LAYERS_MAX];
  zenps_request_t *requests[PERCEPTRON_LAYERS_MAX];
  zenps_grad_t sums[PERCEPTRON_LAYERS_MAX];
  zenps_sparsifier_t *sparsifier;
  struct probe *probe;
  FILE *rows;
  uint64_t n_gathers;
  double totals[N_SUMS];
};

static void check(zenps_status_t status, const char *what) {
  if (status == ZENPS_OK) return;
  fprintf(stderr, "perceptron-rank: %s: %s\n", what, zenps_last_error()->text);
  exit(zps_exit_of((zps_err_t)status));
}
static double now_ms(void) {
  return (double)zps_clock_ns() / ZPS_NS_PER_MS;
}

static bool is_lossy(const char *scheme) {
  enum zps_plan_scheme number;
  return scheme && zps_plan_scheme_parse(scheme, &number) && zps_plan_scheme_lossy(number);
}

static void open_all(struct trainer *t) {
  const struct options *options = &t->options;
  const bool keeps_some = is_lossy(options->scheme);
  check(zenps_open(NULL, &t->job), "cannot join the job");
  t->world = (uint32_t)zenps_world(t->job);
  t->rank = (uint32_t)zenps_rank(t->job);
  t->n_tensors = options->overlap ? t->net.n_layers : 1;
  for (uint32_t i = 0; i < t->n_tensors; i++) {
    zenps_tensor_options_t tensor;
    char name[32], scheme[64];
    ZENPS_TENSOR_OPTIONS_INIT(&tensor);
    snprintf(scheme, sizeof scheme, "%s:density=%.17g", options->scheme, options->density);
    tensor.scheme = keeps_some ? scheme : options->scheme;
    snprintf(name, sizeof name, "weights.%u", i);
    const uint64_t n = options->overlap ? t->net.starts[i + 1] - t->net.starts[i] : t->net.n;
    check(zenps_tensor_open(t->job, name, n, 1, ZENPS_F32, &tensor, &t->tensors[i]), "cannot open a tensor");
  }
  if (options->select > 0) {
    zenps_sparsifier_options_t select;
    ZENPS_SPARSIFIER_OPTIONS_INIT(&select);
    select.kind = (zenps_sparsify_t)options->select;
    select.density = options->density;
    select.period = (uint32_t)options->period;
    select.unrefined = options->unrefined;
    if (keeps_some) {
      select.residual = ZENPS_RESIDUAL_GLOBAL;
      select.capped = 1;
    }
    check(zenps_sparsifier_create(&select, t->net.n, ZENPS_F32, &t->sparsifier), "cannot select");
    if (options->probe) check(probe_create(t->job, t->net.n, options->density, &t->probe), "cannot probe");
  }
}

/* Sends one tensor's gradient. `layer`: of the tensor, with --overlap. */
static void start(struct trainer *t, uint32_t layer, uint64_t step) {
  zenps_grad_t in, *out = &t->sums[layer];
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(out);
  in.layout = out->layout = ZENPS_DENSE;
  in.values = out->values = t->net.gradient + (t->options.overlap ? t->net.starts[layer] : 0);
  if (t->sparsifier) {
    const double start_ms = now_ms();
    check(zenps_sparsifier_select(t->sparsifier, t->net.gradient, &in), "cannot select");
    out->layout = ZENPS_ROWS;
    out->values = NULL; /* the library's */
    t->totals[SELECT_MS] += now_ms() - start_ms;
    t->totals[SELECTED] += (double)in.nnz;
    for (uint64_t i = 0; t->rows && i < in.nnz; i++)
      fprintf(t->rows, "%lld%c", (long long)in.row_ids[i], i + 1 < in.nnz ? ' ' : '\n');
  }
  const double start_ms = now_ms();
  check(zenps_allreduce(t->tensors[layer], step, &in, out, &t->requests[layer]), "cannot start a sum");
  t->totals[SYNC_MS] += now_ms() - start_ms;
}

static void apply(struct trainer *t, uint32_t tensor) {
  const zenps_grad_t *sum = &t->sums[tensor];
  const float *values = sum->values;
  float *weights = t->net.weights + (t->options.overlap ? t->net.starts[tensor] : 0);
  const float share = 1 / (float)t->world; /* the rate is in the gradient [Ok-Topk algorithm 2, line 4] */
  if (sum->layout == ZENPS_ROWS) {
    for (uint64_t i = 0; i < sum->nnz; i++) weights[sum->row_ids[i]] -= share * values[i];
    return;
  }
  const uint64_t n = t->options.overlap ? t->net.starts[tensor + 1] - t->net.starts[tensor] : t->net.n;
  for (uint64_t i = 0; i < n; i++) weights[i] -= share * values[i];
}

static void finish(struct trainer *t, uint32_t tensor) {
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  const double start_ms = now_ms();
  check(zenps_wait(t->requests[tensor], -1), "a sum failed");
  t->totals[SYNC_MS] += now_ms() - start_ms;
  check(zenps_request_stats(t->requests[tensor], &stats), "no statistics");
  t->totals[BYTES_OUT] += (double)stats.bytes_out;
  t->totals[BYTES_IN] += (double)stats.bytes_in;
}

/* Forward and backward over the batch; with --overlap each layer's sum starts as soon as its gradient is there. */
static void compute(struct trainer *t, uint64_t step) {
  const struct options *options = &t->options;
  struct perceptron *net = &t->net;
  const double start_ms = now_ms(), elsewhere = t->totals[SYNC_MS] + t->totals[SELECT_MS];
  memset(net->gradient, 0, net->n * sizeof *net->gradient);
  for (uint64_t b = 0; b < options->batch; b++) {
    const uint32_t class = perceptron_sample(net, options->seed, 1 + t->rank, step * options->batch + b);
    (void)perceptron_predict(net);
    t->totals[LOSS] += perceptron_loss(net, class) / (double)options->batch;
    for (uint32_t layer = net->n_layers; layer-- > 0;) {
      perceptron_backward(net, layer);
      if (b + 1 < options->batch) continue;
      const float scale = (float)(options->rate / (double)options->batch);
      for (uint64_t i = net->starts[layer]; i < net->starts[layer + 1]; i++) net->gradient[i] *= scale;
      if (options->overlap) start(t, layer, step);
    }
  }
  if (!options->overlap) start(t, 0, step);
  t->totals[COMPUTE_MS] += now_ms() - start_ms - (t->totals[SYNC_MS] + t->totals[SELECT_MS] - elsewhere);
}

static double accuracy(struct trainer *t) {
  uint32_t right = 0;
  for (uint64_t i = 0; i < TEST_SAMPLES; i++) {
    const uint32_t class = perceptron_sample(&t->net, t->options.seed, 0, i);
    right += perceptron_predict(&t->net) == class;
  }
  return (double)right / TEST_SAMPLES;
}

static void report(struct trainer *t, uint64_t step, uint64_t steps, const struct probe_found *found) {
  double *all;
  check(zps_gather(t->job, "totals", t->n_gathers++, N_SUMS, t->totals, &all), "cannot gather");
  double mean[N_SUMS] = {0};
  for (uint32_t i = 0; i < t->world * N_SUMS; i++) mean[i % N_SUMS] += all[i] / t->world / (double)steps;
  free(all);
  if (t->rank == 0) {
    printf(
        "{\"step\": %llu, \"n\": %u, \"values\": %llu, \"k\": %.0f, \"loss\": %.6g, \"accuracy\": %.6g, "
        "\"compute_ms\": %.4g, \"select_ms\": %.4g, \"sync_ms\": %.4g, \"bytes_out\": %.1f, \"bytes_in\": %.1f, "
        "\"selected\": %.1f, \"kept\": %.1f",
        (unsigned long long)step, t->world, (unsigned long long)t->net.n, t->options.density * (double)t->net.n,
        mean[LOSS], accuracy(t), mean[COMPUTE_MS], mean[SELECT_MS], mean[SYNC_MS], mean[BYTES_OUT], mean[BYTES_IN],
        mean[SELECTED], mean[KEPT]);
    if (found) probe_print(found);
    printf("}\n");
    fflush(stdout);
  }
  memset(t->totals, 0, sizeof t->totals);
}

static void train(struct trainer *t) {
  uint64_t since = 0;
  for (uint64_t step = 0; step < t->options.steps; step++) {
    struct probe_found found;
    const bool ends = (step + 1) % t->options.every == 0 || step + 1 == t->options.steps;
    compute(t, step);
    for (uint32_t i = t->n_tensors; i-- > 0;) finish(t, i);
    if (t->sparsifier) {
      t->totals[KEPT] += (double)t->sums[0].nnz;
      if (t->probe)
        check(
            probe_step(t->probe, zenps_sparsifier_residual(t->sparsifier), t->net.gradient, &t->sums[0], ends, &found),
            "cannot probe");
      const double start_ms = now_ms();
      check(zenps_sparsifier_commit(t->sparsifier, &t->sums[0]), "cannot commit");
      t->totals[SELECT_MS] += now_ms() - start_ms;
    }
    for (uint32_t i = 0; i < t->n_tensors; i++) {
      apply(t, i);
      zenps_request_free(t->requests[i]);
    }
    since++;
    if (!ends) continue;
    report(t, step + 1, since, t->probe ? &found : NULL);
    since = 0;
  }
}

int main(int argc, char **argv) {
  static struct trainer trainer;
  struct options *options = &trainer.options;
  struct zps_config_rest rest;
  struct zps_error error;
  if (zps_config_load(&table, argc, argv, NULL, options, &rest, &error) != ZPS_OK) {
    fprintf(stderr, "perceptron-rank: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  if (rest.exit_now) return ZPS_EXIT_OK;
  if (options->overlap && options->select > 0) {
    fprintf(stderr, "perceptron-rank: --overlap sends whole gradients: not with --select\n");
    return ZPS_EXIT_USAGE;
  }
  if (!perceptron_init(&trainer.net, options->sizes, options->seed)) {
    fprintf(stderr, "perceptron-rank: --sizes '%s' must be 2 to %d numbers of 1 to 65536, by comma\n", options->sizes,
            PERCEPTRON_LAYERS_MAX + 1);
    return ZPS_EXIT_USAGE;
  }
  open_all(&trainer);
  if (options->rows) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%u", options->rows, trainer.rank);
    trainer.rows = fopen(path, "w");
    if (!trainer.rows) {
      fprintf(stderr, "perceptron-rank: cannot write %s\n", path);
      return ZPS_EXIT_FAILED;
    }
  }
  train(&trainer);
  if (trainer.rows) fclose(trainer.rows);
  probe_destroy(trainer.probe);
  zenps_sparsifier_destroy(trainer.sparsifier);
  zenps_close(trainer.job);
  perceptron_fini(&trainer.net);
  zps_config_fini(&table, options);
  return ZPS_EXIT_OK;
}
