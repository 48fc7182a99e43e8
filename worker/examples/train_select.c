#include "worker/examples/train_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const train_sparsify[] = {"none", "topk", "sampled", "reused", "gaussian", "buckets", NULL};

bool train_select_lossy(const char *scheme) {
  static const char *const names[] = {"oktopk", "gtopk", "topka", "topkdsa", "gaussiank"};
  for (size_t i = 0; scheme && i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i], scheme) == 0) return true;
  return false;
}

bool train_select_open(struct train_select *select, const struct train_sync *sync, uint64_t rows, uint32_t width) {
  zenps_sparsifier_options_t options;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  options.kind = (zenps_sparsify_t)((int)ZENPS_SPARSIFY_TOPK + sync->sparsify - 1);
  options.density = sync->density;
  if (train_select_lossy(sync->scheme)) {
    options.residual = ZENPS_RESIDUAL_GLOBAL;
    options.capped = 1;
  }
  select->density = sync->density;
  select->dense = calloc(rows * width, sizeof *select->dense);
  return select->dense && zenps_sparsifier_create(&options, rows * width, ZENPS_F32, &select->sparsifier) == ZENPS_OK;
}

void train_select_close(struct train_select *select) {
  zenps_sparsifier_destroy(select->sparsifier);
  free(select->dense);
  free(select->row_ids);
  free(select->rows);
}

bool train_select_in(struct train_select *select, const struct grad *grad, float factor, zenps_grad_t *in) {
  const size_t row_bytes = grad->width * sizeof *select->dense;
  for (uint64_t i = 0; i < grad->n; i++) {
    float *row = select->dense + (uint64_t)grad->row_ids[i] * grad->width;
    const float *values = grad->values + i * grad->width;
    for (uint32_t k = 0; k < grad->width; k++) row[k] = factor * values[k];
  }
  const zenps_status_t status = zenps_sparsifier_select(select->sparsifier, select->dense, in);
  for (uint64_t i = 0; i < grad->n; i++) memset(select->dense + (uint64_t)grad->row_ids[i] * grad->width, 0, row_bytes);
  return status == ZENPS_OK;
}

bool train_select_out(struct train_select *select, uint32_t width, zenps_grad_t *sum) {
  const zenps_grad_t *values = &select->values;
  if (zenps_sparsifier_commit(select->sparsifier, values) != ZENPS_OK) return false;
  if (values->nnz > select->capacity) {
    free(select->row_ids);
    free(select->rows);
    select->row_ids = malloc(values->nnz * sizeof *select->row_ids);
    select->rows = malloc(values->nnz * width * sizeof *select->rows);
    select->capacity = select->row_ids && select->rows ? values->nnz : 0;
    if (select->capacity == 0) return false;
  }
  uint64_t n = 0;
  for (uint64_t i = 0; i < values->nnz; i++) { /* they ascend */
    const int64_t row = values->row_ids[i] / width;
    if (n == 0 || select->row_ids[n - 1] != row) {
      memset(select->rows + n * width, 0, width * sizeof *select->rows);
      select->row_ids[n++] = row;
    }
    select->rows[(n - 1) * width + (uint64_t)(values->row_ids[i] % width)] = ((const float *)values->values)[i];
  }
  *sum = *values;
  sum->nnz = n;
  sum->row_ids = select->row_ids;
  sum->values = select->rows;
  return true;
}

bool train_epoch(struct train_tensor *tensor, const struct train_sync *sync, uint64_t epoch) {
  struct train_select *select = &tensor->select;
  const uint64_t whole = sync->sparsify == (int)ZENPS_SPARSIFY_BUCKETS ? 512 : tensor->grad.rows * tensor->grad.width;
  if (!select->sparsifier || sync->warmup == 0) return true;
  const double share = fmin(1, ((double)epoch + 1) / ((double)sync->warmup + 1));
  const uint64_t k = (uint64_t)llround(pow(sync->density, share) * (double)whole);
  return zenps_sparsifier_set_k(select->sparsifier, k ? k : 1) == ZENPS_OK;
}
