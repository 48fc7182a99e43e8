#include <stdlib.h>
#include <string.h>

#include "worker/tools/perf.h"

struct perf_check {
  struct perf *perf;
  void *sum;        /* rows * width */
  uint8_t *touched; /* rows */
};

zps_err_t perf_check_create(struct perf *perf, struct perf_check **check_p, struct zps_error *error) {
  struct perf_check *check = calloc(1, sizeof *check);
  if (!check) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  check->perf = perf;
  check->sum = calloc(perf->rows * perf->options.width, perf->value_bytes);
  check->touched = calloc(perf->rows, 1);
  if (!check->sum || !check->touched) {
    perf_check_destroy(check);
    return zps_fail(error, ZPS_ERR_NOMEM, "--verify: out of memory for a second copy of the tensor");
  }
  *check_p = check;
  return ZPS_OK;
}

void perf_check_destroy(struct perf_check *check) {
  if (!check) return;
  free(check->sum);
  free(check->touched);
  free(check);
}

/* sum[row] += the rank's row, whose repetitions are added first, in order, from zero: the order the library promises.
 */
#define DEFINE_ADD_ROW(name, type)                                                                   \
  static void name(type *sum, uint64_t width, uint64_t row, const uint64_t *keys, uint64_t n_keys) { \
    for (uint64_t c = 0; c < width; c++) {                                                           \
      type value = 0;                                                                                \
      for (uint64_t k = 0; k < n_keys; k++) value += (type)perf_value(keys[k], row * width + c);     \
      sum[row * width + c] += value;                                                                 \
    }                                                                                                \
  }
DEFINE_ADD_ROW(add_row_f32, float)
DEFINE_ADD_ROW(add_row_f64, double)

static void add_rank(struct perf_check *check, uint64_t step, uint32_t rank) {
  const struct perf *perf = check->perf;
  const struct perf_options *options = &perf->options;
  uint64_t keys[256], n;
  for (uint64_t k = 0; k < options->duplicates; k++) keys[k] = perf_value_key(options->seed, step, rank, (uint32_t)k);
  const int64_t *rows = perf_input_touched(perf->input, step, rank, &n);
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t row = (uint64_t)rows[i];
    check->touched[row] = 1;
    if (perf->value_bytes == 4) {
      add_row_f32(check->sum, options->width, row, keys, options->duplicates);
    } else {
      add_row_f64(check->sum, options->width, row, keys, options->duplicates);
    }
  }
}

static void take_mean(struct perf_check *check, uint64_t row) {
  const struct perf *perf = check->perf;
  const int world = zenps_world(perf->job);
  for (uint64_t c = row * perf->options.width; c < (row + 1) * perf->options.width; c++) {
    if (perf->value_bytes == 4) {
      ((float *)check->sum)[c] *= 1.0f / (float)world;
    } else {
      ((double *)check->sum)[c] *= 1.0 / world;
    }
  }
}

/* Compares one row of the result (NULL: the result does not have it) and clears the reference for the next step. */
static bool same_row(struct perf_check *check, uint64_t row, const void *got) {
  const size_t bytes = check->perf->options.width * check->perf->value_bytes;
  char *expected = (char *)check->sum + row * bytes;
  bool same = true;
  if (check->touched[row]) {
    same = got && memcmp(expected, got, bytes) == 0;
    memset(expected, 0, bytes);
    check->touched[row] = 0;
  } else if (got) {
    for (size_t i = 0; i < bytes; i++) same &= ((const char *)got)[i] == 0;
  }
  return same;
}

zps_err_t perf_check_step(struct perf_check *check, uint64_t step, const zenps_grad_t *out, struct zps_error *error) {
  const struct perf *perf = check->perf;
  const size_t row_bytes = perf->options.width * perf->value_bytes;
  for (int rank = 0; rank < zenps_world(perf->job); rank++) add_rank(check, step, (uint32_t)rank);
  uint64_t at = 0, bad = 0, first_bad = 0;
  for (uint64_t row = 0; row < perf->rows; row++) {
    if (check->touched[row] && perf->options.op == 1) take_mean(check, row);
    const char *got = NULL;
    if (out->layout == ZENPS_DENSE) {
      got = (const char *)out->values + row * row_bytes;
    } else if (at < out->nnz && (uint64_t)out->row_ids[at] == row) { /* promised to be ascending */
      got = (const char *)out->values + at++ * row_bytes;
    }
    if (!same_row(check, row, got) && bad++ == 0) first_bad = row;
  }
  if (out->layout == ZENPS_ROWS && at != out->nnz)
    return zps_fail(error, ZPS_ERR_INTERNAL, "step %llu: the result's rows are not ascending at entry %llu",
                    (unsigned long long)step, (unsigned long long)at);
  if (bad > 0)
    return zps_fail(error, ZPS_ERR_INTERNAL,
                    "step %llu: %llu rows differ from the reference sum, the first is row %llu",
                    (unsigned long long)step, (unsigned long long)bad, (unsigned long long)first_bad);
  return ZPS_OK;
}
