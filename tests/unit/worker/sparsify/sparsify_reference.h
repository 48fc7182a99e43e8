/* Gradients of every kind, and the selection done in the plainest way: sort everything, take the first. */
#ifndef ZPS_TESTS_WORKER_SPARSIFY_SPARSIFY_REFERENCE_H
#define ZPS_TESTS_WORKER_SPARSIFY_SPARSIFY_REFERENCE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "zenps/sparsify.h"

enum ref_shape {
  REF_NORMAL,
  REF_HEAVY,    /* exponents all over the place */
  REF_INTEGERS, /* -8..8: ties */
  REF_EQUAL,    /* one magnitude, both signs */
  REF_ZEROS,    /* of both signs */
  REF_SPARSE,   /* 1% are not zero */
  REF_ASCENDING,
  REF_DESCENDING,
  REF_SPECIAL, /* NaN, Inf, denormals, zeros among others */
  REF_N_SHAPES
};
const char *ref_shape_name(enum ref_shape shape);

double ref_normal(struct zps_rng *rng);
/* `n` values of `dtype`; free() them. */
void *ref_values(struct zps_rng *rng, enum ref_shape shape, uint64_t n, zenps_dtype_t dtype);
double ref_value(zenps_dtype_t dtype, const void *values, uint64_t i);
/* Orders as magnitudes are documented to: finite < Inf < NaN (by bits). */
uint64_t ref_magnitude(zenps_dtype_t dtype, const void *values, uint64_t i);
/* residual[i] += gradient[i] in the dtype. */
void ref_add(zenps_dtype_t dtype, void *residual, const void *gradient, uint64_t n);
/* chosen[i] = 1 for the k greatest of begin..end-1, zeros never. */
void ref_topk(zenps_dtype_t dtype, const void *values, uint64_t begin, uint64_t end, uint64_t k, unsigned char *chosen);
/* The selection is those chosen, ascending, with the bits of `values`. */
void ref_assert_selection(zenps_dtype_t dtype, const void *values, uint64_t n, const unsigned char *chosen,
                          const zenps_grad_t *selection);

struct ref_choice {
  zenps_sparsify_t kind;
  uint64_t k;
  double density;
  zenps_residual_t residual;
  double momentum;
  uint32_t bucket, period;
  uint64_t sample;
  int unrefined, capped;
  double threshold, clip_norm, decay;
};
zenps_sparsifier_t *ref_sparsifier(const struct ref_choice *choice, uint64_t n, zenps_dtype_t dtype);

#endif
