#include "tests/integration/api_test.h"

#include <math.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "tests/support/halves.h"

static bool is_half(const struct spec *spec) {
  return spec->dtype == ZENPS_BF16 || spec->dtype == ZENPS_F16;
}

static size_t value_bytes(const struct spec *spec) {
  return is_half(spec) ? 2 : spec->dtype == ZENPS_F32 ? 4 : 8;
}

size_t spec_row_bytes(const struct spec *spec) {
  return spec->width * value_bytes(spec);
}

static void *must(void *memory) {
  CHECK(memory != NULL);
  return memory;
}

static void put(const struct spec *spec, void *values, uint64_t at, double value) {
  if (is_half(spec)) {
    const double scale = spec->dtype == ZENPS_F16 ? 0x1p-10 : 1; /* sums that are finite */
    ((uint16_t *)values)[at] = halves_narrow((enum zps_dtype)spec->dtype, (float)(value * scale));
  } else if (spec->dtype == ZENPS_F32) {
    ((float *)values)[at] = (float)value;
  } else {
    ((double *)values)[at] = value;
  }
}

static double draw(const struct spec *spec, struct zps_rng *rng) {
  static const double odd[] = {-0.0, 0.0, INFINITY, -INFINITY, NAN};
  if (spec->odd_values && zps_rng_below(rng, 4) == 0) return odd[zps_rng_below(rng, 5)];
  if (spec->few_values) return (double)zps_rng_below(rng, 3) - 1;
  return (zps_rng_unit(rng) - 0.5) * (double)(1u << zps_rng_below(rng, 20)); /* so that the order of a sum shows */
}

static void make_dense(const struct spec *spec, struct zps_rng *rng, bool empty, zenps_grad_t *grad) {
  grad->layout = ZENPS_DENSE;
  grad->values = must(calloc(spec->rows, spec_row_bytes(spec)));
  for (uint64_t row = 0; row < spec->rows && !empty; row++) {
    if (zps_rng_unit(rng) >= spec->density) continue;
    for (uint32_t i = 0; i < spec->width; i++) put(spec, grad->values, row * spec->width + i, draw(spec, rng));
  }
}

static void make_rows(const struct spec *spec, struct zps_rng *rng, bool empty, zenps_grad_t *grad) {
  const uint64_t n = empty ? 0 : (uint64_t)(spec->density * (double)spec->rows) + 1;
  const uint64_t repeats = spec->repeats ? spec->repeats : 1;
  grad->layout = ZENPS_ROWS;
  if (n == 0) return;
  grad->row_ids = must(malloc(n * repeats * sizeof *grad->row_ids));
  grad->values = must(malloc(n * repeats * spec_row_bytes(spec)));
  for (uint64_t i = 0; i < n; i++) {
    const int64_t row = (int64_t)zps_rng_below(rng, spec->rows);
    for (uint64_t k = 0; k <= zps_rng_below(rng, repeats); k++) {
      /* Repeats are spread: a new one takes the place of an earlier entry, which moves to the end. */
      const uint64_t at = zps_rng_below(rng, grad->nnz + 1);
      if (at < grad->nnz) {
        grad->row_ids[grad->nnz] = grad->row_ids[at];
        memcpy((char *)grad->values + grad->nnz * spec_row_bytes(spec),
               (char *)grad->values + at * spec_row_bytes(spec), spec_row_bytes(spec));
      }
      grad->row_ids[at] = row;
      for (uint32_t j = 0; j < spec->width; j++) put(spec, grad->values, at * spec->width + j, draw(spec, rng));
      grad->nnz++;
    }
  }
}

void grad_make(const struct spec *spec, int rank, uint64_t step, zenps_grad_t *grad) {
  struct zps_rng rng = {zps_hash_mix64((uint64_t)rank * 1000003 + step * 7919 + spec->rows)};
  const bool empty = spec->empty && (unsigned)rank % spec->empty != 0;
  ZENPS_GRAD_INIT(grad);
  if (spec->rows_in) {
    make_rows(spec, &rng, empty, grad);
  } else {
    make_dense(spec, &rng, empty, grad);
  }
}

void grad_free(zenps_grad_t *grad) {
  free(grad->row_ids);
  free(grad->values);
}

void out_make(const struct spec *spec, const zenps_grad_t *in, zenps_grad_t *out) {
  ZENPS_GRAD_INIT(out);
  out->layout = spec->rows_out ? ZENPS_ROWS : ZENPS_DENSE;
  if (spec->in_place) {
    out->values = in->values;
  } else if (!spec->rows_out) {
    out->values = must(malloc(spec->rows * spec_row_bytes(spec)));
    memset(out->values, 0xa5, spec->rows * spec_row_bytes(spec));
  } else if (spec->own_arrays) {
    out->capacity = spec->rows;
    out->row_ids = must(malloc(spec->rows * sizeof *out->row_ids));
    out->values = must(malloc(spec->rows * spec_row_bytes(spec)));
  }
}

