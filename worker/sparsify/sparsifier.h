/* A sparsifier: options made definite, the residual, and the selection in hand. */
#ifndef ZPS_WORKER_SPARSIFY_SPARSIFIER_H
#define ZPS_WORKER_SPARSIFY_SPARSIFIER_H

#include "worker/select/feedback.h"
#include "worker/select/scan.h"
#include "worker/select/steer.h"
#include "zenps/sparsify.h"

struct zps_sparsifier_there;

/* With `there`, the arrays of feedback and picks are in device memory. */
struct zenps_sparsifier {
  zenps_sparsifier_options_t options; /* complete; k is that of a bucket with ZENPS_SPARSIFY_BUCKETS */
  enum zps_dtype dtype;
  uint64_t n;
  struct zps_feedback feedback;
  struct zps_picks picks;
  void *sample;          /* options.sample values, of the kinds that take one */
  uint64_t *global_bits; /* ZENPS_RESIDUAL_GLOBAL: n bits, all zero between calls */
  bool selected;         /* a selection is neither committed nor canceled */

  uint64_t threshold; /* a magnitude: the last one, or ZENPS_SPARSIFY_THRESHOLD's */
  uint64_t reused;    /* ZENPS_SPARSIFY_REUSED: the next one, unless that is exact */
  struct zps_steer steer;
  uint32_t age; /* selections since the exact one */
  uint64_t steps, refined;
  struct zps_sparsifier_there *there; /* NULL: gradients are in host memory */
};

/* The selection is a scheme's affair. */
static inline bool zps_sparsifier_selects_nothing(const struct zenps_sparsifier *sparsifier) {
  return sparsifier->options.kind == ZENPS_SPARSIFY_SCHEME;
}

/* Copies, checks and completes options. */
zps_err_t zps_sparsifier_options_load(zenps_sparsifier_options_t *options, const zenps_sparsifier_options_t *given,
                                      uint64_t n, enum zps_dtype dtype, struct zps_error *error) ZPS_MUSTCHECK;
/* Room for the picks that k needs. */
zps_err_t zps_sparsifier_reserve(struct zenps_sparsifier *sparsifier, struct zps_error *error) ZPS_MUSTCHECK;
/* The entries wanted of all buckets together. */
uint64_t zps_sparsifier_total_k(const struct zenps_sparsifier *sparsifier);

/* The next threshold of one that is reused, after what it has picked. */
uint64_t zps_sparsifier_steered(struct zenps_sparsifier *sparsifier);

/* Adds the gradient to the residual and fills the picks. */
void zps_sparsifier_run(struct zenps_sparsifier *sparsifier, const void *gradient);

#endif
