/*
 * Minibatch SGD. A document touches few features, so a batch's gradient has few rows, and only these travel. The batch
 * is drawn from the whole training set by the same shuffle everywhere; each rank computes the part of it that it has
 * read, in even pieces on its threads, which are added up in their order. So n ranks take the same steps as one.
 *
 * With --delay D the sums of D steps are on their way while the next gradients are computed, from weights that lack
 * them: asynchronous, with a staleness that is the same everywhere. With --staleness S they are applied as they come,
 * and waited for when they are S steps late: so a rank goes on while another is up to S steps behind, and each applies
 * every sum once, in the order of steps. At an epoch's end all are applied, and the weights are the same everywhere.
 */
#include <stdlib.h>

#include "common/base/rng.h"
#include "worker/examples/linear.h"

/* A step whose sum is on its way. */
struct flight {
  struct train_tensor gradient;
  double loss;
  uint64_t n_samples;
};

/* What a thread makes of its piece of a batch. */
struct piece {
  struct grad grad; /* of all but the first, whose is the flight's */
  double loss;
  bool out_of_memory;
};

struct linear_sgd {
  struct linear *model;
  uint64_t n_flights, step;
  struct flight *flights;
  unsigned n_pieces;
  struct piece *pieces;
  struct grad *first_grad; /* of the step at hand */
  uint32_t *order;         /* this epoch's shuffle of the training set */
  uint64_t *batch;         /* own samples of the step at hand */
  uint64_t n_batch;
};

/* Steps that a sum may be late. */
static uint64_t most_late(const struct linear *model) {
  return model->options.delay + model->options.staleness; /* one of them is 0 */
}

bool linear_sgd_open(struct linear *model, struct linear_sgd **sgd_p) {
  struct linear_sgd *sgd = *sgd_p = calloc(1, sizeof *sgd);
  if (!sgd) return linear_fail("out of memory");
  sgd->model = model;
  sgd->n_pieces = model->pool ? (unsigned)model->options.threads : 1;
  sgd->flights = calloc(most_late(model) + 1, sizeof *sgd->flights);
  sgd->pieces = calloc(sgd->n_pieces, sizeof *sgd->pieces);
  sgd->order = malloc(model->data.training.n_all * sizeof *sgd->order);
  sgd->batch = malloc((model->data.training.n_own + 1) * sizeof *sgd->batch);
  bool ok = sgd->flights && sgd->pieces && sgd->order && sgd->batch;
  for (unsigned i = 1; ok && i < sgd->n_pieces; i++)
    ok = grad_init(&sgd->pieces[i].grad, model->n_features, model->n_outputs);
  if (!ok) return linear_fail("out of memory for %u features", model->n_features);
  for (; sgd->n_flights <= most_late(model); sgd->n_flights++)
    if (!train_tensor_open(&model->train, &sgd->flights[sgd->n_flights].gradient, "weights", model->n_features,
                           model->n_outputs, &model->options.sync))
      return false;
  return true;
}

void linear_sgd_close(struct linear_sgd *sgd) {
  if (!sgd) return;
  /* One that could not be opened may have to be closed, too: it is zero, or what was opened of it. */
  for (uint64_t i = 0; sgd->flights && i <= most_late(sgd->model); i++) train_tensor_close(&sgd->flights[i].gradient);
  for (unsigned i = 1; sgd->pieces && i < sgd->n_pieces; i++) grad_fini(&sgd->pieces[i].grad);
  free(sgd->flights);
  free(sgd->pieces);
  free(sgd->order);
  free(sgd->batch);
  free(sgd);
}

/* The same permutation on every rank. */
static void shuffle(struct linear_sgd *sgd, uint64_t epoch) {
  const uint64_t n = sgd->model->data.training.n_all;
  struct zps_rng rng = {sgd->model->options.seed * 1000003 + epoch};
  for (uint64_t i = 0; i < n; i++) sgd->order[i] = (uint32_t)i;
  for (uint64_t i = n; i > 1; i--) {
    const uint64_t j = zps_rng_below(&rng, i);
    const uint32_t swap = sgd->order[i - 1];
    sgd->order[i - 1] = sgd->order[j];
    sgd->order[j] = swap;
  }
}

/* Adds one sample's gradient. */
static bool add_gradient(const struct linear *model, const struct sample *sample, struct grad *grad, double *loss) {
  float scores[LINEAR_CLASSES_MAX], slopes[LINEAR_CLASSES_MAX];
  linear_scores(model, sample, scores);
  for (uint32_t k = 0; k < model->n_outputs; k++)
    *loss += linear_loss(model, linear_target(model, sample->label, k), scores[k], &slopes[k]);
  for (uint32_t i = 0; i < sample->n; i++) {
    float *row = grad_row(grad, sample->index[i]);
    if (!row) return false;
    for (uint32_t k = 0; k < model->n_outputs; k++) row[k] += sample->value[i] * slopes[k];
  }
  return true;
}