void out_free(const struct spec *spec, const zenps_grad_t *in, zenps_grad_t *out) {
  if (out->values != in->values && (!spec->rows_out || spec->own_arrays)) grad_free(out);
}

/* ------------------------------------------------------------ the plain sum */

struct sum {
  void *values;  /* rows * width */
  bool *present; /* rows that some rank sends */
};

#define DEFINE_ADD(type)                                                                                          \
  /* The rank's own entries first, then onto the sum, unless nothing is left of the row, and it need not stay. */ \
  static void add_##type(const struct spec *spec, const zenps_grad_t *grad, struct sum *sum) {                    \
    const bool by_rows = grad->layout == ZENPS_ROWS;                                                              \
    const type *const values = grad->values;                                                                      \
    type *const total = sum->values;                                                                              \
    type *const sums = by_rows ? must(calloc(spec->rows * spec->width, sizeof(type))) : NULL;                     \
    const type *const own = by_rows ? sums : values;                                                              \
    bool *const given = by_rows ? must(calloc(spec->rows, sizeof *given)) : NULL;                                 \
    for (uint64_t i = 0; by_rows && i < grad->nnz; i++) {                                                         \
      const uint64_t row = (uint64_t)grad->row_ids[i];                                                            \
      for (uint32_t j = 0; j < spec->width; j++) sums[row * spec->width + j] += values[i * spec->width + j];      \
      given[row] = true;                                                                                          \
    }                                                                                                             \
    for (uint64_t row = 0; row < spec->rows; row++) {                                                             \
      if (by_rows && !given[row]) continue;                                                                       \
      bool any = by_rows && spec->options.keep_zero_rows;                                                         \
      for (uint32_t j = 0; j < spec->width; j++) any |= own[row * spec->width + j] != 0;                          \
      if (!any) continue;                                                                                         \
      for (uint32_t j = 0; j < spec->width; j++) {                                                                \
        type *const to = &total[row * spec->width + j], value = own[row * spec->width + j] + 0; /* not -0 */      \
        const bool further = spec->options.op == ZENPS_OP_MAX ? value > *to : value < *to;                        \
        if (spec->options.op != ZENPS_OP_MAX && spec->options.op != ZENPS_OP_MIN)                                 \
          *to += value;                                                                                           \
        else if (!sum->present[row] || further)                                                                   \
          *to = value;                                                                                            \
      }                                                                                                           \
      sum->present[row] = true;                                                                                   \
    }                                                                                                             \
    free(sums);                                                                                                   \
    free(given);                                                                                                  \
  }
DEFINE_ADD(float)
DEFINE_ADD(double)

/* Halves become the floats that they stand for. */
static void widen(const struct spec *spec, zenps_grad_t *grad) {
  const uint64_t n = (grad->layout == ZENPS_ROWS ? grad->nnz : spec->rows) * spec->width;
  const uint16_t *const halves = grad->values;
  float *const floats = must(malloc(n * sizeof *floats + 1));
  for (uint64_t i = 0; i < n; i++) floats[i] = halves_widen((enum zps_dtype)spec->dtype, halves[i]);
  free(grad->values);
  grad->values = floats;
}

/* The sum becomes halves, in place. */
static void narrow(const struct spec *spec, struct sum *sum) {
  const float *const floats = sum->values;
  uint16_t *const halves = must(malloc(spec->rows * spec_row_bytes(spec)));
  for (uint64_t i = 0; i < spec->rows * spec->width; i++)
    halves[i] = halves_narrow((enum zps_dtype)spec->dtype, floats[i]);
  free(sum->values);
  sum->values = halves;
}

static void scale(const struct spec *spec, int world, struct sum *sum) {
  for (uint64_t i = 0; i < spec->rows * spec->width; i++) {
    if (spec->dtype != ZENPS_F64) {
      ((float *)sum->values)[i] *= 1.0f / (float)world;
    } else {
      ((double *)sum->values)[i] *= 1.0 / world;
    }
  }
}

static bool same_value(const struct spec *spec, const void *a, const void *b, uint64_t at) {
  const size_t n = value_bytes(spec);
  if (memcmp((const char *)a + at * n, (const char *)b + at * n, n) == 0) return true;
  /* Which NaN comes of two is the processor's choice. */
  if (is_half(spec))
    return spec->odd_values && isnan(halves_widen((enum zps_dtype)spec->dtype, ((const uint16_t *)a)[at])) &&
           isnan(halves_widen((enum zps_dtype)spec->dtype, ((const uint16_t *)b)[at]));
  return spec->odd_values &&
         (spec->dtype == ZENPS_F32 ? isnan(((const float *)a)[at]) && isnan(((const float *)b)[at])
                                   : isnan(((const double *)a)[at]) && isnan(((const double *)b)[at]));
}

