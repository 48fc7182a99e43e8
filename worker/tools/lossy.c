#include "worker/tools/lossy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/ablation.h"
#include "worker/select/steer.h"

struct lossy {
  struct lossy_config config;
  const struct definition *definition;
  uint64_t round, n_values;
  double *local, global; /* thresholds of oktopk; `local` by rank */
  struct zps_steer *steers, steer;
  bool useless;    /* the global one was 0 and selected more than k: the next round renews it */
  double *order;   /* scratch: magnitudes of all rows */
  double **levels; /* one array for each level of the tree, and one */
  uint32_t n_levels;
  lossy_load_fn *load; /* of this round */
  void *ctx;
};

struct definition {
  const char *scheme;
  void (*next)(struct lossy *lossy, double *sum, double *room);
};

/* ------------------------------------------------------------ magnitudes */

static double magnitude(const struct lossy *lossy, const double *values, uint64_t row) {
  const uint64_t width = lossy->config.width;
  double greatest = 0;
  for (uint64_t c = row * width; c < (row + 1) * width; c++) greatest = fmax(greatest, fabs(values[c]));
  return greatest;
}

static int descending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

/* The k-th greatest magnitude; 0 where fewer rows are not zero. */
static double kth(struct lossy *lossy, const double *values) {
  uint64_t n = 0;
  for (uint64_t row = 0; row < lossy->config.rows; row++) {
    const double own = magnitude(lossy, values, row);
    if (own > 0) lossy->order[n++] = own;
  }
  if (n < lossy->config.k) return 0;
  qsort(lossy->order, n, sizeof *lossy->order, descending);
  return lossy->order[lossy->config.k - 1];
}

/* Clears rows under the threshold, and those of just this magnitude after the first `n_equal`. */
static void keep(const struct lossy *lossy, double *values, double threshold, uint64_t n_equal) {
  const uint64_t width = lossy->config.width;
  for (uint64_t row = 0; row < lossy->config.rows; row++) {
    const double own = magnitude(lossy, values, row);
    if (own > threshold || (own == threshold && n_equal > 0)) {
      n_equal -= own == threshold;
      continue;
    }
    memset(values + row * width, 0, width * sizeof *values);
  }
}

static void keep_from(const struct lossy *lossy, double *values, double threshold) {
  keep(lossy, values, threshold, UINT64_MAX);
}

/* `threshold` is over zero. */
static uint64_t count_from(const struct lossy *lossy, const double *values, double threshold) {
  uint64_t count = 0;
  for (uint64_t row = 0; row < lossy->config.rows; row++) {
    const double own = magnitude(lossy, values, row);
    count += own >= threshold;
  }
  return count;
}

static void keep_greatest(struct lossy *lossy, double *values) {
  const double threshold = kth(lossy, values);
  if (threshold == 0) return;
  const uint64_t n_above = count_from(lossy, values, nextafter(threshold, (double)INFINITY));
  keep(lossy, values, threshold, lossy->config.k - n_above);
}

/* How likely a value of the normal distribution is to have this magnitude or more. */
static double beyond(double threshold, double mean, double deviation) {
  const double scale = deviation * sqrt(2);
  return 0.5 * erfc((threshold - mean) / scale) + 0.5 * erfc((threshold + mean) / scale);
}

/* Step by step, counting after each; back where a step upwards leaves too few. */
static double corrected(const struct lossy *lossy, const double *values, double threshold) {
  const uint64_t k = lossy->config.k, fewest = k - k / 4, most = k + k / 4;
  while (count_from(lossy, values, threshold) < fewest) threshold /= 1.02;
  while (count_from(lossy, values, threshold) > most && count_from(lossy, values, threshold * 1.02) >= fewest)
    threshold *= 1.02;
  return threshold;
}

static void keep_normal(struct lossy *lossy, double *values) {
  const double n = (double)lossy->n_values, k = (double)lossy->config.k;
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < lossy->n_values; i++) {
    sum += values[i];
    squares += values[i] * values[i];
  }
  const double mean = sum / n, deviation = sqrt(squares / n - mean * mean);
  if (count_from(lossy, values, nextafter(0, 1)) <= lossy->config.k) return;
  if (!(deviation > 0)) {
    keep_greatest(lossy, values);
    return;
  }
  /* A row passes when one of its values does. */
  const double each = 1 - pow(1 - k / (double)lossy->config.rows, 1.0 / lossy->config.width);
  double low = 0, high = fabs(mean) + 40 * deviation;
  for (unsigned i = 0; i < 200; i++) {
    const double middle = (low + high) / 2;
    if (beyond(middle, mean, deviation) >= each)
      low = middle;
    else
      high = middle;
  }
  if (!(lossy->config.without & ZPS_WITHOUT_CORRECTION)) low = corrected(lossy, values, low);
  keep_from(lossy, values, low);
}

/* ------------------------------------------------------------ schemes */

static void add(const struct lossy *lossy, double *sum, const double *values) {
  for (uint64_t i = 0; i < lossy->n_values; i++)
    sum[i] = lossy->config.f32 ? (double)((float)sum[i] + (float)values[i]) : sum[i] + values[i];
}

static void load(struct lossy *lossy, uint32_t rank, double *values) {
  memset(values, 0, lossy->n_values * sizeof *values);
  lossy->load(lossy->ctx, rank, values);
}

