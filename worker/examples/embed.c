/*
 * zenps-embed: word vectors from any plain text, by skip-gram or CBOW with negative sampling (Mikolov et al., 2013).
 *
 * Two tensors, a row per word each: vectors of words as centres, and as contexts. A batch touches few words, so few
 * rows travel. Every random choice (window, negatives, dropped words) is drawn from its position in the text, and ranks
 * take neighbouring parts of the same batch: so n ranks take the same steps as one. Rows are updated by row-wise
 * Adagrad, whose state every rank keeps for itself, since all see the same sums.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/descriptors.h"
#include "common/base/exit.h"
#include "common/base/rng.h"
#include "worker/examples/embed.h"

enum { PROGRESS_S = 5 };

static const char *const mode_values[] = {"skipgram", "cbow", NULL};
#define OPT(type, member, ...) ZPS_OPT_ROW(struct embed_options, type, member, .flags = ZPS_OPT_FLAG_ONLY, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_ENUM, mode, .name = "mode", .short_flag = 'm', .def = "skipgram", .values = mode_values,
        .help = "skipgram: predict each neighbour from the word. cbow: predict the word from all its neighbours"),
    OPT(ZPS_OPT_UINT, dim, .name = "dim", .short_flag = 'd', .arg = "D", .def = "64", .min = 1, .max = EMBED_DIM_MAX,
        .help = "values per vector"),
    OPT(ZPS_OPT_UINT, window, .name = "window", .short_flag = 'w', .arg = "W", .def = "5", .min = 1, .max = 100,
        .help = "most neighbours on each side"),
    OPT(ZPS_OPT_UINT, negatives, .name = "negatives", .short_flag = 'k', .arg = "K", .def = "5", .min = 1,
        .max = EMBED_NEGATIVES_MAX, .help = "random words per true neighbour"),
    OPT(ZPS_OPT_UINT, epochs, .name = "epochs", .short_flag = 'e', .arg = "E", .def = "3", .min = 1, .max = 100000,
        .help = "passes over the text"),
    OPT(ZPS_OPT_UINT, batch, .name = "batch", .short_flag = 'b', .arg = "B", .def = "4096", .min = 1, .max = 1e9,
        .help = "words per step, of all ranks together"),
    OPT(ZPS_OPT_UINT, max_steps, .name = "max-steps", .arg = "N", .def = "0", .min = 0, .max = 1e12,
        .help = "end an epoch after N steps (0: at the end of the text)"),
    OPT(ZPS_OPT_DOUBLE, rate, .name = "rate", .short_flag = 'r', .arg = "ETA", .def = "0.15", .min = 0, .max = 100,
        .help = "learning rate of Adagrad"),
    OPT(ZPS_OPT_DOUBLE, subsample, .name = "subsample", .arg = "T", .def = "0.0003", .min = 0, .max = 1,
        .help = "drop words at random if their share of the text is above T (0: none)"),
    OPT(ZPS_OPT_UINT, min_count, .name = "min-count", .arg = "N", .def = "3", .min = 1, .max = 1e9,
        .help = "leave out words with fewer than N occurrences"),
    OPT(ZPS_OPT_UINT, max_words, .name = "max-words", .arg = "V", .def = "1000000", .min = 2, .max = 4e9,
        .help = "keep the V most frequent words"),
    OPT(ZPS_OPT_STRING, show, .name = "show", .arg = "WORDS",
        .help = "print the nearest neighbours of these words (comma-separated) at the end"),
    OPT(ZPS_OPT_UINT, seed, .name = "seed", .arg = "S", .def = "1", .min = 0, .max = 1e15,
        .help = "seed of all random choices"),
    TRAIN_SYNC_OPTS,
    OPT(ZPS_OPT_BOOL, json, .name = "json", .short_flag = 'j', .help = "print one line of JSON per epoch"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenps-embed",
    .summary = "train word vectors on a text with sparse synchronisation",
    .args = "FILE",
    .description =
        "Example: zenpsrun -n 4 --servers 2 -- zenps-embed --epochs 2 --show water,king book.txt\n"
        "FILE may be .xz or .gz. Training leaves out a twentieth of the text, for evaluation.\n"
        "In an elastic job (zenpsrun --elastic) training continues when ranks leave or join.",
    .opts = opts,
    .config_size = sizeof(struct embed_options),
    .min_args = 1,
    .max_args = 1,
    .exits = ZPS_EXITS_CLIENT,
};

static bool compute_step(struct embed *model, uint64_t start, uint64_t end) {
  struct train *train = &model->train;
  const uint64_t n = end - start, rank = (uint64_t)train->rank, world = (uint64_t)train->world;
  for (uint64_t position = start + n * rank / world; position < start + n * (rank + 1) / world; position++) {
    embed_position(model, position);
    train->samples++;
  }
  if (model->out_of_memory) fprintf(stderr, "zenps-embed: out of memory for a batch's gradient\n");
  return !model->out_of_memory;
}

/* Both sums are there before one is applied: a step is taken as a whole, or not at all. */
static bool take_step(struct embed *model, uint64_t start, uint64_t end) {
  struct train *train = &model->train;
  struct embed_vectors *both[] = {&model->centres, &model->contexts};
  const double loss = model->loss;
  const uint64_t n_predictions = model->n_predictions;
  bool ok = compute_step(model, start, end);
  for (int i = 0; i < 2 && ok; i++) /* Adagrad's steps are the same, whatever gradients are multiplied with: by 1 */
    ok = train_sync_start(train, &both[i]->gradient, model->progress.steps, 1);
  for (int i = 0; i < 2 && ok; i++) ok = train_sync_wait(train, &both[i]->gradient);
  if (!ok) {
    model->loss = loss;
    model->n_predictions = n_predictions;
    return false;
  }
  for (int i = 0; i < 2; i++) {
    embed_apply(model, both[i]);
    train_sync_done(&both[i]->gradient);
  }
  model->progress.step++;
  model->progress.steps++;
  return true;
}

