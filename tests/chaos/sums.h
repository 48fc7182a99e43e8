/* Gradients that every rank can make for every other one, and the sums that must come of them. */
#ifndef ZPS_TESTS_CHAOS_SUMS_H
#define ZPS_TESTS_CHAOS_SUMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <zenps/zenps.h>

/* f32 tensors. A gradient has one row of each of `n_strips` strips, as even as they come. */
struct sums_spec {
  const char *name, *scheme;
  uint64_t rows, n_strips;
  uint32_t width, partitions;
  bool is_dense; /* gradient and result are arrays of all rows; else lists of rows */
};

/* Whose gradients: each word counts. */
struct sums_of {
  uint64_t seed, step;
  uint32_t tensor;
  int world;
};

/* The gradient of a rank. Its arrays hold `rows` rows where it is dense, else `n_strips`. */
void sums_gradient(const struct sums_spec *spec, const struct sums_of *of, int rank, zenps_grad_t *grad);

/* Whether the result is, bit for bit, the sum of all ranks' gradients in the order of ranks, each beginning at +0.0.
 * Else `what` says where it is not. `digest_p` is of all that the result has. */
bool sums_check(const struct sums_spec *spec, const struct sums_of *of, const zenps_grad_t *result, uint64_t *digest_p,
                char *what, size_t what_size);

#endif