static void check_row(const struct spec *spec, const struct sum *sum, uint64_t row, const void *values, uint64_t at) {
  const void *const wanted = (const char *)sum->values + row * spec_row_bytes(spec);
  const void *const got = (const char *)values + at * spec_row_bytes(spec);
  if (memcmp(got, wanted, spec_row_bytes(spec)) == 0) return;
  for (uint32_t j = 0; j < spec->width; j++) {
    if (same_value(spec, got, wanted, j)) continue;
    char text[128];
    snprintf(text, sizeof text, "row %llu, column %u differs", (unsigned long long)row, j);
    rank_fail(__FILE__, __LINE__, text);
  }
}

void out_check(const struct spec *spec, int world, uint64_t step, const zenps_grad_t *out) {
  const size_t sum_bytes = spec->dtype == ZENPS_F64 ? sizeof(double) : sizeof(float);
  struct sum sum = {must(calloc(spec->rows, spec->width * sum_bytes)), must(calloc(spec->rows, sizeof(bool)))};
  uint64_t n = 0;
  int contributors = 0;
  for (int r = 0; r < world; r++) {
    zenps_grad_t grad;
    grad_make(spec, r, step, &grad);
    contributors += grad.layout == ZENPS_DENSE || grad.nnz > 0;
    if (is_half(spec)) widen(spec, &grad);
    if (spec->dtype != ZENPS_F64) {
      add_float(spec, &grad, &sum);
    } else {
      add_double(spec, &grad, &sum);
    }
    grad_free(&grad);
  }
  CHECK(out->contributors == contributors || out->contributors == -1);
  if (spec->options.op == ZENPS_OP_MEAN) scale(spec, world, &sum);
  if (spec->options.op == ZENPS_OP_MEAN_PRESENT) scale(spec, contributors ? contributors : 1, &sum);
  if (is_half(spec)) narrow(spec, &sum);
  for (uint64_t row = 0; row < spec->rows; row++) {
    if (!spec->rows_out) {
      check_row(spec, &sum, row, out->values, row);
      n += sum.present[row];
    } else if (sum.present[row]) {
      CHECK(n < out->nnz && out->row_ids[n] == (int64_t)row);
      check_row(spec, &sum, row, out->values, n++);
    }
  }
  /* Schemes that send everything, which `auto` may take, do not know which rows some rank had. */
  const char *scheme = spec->options.scheme ? spec->options.scheme : getenv("ZENPS_SCHEME");
  const bool sends_all = !spec->rows_out && scheme && strcmp(scheme, "balanced") != 0;
  CHECK(out->nnz == n || (sends_all && out->nnz == spec->rows));
  free(sum.values);
  free(sum.present);
}

/* ------------------------------------------------------------ a step */

zenps_tensor_t *tensor_open(const struct rank *rank, const char *name, const struct spec *spec) {
  zenps_tensor_t *tensor;
  CHECK_OK(zenps_tensor_open(rank->zenps, name, spec->rows, spec->width, spec->dtype,
                             spec->options.struct_size ? &spec->options : NULL, &tensor));
  return tensor;
}

void step_run(zenps_tensor_t *tensor, const struct spec *spec, const struct rank *rank, uint64_t step) {
  zenps_grad_t in, out;
  zenps_request_t *request;
  grad_make(spec, rank->rank, step, &in);
  out_make(spec, &in, &out);
  CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
  CHECK_OK(zenps_wait(request, -1));
  CHECK(zenps_request_error(request) == NULL);
  out_check(spec, rank->world, step, &out);
  zenps_request_free(request);
  out_free(spec, &in, &out);
  grad_free(&in);
  rank_moves(rank);
}

zenps_tensor_t *tensor_open_by(const struct rank *rank, const char *scheme, const char *name, const struct spec *spec) {
  struct spec with = *spec;
  if (!scheme) return tensor_open_served(rank, name, spec);
  ZENPS_TENSOR_OPTIONS_INIT(&with.options);
  with.options.scheme = scheme;
  return tensor_open(rank, name, &with);
}

zenps_tensor_t *tensor_open_served(const struct rank *rank, const char *name, const struct spec *spec) {
  struct spec served = *spec;
  ZENPS_TENSOR_OPTIONS_INIT(&served.options);
  served.options.scheme = "balanced";
  served.options.staleness = spec->options.staleness;
  return tensor_open(rank, name, &served);
}
