#include "tests/bench/perceptron.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"

enum { MODES = 8, SIZE_MAX_LAYER = 65536 };

/* Mean 0, deviation 1: the sum of four uniform numbers, which is near enough to a normal one. */
static float near_normal(struct zps_rng *rng) {
  const double sum = zps_rng_unit(rng) + zps_rng_unit(rng) + zps_rng_unit(rng) + zps_rng_unit(rng);
  return (float)((sum - 2) * sqrt(3));
}

static bool parse_sizes(struct perceptron *perceptron, const char *text) {
  uint32_t n = 0;
  for (const char *at = text;; at++) {
    char *end;
    const unsigned long size = strtoul(at, &end, 10);
    if (end == at || size < 1 || size > SIZE_MAX_LAYER || n > PERCEPTRON_LAYERS_MAX) return false;
    perceptron->sizes[n++] = (uint32_t)size;
    if (!*end) break;
    if (*end != ',') return false;
    at = end;
  }
  perceptron->n_layers = n - 1;
  return n > 1;
}

bool perceptron_init(struct perceptron *perceptron, const char *sizes, uint64_t seed) {
  *perceptron = (struct perceptron){.n = 0};
  if (!parse_sizes(perceptron, sizes)) return false;
  const uint32_t *size = perceptron->sizes;
  for (uint32_t l = 0; l < perceptron->n_layers; l++)
    perceptron->starts[l + 1] = perceptron->starts[l] + (uint64_t)(size[l] + 1) * size[l + 1];
  perceptron->n = perceptron->starts[perceptron->n_layers];
  perceptron->weights = calloc(perceptron->n, sizeof(float));
  perceptron->gradient = calloc(perceptron->n, sizeof(float));
  bool ok = perceptron->weights && perceptron->gradient;
  for (uint32_t l = 0; l <= perceptron->n_layers; l++) {
    perceptron->values[l] = calloc(size[l], sizeof(float));
    perceptron->slopes[l] = calloc(size[l], sizeof(float));
    ok = ok && perceptron->values[l] && perceptron->slopes[l];
  }
  struct zps_rng rng = {zps_hash_mix64(seed)};
  for (uint32_t l = 0; ok && l < perceptron->n_layers; l++) {
    float *w = perceptron->weights + perceptron->starts[l];
    const float spread = sqrtf(2.0f / (float)size[l]);
    for (uint64_t i = 0; i < (uint64_t)size[l] * size[l + 1]; i++) w[i] = spread * near_normal(&rng);
  }
  return ok;
}

void perceptron_fini(struct perceptron *perceptron) {
  free(perceptron->weights);
  free(perceptron->gradient);
  for (uint32_t l = 0; l <= PERCEPTRON_LAYERS_MAX; l++) {
    free(perceptron->values[l]);
    free(perceptron->slopes[l]);
  }
}

uint32_t perceptron_sample(struct perceptron *perceptron, uint64_t seed, uint64_t stream, uint64_t number) {
  struct zps_rng rng = {zps_hash_mix64(seed ^ zps_hash_mix64(stream + 1) ^ zps_hash_mix64(~number))};
  const uint32_t class = (uint32_t)zps_rng_below(&rng, perceptron->sizes[perceptron->n_layers]);
  struct zps_rng cloud = {zps_hash_mix64(seed + class * MODES + zps_rng_below(&rng, MODES))};
  for (uint32_t i = 0; i < perceptron->sizes[0]; i++) {
    const float spread = 1 / sqrtf(1 + (float)i / 4);
    perceptron->values[0][i] = spread * (near_normal(&cloud) + 1.5f * near_normal(&rng));
  }
  return class;
}

uint32_t perceptron_predict(struct perceptron *perceptron) {
  for (uint32_t l = 0; l < perceptron->n_layers; l++) {
    const uint32_t n_in = perceptron->sizes[l], n_out = perceptron->sizes[l + 1];
    const float *w = perceptron->weights + perceptron->starts[l], *in = perceptron->values[l];
    float *out = perceptron->values[l + 1];
    memcpy(out, w + (uint64_t)n_in * n_out, n_out * sizeof *out);
    for (uint32_t i = 0; i < n_in; i++) {
      if (in[i] == 0) continue;
      for (uint32_t o = 0; o < n_out; o++) out[o] += in[i] * w[(uint64_t)i * n_out + o];
    }
    for (uint32_t o = 0; l + 1 < perceptron->n_layers && o < n_out; o++) out[o] = out[o] > 0 ? out[o] : 0;
  }
  const uint32_t n_classes = perceptron->sizes[perceptron->n_layers];
  const float *scores = perceptron->values[perceptron->n_layers];
  uint32_t best = 0;
  for (uint32_t k = 1; k < n_classes; k++)
    if (scores[k] > scores[best]) best = k;
  return best;
}

double perceptron_loss(struct perceptron *perceptron, uint32_t class) {
  const uint32_t n_classes = perceptron->sizes[perceptron->n_layers];
  const float *scores = perceptron->values[perceptron->n_layers];
  float *slopes = perceptron->slopes[perceptron->n_layers], most = scores[0], total = 0;
  for (uint32_t k = 1; k < n_classes; k++) most = fmaxf(most, scores[k]);
  for (uint32_t k = 0; k < n_classes; k++) total += slopes[k] = expf(scores[k] - most);
  for (uint32_t k = 0; k < n_classes; k++) slopes[k] = slopes[k] / total - (k == class);
  return log(total) + (double)most - (double)scores[class];
}

void perceptron_backward(struct perceptron *perceptron, uint32_t layer) {
  const uint32_t n_in = perceptron->sizes[layer], n_out = perceptron->sizes[layer + 1];
  const float *w = perceptron->weights + perceptron->starts[layer], *in = perceptron->values[layer];
  const float *slopes = perceptron->slopes[layer + 1];
  float *g = perceptron->gradient + perceptron->starts[layer], *below = perceptron->slopes[layer];
  for (uint32_t i = 0; i < n_in; i++) {
    const float *row = w + (uint64_t)i * n_out;
    float slope = 0;
    if (in[i] == 0) { /* of a hidden layer: ReLU lets nothing through */
      below[i] = 0;
      continue;
    }
    for (uint32_t o = 0; o < n_out; o++) {
      g[(uint64_t)i * n_out + o] += in[i] * slopes[o];
      slope += row[o] * slopes[o];
    }
    below[i] = slope;
  }
  for (uint32_t o = 0; o < n_out; o++) g[(uint64_t)n_in * n_out + o] += slopes[o];
}
