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
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "worker/examples/corpus.h"
#include "worker/examples/train_elastic.h"

enum { PROGRESS_S = 5 };
enum { EMBED_DIM_MAX = 1024, EMBED_NEGATIVES_MAX = 64 };

struct embed_options {
  uint64_t dim, window, negatives, epochs, batch, min_count, max_words, seed, max_steps;
  double rate, subsample;
  int mode; /* 0 skip-gram, 1 CBOW */
  char *show;
  struct train_sync sync;
  bool json;
};

/* One of the two sets of vectors. */
struct embed_vectors {
  struct train_tensor gradient;
  float *rows;    /* words x dim */
  float *adagrad; /* per word: sum of mean squares of its gradients */
};

/* How far training has come, on all ranks alike. */
struct embed_progress {
  uint64_t steps;       /* with the ends of epochs */
  uint64_t epoch, step; /* complete epochs; steps of the one under way */
  double loss, metric;  /* of the last one */
};

struct embed {
  struct embed_options options;
  struct train train;
  struct corpus corpus;
  struct embed_vectors centres, contexts;
  struct embed_progress progress;
  double loss; /* sum over this rank's n_predictions in this epoch */
  uint64_t n_predictions;
  bool out_of_memory;
};

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

/* ------------------------------------------------------------ the model: gradients, steps, and what the vectors are
 * good for */

