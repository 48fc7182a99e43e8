#include "tests/unit/worker/sparsify/sparsify_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *ref_shape_name(enum ref_shape shape) {
  static const char *const names[REF_N_SHAPES] = {"normal", "heavy",     "integers",   "equal",  "zeros",
                                                  "sparse", "ascending", "descending", "special"};
  return names[shape];
}

double ref_normal(struct zps_rng *rng) {
  const double u = 1 - zps_rng_unit(rng), v = zps_rng_unit(rng);
  return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static double special(struct zps_rng *rng) {
  static const double values[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-310, -1e-40, 1e-45, 3e38};
  const uint64_t i = zps_rng_below(rng, 200);
  return i < sizeof values / sizeof values[0] ? values[i] : ref_normal(rng);
}

static double draw(struct zps_rng *rng, enum ref_shape shape, uint64_t i, uint64_t n) {
  switch (shape) {
    case REF_NORMAL:
      return ref_normal(rng);
    case REF_HEAVY:
      return ref_normal(rng) * exp(8 * ref_normal(rng));
    case REF_INTEGERS:
      return (double)zps_rng_below(rng, 17) - 8;
    case REF_EQUAL:
      return zps_rng_below(rng, 2) ? 0.5 : -0.5;
    case REF_ZEROS:
      return zps_rng_below(rng, 2) ? 0.0 : -0.0;
    case REF_SPARSE:
      return zps_rng_below(rng, 100) ? 0.0 : ref_normal(rng);
    case REF_ASCENDING:
      return (double)i;
    case REF_DESCENDING:
      return (double)(n - i);
    case REF_SPECIAL:
      return special(rng);
    case REF_N_SHAPES:
      break;
  }
  return 0;
}

void *ref_values(struct zps_rng *rng, enum ref_shape shape, uint64_t n, zenps_dtype_t dtype) {
  void *const values = malloc(n * (dtype == ZENPS_F32 ? sizeof(float) : sizeof(double)));
  assert_non_null(values);
  for (uint64_t i = 0; i < n; i++) {
    const double value = draw(rng, shape, i, n);
    if (dtype == ZENPS_F32)
      ((float *)values)[i] = (float)value;
    else
      ((double *)values)[i] = value;
  }
  return values;
}

double ref_value(zenps_dtype_t dtype, const void *values, uint64_t i) {
  return dtype == ZENPS_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

uint64_t ref_magnitude(zenps_dtype_t dtype, const void *values, uint64_t i) {
  if (dtype == ZENPS_F32) {
    uint32_t bits;
    memcpy(&bits, (const float *)values + i, sizeof bits);
    return bits << 1 >> 1;
  }
  uint64_t bits;
  memcpy(&bits, (const double *)values + i, sizeof bits);
  return bits << 1 >> 1;
}

void ref_add(zenps_dtype_t dtype, void *residual, const void *gradient, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    if (dtype == ZENPS_F32)
      ((float *)residual)[i] += ((const float *)gradient)[i];
    else
      ((double *)residual)[i] += ((const double *)gradient)[i];
  }
}

struct entry {
  uint64_t magnitude, i;
};

static int greatest_first(const void *a, const void *b) {
  const struct entry *const x = a, *const y = b;
  if (x->magnitude != y->magnitude) return x->magnitude > y->magnitude ? -1 : 1;
  return x->i < y->i ? -1 : 1;
}

void ref_topk(zenps_dtype_t dtype, const void *values, uint64_t begin, uint64_t end, uint64_t k,
              unsigned char *chosen) {
  struct entry *const entries = malloc((end - begin) * sizeof *entries);
  assert_non_null(entries);
  for (uint64_t i = begin; i < end; i++) {
    entries[i - begin] = (struct entry){ref_magnitude(dtype, values, i), i};
    chosen[i] = 0;
  }
  qsort(entries, end - begin, sizeof *entries, greatest_first);
  for (uint64_t j = 0; j < k && j < end - begin && entries[j].magnitude; j++) chosen[entries[j].i] = 1;
  free(entries);
}

void ref_assert_selection(zenps_dtype_t dtype, const void *values, uint64_t n, const unsigned char *chosen,
                          const zenps_grad_t *selection) {
  const size_t size = dtype == ZENPS_F32 ? sizeof(float) : sizeof(double);
  uint64_t at = 0;
  assert_int_equal(selection->layout, ZENPS_ROWS);
  for (uint64_t i = 0; i < n; i++) {
    if (!chosen[i]) continue;
    assert_true(at < selection->nnz);
    assert_int_equal(selection->row_ids[at], i);
    assert_memory_equal((const char *)selection->values + at * size, (const char *)values + i * size, size);
    at++;
  }
  assert_int_equal(at, selection->nnz);
}

zenps_sparsifier_t *ref_sparsifier(const struct ref_choice *choice, uint64_t n, zenps_dtype_t dtype) {
  zenps_sparsifier_options_t options;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  options.kind = choice->kind;
  options.residual = choice->residual;
  options.k = choice->k;
  options.density = choice->density;
  options.momentum = choice->momentum;
  options.bucket = choice->bucket;
  options.period = choice->period;
  options.sample = choice->sample;
  options.unrefined = choice->unrefined;
  options.capped = choice->capped;
  options.threshold = choice->threshold;
  options.clip_norm = choice->clip_norm;
  options.decay = choice->decay;
  options.seed = 12345;
  zenps_sparsifier_t *sparsifier = NULL;
  if (zenps_sparsifier_create(&options, n, dtype, &sparsifier) != ZENPS_OK) fail_msg("%s", zenps_last_error()->text);
  return sparsifier;
}
