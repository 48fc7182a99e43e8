/*
 * A multilayer perceptron with ReLU between layers and cross entropy at its end, on samples that are made from a seed:
 * the dense model that perceptron-rank trains. It knows nothing of ranks.
 *
 * Samples: each class is a mixture of MODES Gaussian clouds, whose spread falls from one input to the next (as
 * principal components do), so that no linear classifier separates the classes.
 *
 * All weights are one array, all gradients another of the same shape: layer after layer, of each the matrix (a row per
 * input), then the bias.
 */
#ifndef ZPS_BENCH_PERCEPTRON_H
#define ZPS_BENCH_PERCEPTRON_H

#include <stdbool.h>
#include <stdint.h>

enum { PERCEPTRON_LAYERS_MAX = 8 };

struct perceptron {
  uint32_t n_layers; /* of weights */
  uint32_t sizes[PERCEPTRON_LAYERS_MAX + 1];
  uint64_t n;                                 /* weights */
  uint64_t starts[PERCEPTRON_LAYERS_MAX + 1]; /* of each layer's weights; the last is n */
  float *weights, *gradient;
  float *values[PERCEPTRON_LAYERS_MAX + 1], *slopes[PERCEPTRON_LAYERS_MAX + 1]; /* of one sample */
};

/* From "128,256,10": sizes of the input, hidden layers and classes. The same weights for the same seed. False: no such
 * sizes (two to nine numbers of 1 to 65536, by comma), or no memory. */
bool perceptron_init(struct perceptron *perceptron, const char *sizes, uint64_t seed);
void perceptron_fini(struct perceptron *perceptron);

/* Fills values[0] with sample `number` of a stream; its class. Streams differ, the clouds are those of `seed`. */
uint32_t perceptron_sample(struct perceptron *perceptron, uint64_t seed, uint64_t stream, uint64_t number);
/* The most likely class of values[0]. */
uint32_t perceptron_predict(struct perceptron *perceptron);
/* The sample's loss, once predicted; its slopes of the last layer are kept for perceptron_backward(). */
double perceptron_loss(struct perceptron *perceptron, uint32_t class);
/* Adds the sample's gradient for one layer; from the last layer to the first. */
void perceptron_backward(struct perceptron *perceptron, uint32_t layer);

#endif