static void show_progress(const struct embed *model, uint64_t end, double *shown_s) {
  if (model->train.rank != 0 || model->train.json || train_seconds() - *shown_s <= PROGRESS_S) return;
  *shown_s = train_seconds();
  printf("epoch %2llu  %3.0f%%  loss %.4f\n", (unsigned long long)model->progress.epoch + 1,
         100.0 * (double)end / (double)model->corpus.n_training,
         model->n_predictions ? model->loss / (double)model->n_predictions : 0.0);
  fflush(stdout);
}

/* What is left of an epoch. */
static bool run_epoch(struct embed *model) {
  const struct embed_options *options = &model->options;
  const struct embed_progress *progress = &model->progress;
  const uint64_t n = model->corpus.n_training;
  double shown_s = train_seconds();
  if (!train_epoch(&model->centres.gradient, &options->sync, progress->epoch)) return false;
  if (!train_epoch(&model->contexts.gradient, &options->sync, progress->epoch)) return false;
  for (uint64_t start; (start = progress->step * options->batch) < n &&
                       (options->max_steps == 0 || progress->step < options->max_steps);) {
    const uint64_t end = start + options->batch < n ? start + options->batch : n;
    if (train_changed(&model->train) || !take_step(model, start, end)) return false;
    show_progress(model, end, &shown_s);
  }
  return true;
}

static bool vectors_init(const struct embed *model, struct embed_vectors *vectors, bool random) {
  const uint64_t n = (uint64_t)model->corpus.n_words * model->options.dim;
  vectors->rows = calloc(n, sizeof *vectors->rows);
  vectors->adagrad = calloc(model->corpus.n_words, sizeof *vectors->adagrad);
  if (!vectors->rows || !vectors->adagrad) {
    fprintf(stderr, "zenps-embed: out of memory for %u words\n", model->corpus.n_words);
    return false;
  }
  struct zps_rng rng = {model->options.seed};
  for (uint64_t i = 0; random && i < n; i++)
    vectors->rows[i] = (float)((zps_rng_unit(&rng) - 0.5) / (double)model->options.dim);
  return true;
}

static bool vectors_open(struct embed *model, struct embed_vectors *vectors, const char *name) {
  return train_tensor_open(&model->train, &vectors->gradient, name, model->corpus.n_words, (uint32_t)model->options.dim,
                           &model->options.sync);
}

static void vectors_free(struct embed_vectors *vectors) {
  free(vectors->rows);
  free(vectors->adagrad);
}