static void next_of_greatest(struct lossy *lossy, double *sum, double *room) {
  for (uint32_t rank = 0; rank < lossy->config.n; rank++) {
    load(lossy, rank, room);
    keep_greatest(lossy, room);
    add(lossy, sum, room);
  }
}

static void next_of_normal(struct lossy *lossy, double *sum, double *room) {
  for (uint32_t rank = 0; rank < lossy->config.n; rank++) {
    load(lossy, rank, room);
    keep_normal(lossy, room);
    add(lossy, sum, room);
  }
}

/* The sum at `rank` once it has taken in the ranks up to 2^stages after it, in levels[stages]. */
static double *tree(struct lossy *lossy, uint32_t rank, uint32_t stages) {
  double *const own = lossy->levels[stages];
  if (stages == 0) {
    load(lossy, rank, own);
    keep_greatest(lossy, own);
    return own;
  }
  const uint64_t other = rank + (1ull << (stages - 1));
  memcpy(own, tree(lossy, rank, stages - 1), lossy->n_values * sizeof *own);
  if (other >= lossy->config.n) return own;
  add(lossy, own, tree(lossy, (uint32_t)other, stages - 1));
  keep_greatest(lossy, own);
  return own;
}

static void next_of_tree(struct lossy *lossy, double *sum, double *room) {
  (void)room;
  (void)sum; /* the last level */
  tree(lossy, 0, lossy->n_levels - 1);
}

static void keep_local(struct lossy *lossy, uint32_t rank, double *values, bool renewed) {
  double *const threshold = &lossy->local[rank];
  const double least = nextafter(0, 1);
  if (renewed) *threshold = kth(lossy, values);
  if (count_from(lossy, values, least) <= lossy->config.k) return;
  if (*threshold == 0)
    keep_greatest(lossy, values);
  else
    keep_from(lossy, values, *threshold);
  if (lossy->config.without & ZPS_WITHOUT_STEERING) return;
  *threshold =
      zps_steer(&lossy->steers[rank], *threshold, (double)count_from(lossy, values, least) / (double)lossy->config.k);
}

static void next_of_thresholds(struct lossy *lossy, double *sum, double *room) {
  const bool renewed = lossy->round % lossy->config.period == 0 || lossy->useless;
  if (lossy->config.n == 1) { /* there is no rank to save words for */
    next_of_greatest(lossy, sum, room);
    return;
  }
  for (uint32_t rank = 0; rank < lossy->config.n; rank++) {
    load(lossy, rank, room);
    keep_local(lossy, rank, room, renewed);
    add(lossy, sum, room);
  }
  if (renewed) lossy->global = kth(lossy, sum);
  keep_from(lossy, sum, lossy->global);
  const uint64_t count = count_from(lossy, sum, nextafter(0, 1));
  lossy->useless = lossy->global == 0 && count > lossy->config.k;
  if (lossy->config.without & ZPS_WITHOUT_STEERING) return;
  lossy->global = zps_steer(&lossy->steer, lossy->global, (double)count / (double)lossy->config.k);
}

static const struct definition definitions[] = {
    {"topka", next_of_greatest}, {"topkdsa", next_of_greatest},  {"gaussiank", next_of_normal},
    {"gtopk", next_of_tree},     {"oktopk", next_of_thresholds},
};

const double *lossy_next(struct lossy *lossy, lossy_load_fn *load_fn, void *ctx) {
  double *const sum = lossy->levels[lossy->n_levels - 1];
  lossy->load = load_fn;
  lossy->ctx = ctx;
  memset(sum, 0, lossy->n_values * sizeof *sum);
  lossy->definition->next(lossy, sum, lossy->levels[0]);
  lossy->round++;
  return sum;
}

void lossy_destroy(struct lossy *lossy) {
  if (!lossy) return;
  for (uint32_t i = 0; lossy->levels && i < lossy->n_levels; i++) free(lossy->levels[i]);
  free(lossy->levels);
  free(lossy->local);
  free(lossy->steers);
  free(lossy->order);
  free(lossy);
}

zps_err_t lossy_create(const struct lossy_config *config, struct lossy **lossy_p) {
  const struct definition *definition = NULL;
  for (size_t i = 0; i < sizeof definitions / sizeof definitions[0]; i++)
    if (strcmp(definitions[i].scheme, config->scheme) == 0) definition = &definitions[i];
  if (!definition) return ZPS_ERR_INVALID;
  struct lossy *lossy = calloc(1, sizeof *lossy);
  if (!lossy) return ZPS_ERR_NOMEM;
  lossy->config = *config;
  lossy->definition = definition;
  lossy->n_values = config->rows * config->width;
  lossy->n_levels = 2; /* a sum, and room for an addend */
  while (1ull << (lossy->n_levels - 1) < config->n) lossy->n_levels++;
  lossy->local = calloc(config->n, sizeof *lossy->local);
  lossy->steers = calloc(config->n, sizeof *lossy->steers);
  lossy->order = calloc(config->rows, sizeof *lossy->order);
  lossy->levels = calloc(lossy->n_levels, sizeof *lossy->levels);
  bool ok = lossy->local && lossy->steers && lossy->order && lossy->levels;
  for (uint32_t i = 0; ok && i < lossy->n_levels; i++)
    ok = (lossy->levels[i] = calloc(lossy->n_values, sizeof(double))) != NULL;
  if (!ok) {
    lossy_destroy(lossy);
    return ZPS_ERR_NOMEM;
  }
  *lossy_p = lossy;
  return ZPS_OK;
}
