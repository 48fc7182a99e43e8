#include "tests/support/sim_grads.h"

#include <stdlib.h>

static void store(enum zps_dtype dtype, void *values, uint64_t i, double value) {
  if (dtype == ZPS_DTYPE_F32)
    ((float *)values)[i] = (float)value;
  else
    ((double *)values)[i] = value;
}

double sim_load(enum zps_dtype dtype, const void *values, uint64_t i) {
  return dtype == ZPS_DTYPE_F32 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

/* Never zero. */
static double draw_value(struct zps_rng *rng, enum sim_values values) {
  if (values == SIM_RANDOM) return zps_rng_unit(rng) - 0.5 + 1e-9;
  const double eighths = 1 + (double)zps_rng_below(rng, 64);
  return (zps_rng_below(rng, 2) ? eighths : -eighths) / 8;
}

static bool has_row(struct zps_rng *rng, struct zps_rng *shared, uint32_t n, uint32_t rank, uint64_t row,
                    double density, int overlap) {
  if (overlap < 0) return row % n == rank && zps_rng_unit(rng) < density;
  return zps_rng_unit(overlap ? shared : rng) < density;
}

static void to_coo(struct zps_own_input *input, void *values) {
  int64_t *const rows = malloc((input->n_rows + 1) * sizeof *rows);
  for (uint64_t at = input->n_rows; at > 0; at--) { /* descending */
    const uint64_t row = at - 1;
    bool zero = true;
    for (uint32_t j = 0; j < input->width; j++)
      zero = zero && sim_load(input->dtype, input->values, row * input->width + j) == 0;
    if (zero) continue;
    for (uint32_t j = 0; j < input->width; j++)
      store(input->dtype, values, input->n_entries * input->width + j,
            sim_load(input->dtype, input->values, row * input->width + j));
    rows[input->n_entries++] = (int64_t)row;
  }
  free((void *)input->values);
  input->values = values;
  input->rows = rows;
}

struct sim_grads sim_grads_draw(struct zps_rng *rng, uint32_t n, uint64_t rows, uint32_t width, enum zps_dtype dtype,
                                double density, int overlap, enum sim_values values, bool coo) {
  struct sim_grads grads = {.n = n, .width = width, .dtype = dtype, .rows = rows};
  grads.inputs = calloc(n, sizeof *grads.inputs);
  const struct zps_rng shared = {zps_rng_u64(rng)};
  for (uint32_t i = 0; i < n; i++) {
    struct zps_rng same = shared;
    void *const dense = calloc(rows * width + 1, 8);
    for (uint64_t row = 0; row < rows; row++) {
      if (!has_row(rng, &same, n, i, row, density, overlap)) continue;
      for (uint32_t j = 0; j < width; j++) store(dtype, dense, row * width + j, draw_value(rng, values));
    }
    grads.inputs[i] = (struct zps_own_input){.n_rows = rows, .width = width, .dtype = dtype, .values = dense};
    if (coo && i % 2 == 1) to_coo(&grads.inputs[i], calloc(rows * width + 1, 8));
  }
  return grads;
}

void sim_grads_free(struct sim_grads *grads) {
  for (uint32_t i = 0; i < grads->n; i++) {
    free((void *)grads->inputs[i].values);
    free((void *)grads->inputs[i].rows);
  }
  free(grads->inputs);
}

double *sim_grads_dense(const struct sim_grads *grads, uint32_t i) {
  const struct zps_own_input *const input = &grads->inputs[i];
  const uint32_t width = grads->width;
  double *const dense = calloc(grads->rows * width + 1, sizeof *dense);
  const uint64_t n_entries = input->rows ? input->n_entries : grads->rows;
  for (uint64_t entry = 0; entry < n_entries; entry++) {
    const uint64_t row = input->rows ? (uint64_t)input->rows[entry] : entry;
    for (uint32_t j = 0; j < width; j++)
      dense[row * width + j] = sim_load(grads->dtype, input->values, entry * width + j);
  }
  return dense;
}

uint64_t sim_grads_nnz(const struct sim_grads *grads, uint32_t i) {
  double *const dense = sim_grads_dense(grads, i);
  uint64_t nnz = 0;
  for (uint64_t row = 0; row < grads->rows; row++) nnz += dense[row * grads->width] != 0;
  free(dense);
  return nnz;
}

double *sim_grads_sum(const struct sim_grads *grads, uint64_t *union_p) {
  const uint64_t n_values = grads->rows * grads->width;
  double *const sum = calloc(n_values + 1, sizeof *sum);
  bool *const present = calloc(grads->rows + 1, sizeof *present);
  for (uint32_t i = 0; i < grads->n; i++) {
    double *const dense = sim_grads_dense(grads, i);
    for (uint64_t j = 0; j < n_values; j++) {
      sum[j] = grads->dtype == ZPS_DTYPE_F32 ? (double)((float)sum[j] + (float)dense[j]) : sum[j] + dense[j];
      if (dense[j] != 0) present[j / grads->width] = true;
    }
    free(dense);
  }
  *union_p = 0;
  for (uint64_t row = 0; row < grads->rows; row++) *union_p += present[row];
  free(present);
  return sum;
}