static bool load(struct embed *model, const char *path) {
  struct zps_error error;
  if (corpus_read(path, model->options.min_count, model->options.max_words, &model->corpus, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-embed: %s\n", error.text);
    return false;
  }
  corpus_subsample(&model->corpus, model->options.subsample, model->options.seed);
  if (!corpus_hold_out(&model->corpus) || !corpus_draw_table(&model->corpus)) {
    fprintf(stderr, "zenps-embed: out of memory for %u words\n", model->corpus.n_words);
    return false;
  }
  if (model->train.rank == 0 && !model->train.json && model->train.generation.number <= 1)
    printf("%llu words of text (%llu held out), %u different ones, vectors of %llu, %d ranks over %s\n",
           (unsigned long long)model->corpus.n_tokens,
           (unsigned long long)(model->corpus.n_tokens - model->corpus.n_training), model->corpus.n_words,
           (unsigned long long)model->options.dim, model->train.world, zenps_provider(model->train.job));
  return vectors_init(model, &model->centres, true) && vectors_init(model, &model->contexts, false);
}

static bool end_epoch(struct embed *model) {
  struct embed_progress *progress = &model->progress;
  double sums[4] = {model->loss, (double)model->n_predictions, 0, 0};
  embed_evaluate(model, &sums[2], &sums[3]);
  if (!train_sum(&model->train, sums, 4)) return false;
  const double loss = sums[0] / fmax(sums[1], 1), metric = sums[2] / fmax(sums[3], 1);
  if (!train_report(&model->train, (unsigned)progress->epoch + 1, loss, "ranking", metric, "words")) return false;
  *progress = (struct embed_progress){
      .steps = progress->steps + 1, .epoch = progress->epoch + 1, .loss = loss, .metric = metric};
  model->loss = 0;
  model->n_predictions = 0;
  return true;
}

static struct train_state rows_of(const struct embed *model, struct embed_vectors *vectors) {
  return (struct train_state){vectors->rows, model->corpus.n_words * model->options.dim * sizeof *vectors->rows};
}

static struct train_state adagrad_of(const struct embed *model, struct embed_vectors *vectors) {
  return (struct train_state){vectors->adagrad, model->corpus.n_words * sizeof *vectors->adagrad};
}

/* The state of the rank that has come furthest. */
static bool take_state(struct embed *model) {
  struct embed_progress *progress = &model->progress;
  const uint64_t epoch = progress->epoch;
  const struct train_state parts[] = {rows_of(model, &model->centres),
                                      adagrad_of(model, &model->centres),
                                      rows_of(model, &model->contexts),
                                      adagrad_of(model, &model->contexts),
                                      {progress, sizeof *progress}};
  if (!train_take(&model->train, parts, sizeof parts / sizeof parts[0])) return false;
  if (progress->epoch != epoch) {
    model->loss = 0;
    model->n_predictions = 0;
  }
  return !train_is_untold(&model->train, progress->epoch) ||
         train_report(&model->train, (unsigned)progress->epoch, progress->loss, "ranking", progress->metric, "words");
}

/* Trains until the end, or until the ranks of the job are others. */
static bool run_generation(struct embed *model) {
  if (!vectors_open(model, &model->centres, "centres") || !vectors_open(model, &model->contexts, "contexts") ||
      !take_state(model))
    return false;
  if (model->train.generation.number <= 1) model->train.start_s = train_seconds(); /* what others cost is theirs */
  while (model->progress.epoch < model->options.epochs)
    if (!run_epoch(model) || !end_epoch(model)) return false;
  return true;
}

static bool run(struct embed *model, const char *path) {
  bool is_done;
  if (!load(model, path)) return false;
  do {
    is_done = run_generation(model);
    train_tensor_close(&model->centres.gradient);
    train_tensor_close(&model->contexts.gradient);
  } while (!is_done && train_next(&model->train, model->progress.steps));
  if (is_done && model->train.rank == 0 && model->options.show) {
    for (char *save, *word = strtok_r(model->options.show, ",", &save); word; word = strtok_r(NULL, ",", &save))
      embed_show(model, word);
  }
  return is_done;
}

int main(int argc, char **argv) {
  static struct embed model;
  struct zps_config_rest rest;
  struct zps_error error;
  zps_descriptors_fill();
  if (zps_config_load(&table, argc, argv, NULL, &model.options, &rest, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-embed: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  if (rest.exit_now) return ZPS_EXIT_OK;
  const bool ok =
      train_open(&model.train, "zenps-embed", &model.options.sync, model.options.json) && run(&model, rest.argv[0]);
  vectors_free(&model.centres);
  vectors_free(&model.contexts);
  train_close(&model.train, ok);
  corpus_free(&model.corpus);
  zps_config_fini(&table, &model.options);
  return ok ? ZPS_EXIT_OK : model.train.status;
}