static void compute_piece(void *ctx, unsigned i) {
  struct linear_sgd *sgd = ctx;
  struct piece *piece = &sgd->pieces[i];
  struct grad *grad = i == 0 ? sgd->first_grad : &piece->grad;
  const uint64_t end = sgd->n_batch * (i + 1) / sgd->n_pieces;
  piece->loss = 0;
  piece->out_of_memory = false;
  for (uint64_t at = sgd->n_batch * i / sgd->n_pieces; at < end && !piece->out_of_memory; at++) {
    const struct sample sample = sample_at(&sgd->model->data.training, sgd->batch[at]);
    piece->out_of_memory = !add_gradient(sgd->model, &sample, grad, &piece->loss);
  }
}

static bool compute(struct linear_sgd *sgd, struct grad *grad, double *loss) {
  bool ok = true;
  sgd->first_grad = grad;
  if (sgd->n_pieces > 1)
    zps_workpool_for(sgd->model->pool, sgd->n_pieces, compute_piece, sgd);
  else
    compute_piece(sgd, 0);
  for (unsigned i = 0; i < sgd->n_pieces; i++) {
    struct piece *piece = &sgd->pieces[i];
    *loss += piece->loss;
    ok = ok && !piece->out_of_memory && (i == 0 || grad_add(grad, &piece->grad));
    if (i > 0) grad_clear(&piece->grad);
  }
  return ok || linear_fail("out of memory for a batch's gradient");
}

/* Waits for a step's sum and applies it to the rows that it touches. */
static bool land(struct linear_sgd *sgd, struct flight *flight, double rate) {
  struct linear *model = sgd->model;
  const zenps_grad_t *sum = &flight->gradient.sum;
  if (!train_sync_wait(&model->train, &flight->gradient)) return false;
  const float scale = (float)flight->gradient.scale, keep = (float)(1 - rate * model->options.l2);
  for (uint64_t i = 0; i < sum->nnz; i++) {
    float *weights = model->weights + (size_t)sum->row_ids[i] * model->n_outputs;
    const float *row = (const float *)sum->values + i * model->n_outputs;
    for (uint32_t k = 0; k < model->n_outputs; k++) weights[k] = keep * weights[k] - scale * row[k];
  }
  train_sync_done(&flight->gradient);
  model->loss += flight->loss;
  model->n_samples += flight->n_samples;
  model->progress.step++;
  model->progress.steps++;
  return true;
}

/* Applies the sums that are due: those that are late enough; with --staleness also what is here already. */
static bool land_due(struct linear_sgd *sgd, uint64_t started, uint64_t may_be_late, double rate) {
  const uint64_t *const landed = &sgd->model->progress.step;
  while (*landed < started) {
    struct flight *const oldest = &sgd->flights[*landed % sgd->n_flights];
    const bool is_due = started - *landed > may_be_late;
    if (!is_due && !(sgd->model->options.staleness > 0 && train_sync_is_here(&oldest->gradient))) return true;
    if (!land(sgd, oldest, rate)) return false;
  }
  return true;
}

bool linear_sgd_epoch(struct linear_sgd *sgd) {
  struct linear *model = sgd->model;
  const struct sample_set *set = &model->data.training;
  const uint64_t n_batch = model->options.batch, n_steps = (set->n_all + n_batch - 1) / n_batch;
  const uint64_t epoch = model->progress.epoch;
  const double rate = model->progress.rate;
  if (!train_epoch(&sgd->flights[0].gradient, &model->options.sync, epoch)) return false;
  shuffle(sgd, epoch);
  for (uint64_t step = model->progress.step; step < n_steps; step++) {
    if (train_changed(&model->train)) return false;
    struct flight *flight = &sgd->flights[step % sgd->n_flights];
    const uint64_t begin = step * n_batch, end = begin + n_batch < set->n_all ? begin + n_batch : set->n_all;
    sgd->n_batch = 0;
    for (uint64_t i = begin; i < end; i++) sgd->n_batch += sample_own(set, sgd->order[i], &sgd->batch[sgd->n_batch]);
    flight->loss = 0;
    flight->n_samples = sgd->n_batch;
    if (!compute(sgd, &flight->gradient.grad, &flight->loss)) return false;
    model->train.samples += sgd->n_batch;
    if (!train_sync_start(&model->train, &flight->gradient, sgd->step++, rate / (double)(end - begin))) return false;
    if (!land_due(sgd, step + 1, most_late(model), rate)) return false;
  }
  return land_due(sgd, n_steps, 0, rate);
}