static float dot(const float *a, const float *b, uint64_t n) {
  float sum = 0;
  for (uint64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

static void add_scaled(float *sum, float scale, const float *a, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) sum[i] += scale * a[i];
}

/* A generator of its own for everything decided at one position of the text. */
static struct zps_rng rng_at(const struct embed *model, uint64_t position, uint64_t purpose) {
  return (struct zps_rng){zps_hash_mix64(model->options.seed + (purpose << 56) + position)};
}

static uint32_t draw_negative(const struct embed *model, struct zps_rng *rng) {
  return model->corpus.drawn[zps_rng_below(rng, model->corpus.n_drawn)];
}

/* Predicts `word` (a true one or a negative) from `input`: adds the loss, the context row's gradient, and what falls on
 * the input. */
static void predict(struct embed *model, const float *input, float *input_gradient, uint32_t word, bool is_true) {
  const uint64_t dim = model->options.dim;
  const float *context = model->contexts.rows + word * dim;
  const float score = dot(input, context, dim), probability = 1.0f / (1.0f + expf(-score)),
              slope = probability - (is_true ? 1.0f : 0.0f);
  const double margin = is_true ? score : -score;
  model->loss += margin > 0 ? log1p(exp(-margin)) : log1p(exp(margin)) - margin;
  float *row = grad_row(&model->contexts.gradient.grad, word);
  if (!row) {
    model->out_of_memory = true;
    return;
  }
  add_scaled(row, slope, input, dim);
  add_scaled(input_gradient, slope, context, dim);
}

static void predict_with_negatives(struct embed *model, const float *input, float *input_gradient, uint32_t word,
                                   struct zps_rng *rng) {
  predict(model, input, input_gradient, word, true);
  for (uint64_t k = 0; k < model->options.negatives; k++) {
    const uint32_t negative = draw_negative(model, rng);
    if (negative != word) predict(model, input, input_gradient, negative, false);
  }
  model->n_predictions++;
}

static void add_to_centre(struct embed *model, uint32_t word, float scale, const float *gradient) {
  float *row = grad_row(&model->centres.gradient.grad, word);
  if (!row) {
    model->out_of_memory = true;
    return;
  }
  add_scaled(row, scale, gradient, model->options.dim);
}

/* Adds the gradient of one position: its word and the window around it. */
static void add_position(struct embed *model, uint64_t position) {
  const struct embed_options *options = &model->options;
  const uint32_t *tokens = model->corpus.tokens;
  const uint64_t dim = options->dim;
  struct zps_rng rng = rng_at(model, position, 1);
  const uint64_t window = 1 + zps_rng_below(&rng, options->window);
  const uint64_t first = position > window ? position - window : 0;
  const uint64_t last = position + window < model->corpus.n_training ? position + window : model->corpus.n_training - 1;
  float input[EMBED_DIM_MAX] = {0}, input_gradient[EMBED_DIM_MAX] = {0};
  if (options->mode == 0) {
    const float *centre = model->centres.rows + tokens[position] * dim;
    for (uint64_t i = first; i <= last; i++)
      if (i != position) predict_with_negatives(model, centre, input_gradient, tokens[i], &rng);
    if (last > first) add_to_centre(model, tokens[position], 1, input_gradient);
    return;
  }
  if (last == first) return;
  const float share = 1.0f / (float)(last - first);
  for (uint64_t i = first; i <= last; i++)
    if (i != position) add_scaled(input, share, model->centres.rows + tokens[i] * dim, dim);
  predict_with_negatives(model, input, input_gradient, tokens[position], &rng);
  for (uint64_t i = first; i <= last; i++)
    if (i != position) add_to_centre(model, tokens[i], share, input_gradient);
}

/* A step of row-wise Adagrad by the sum that is there. */
static void apply(struct embed *model, struct embed_vectors *vectors) {
  const zenps_grad_t *sum = &vectors->gradient.sum;
  const uint64_t dim = model->options.dim;
  for (uint64_t i = 0; i < sum->nnz; i++) {
    const uint64_t word = (uint64_t)sum->row_ids[i];
    const float *gradient = (const float *)sum->values + i * dim;
    vectors->adagrad[word] += dot(gradient, gradient, dim) / (float)dim;
    if (vectors->adagrad[word] > 0)
      add_scaled(vectors->rows + word * dim, (float)-model->options.rate / sqrtf(vectors->adagrad[word]), gradient,
                 dim);
  }
}

/* Share of held-out neighbour pairs whose true word scores above a random one; this rank's part of them. */
static void evaluate(const struct embed *model, double *ranked_right, double *n_pairs) {
  const uint64_t dim = model->options.dim, n = model->corpus.n_tokens, world = (uint64_t)model->train.world;
  for (uint64_t i = model->corpus.n_training + 1; i < n; i++) {
    if (i % world != (uint64_t)model->train.rank) continue;
    struct zps_rng rng = rng_at(model, i, 2);
    const uint32_t negative = draw_negative(model, &rng), word = model->corpus.tokens[i];
    const float *centre = model->centres.rows + model->corpus.tokens[i - 1] * dim;
    if (negative == word) continue;
    *n_pairs += 1;
    *ranked_right +=
        dot(centre, model->contexts.rows + word * dim, dim) > dot(centre, model->contexts.rows + negative * dim, dim);
  }
}

/* Prints the words whose vectors point most nearly the same way. */
static void show(const struct embed *model, const char *word) {
  enum { SHOWN = 6 };
  const uint64_t dim = model->options.dim;
  const struct corpus *corpus = &model->corpus;
  uint32_t asked = 0, best[SHOWN];
  float best_cosine[SHOWN];
  int n = 0;
  while (asked < corpus->n_words && strcmp(corpus->words[asked], word) != 0) asked++;
  if (asked == corpus->n_words) {
    printf("'%s' does not occur often enough in the text\n", word);
    return;
  }
  const float *vector = model->centres.rows + asked * dim, norm = sqrtf(dot(vector, vector, dim));
  for (uint32_t other = 0; other < corpus->n_words; other++) {
    const float *theirs = model->centres.rows + other * dim;
    const float cosine = dot(vector, theirs, dim) / (norm * sqrtf(dot(theirs, theirs, dim)) + 1e-20f);
    if (other == asked || (n == SHOWN && cosine <= best_cosine[n - 1])) continue;
    int at = n < SHOWN ? n++ : n - 1;
    for (; at > 0 && best_cosine[at - 1] < cosine; at--) {
      best[at] = best[at - 1];
      best_cosine[at] = best_cosine[at - 1];
    }
    best[at] = other;
    best_cosine[at] = cosine;
  }
  printf("near '%s':", word);
  for (int i = 0; i < n; i++)
    printf(" %s %.2f%s", corpus->words[best[i]], (double)best_cosine[i], i + 1 < n ? "," : "\n");
}

/* ------------------------------------------------------------ training */

static bool compute_step(struct embed *model, uint64_t start, uint64_t end) {
  struct train *train = &model->train;
  const uint64_t n = end - start, rank = (uint64_t)train->rank, world = (uint64_t)train->world;
  for (uint64_t position = start + n * rank / world; position < start + n * (rank + 1) / world; position++) {
    add_position(model, position);
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
    apply(model, both[i]);
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
  evaluate(model, &sums[2], &sums[3]);
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
      show(model, word);
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
