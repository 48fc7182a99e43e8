/* zenps-embed: gradients of positions in the text, steps of Adagrad, and what the vectors are good for. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "worker/examples/embed.h"

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

void embed_position(struct embed *model, uint64_t position) {
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

void embed_apply(struct embed *model, struct embed_vectors *vectors) {
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

void embed_evaluate(const struct embed *model, double *ranked_right, double *n_pairs) {
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

void embed_show(const struct embed *model, const char *word) {
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
