#include "worker/examples/train_select.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


const char *const train_sparsify[] = {"none", "topk", "sampled", "reused", "gaussian", "buckets", "scheme", NULL};

enum { IN_SCHEME = 6 }; /* of train_sparsify */

static bool parse(const char *scheme, struct zps_scheme_text *text, struct zps_error *error) {
  const char *const variable = getenv("ZENPS_SCHEME"), *const otherwise = variable && *variable ? variable : "balanced";
  return zps_scheme_text_parse(scheme ? scheme : otherwise, otherwise, text, error) == ZPS_OK;
}

static bool is_lossy(const struct zps_scheme_text *text) {
  enum zps_plan_scheme number;
  return zps_plan_scheme_parse(text->scheme, &number) && zps_plan_scheme_lossy(number);
}

bool train_select_lossy(const char *scheme) {
  struct zps_scheme_text text;
  struct zps_error error;
  return parse(scheme, &text, &error) && is_lossy(&text);
}

bool train_select_scheme(const struct train_sync *sync, char *text, struct zps_error *error) {
  const bool reused = sync->sparsify == (int)ZENPS_SPARSIFY_REUSED;
  struct zps_scheme_text scheme;
  struct zps_error why;
  if (!parse(sync->scheme, &scheme, &why)) {
    zps_fail(error, ZPS_ERR_INVALID, "--scheme: %s", why.text);
    return false;
  }
  if (sync->unrefined && !reused && sync->sparsify != (int)ZENPS_SPARSIFY_GAUSSIAN) {
    zps_fail(error, ZPS_ERR_INVALID, "--unrefined needs --sparsify reused or gaussian");
    return false;
  }
  if (sync->period && !reused) {
    zps_fail(error, ZPS_ERR_INVALID, "--period needs --sparsify reused");
    return false;
  }
  if (sync->sparsify == IN_SCHEME && !is_lossy(&scheme)) {
    zps_fail(error, ZPS_ERR_INVALID, "--sparsify scheme needs a --scheme that keeps only some rows, such as oktopk");
    return false;
  }
  if (sync->xi && sync->sparsify == 0) {
    zps_fail(error, ZPS_ERR_INVALID, "--xi needs --sparsify: all values are applied without it");
    return false;
  }
  if (is_lossy(&scheme) && scheme.options.k == 0 && !(scheme.options.density > 0))
    scheme.options.density = sync->density;
  scheme.options.contributed |= sync->sparsify == IN_SCHEME;
  snprintf(text, ZPS_SCHEME_TEXT_MAX + 1, "%s", scheme.scheme);
  zps_scheme_options_add(&scheme.options, text);
  return true;
}

bool train_select_open(struct train_select *select, const struct train_sync *sync, uint64_t rows, uint32_t width) {
  zenps_sparsifier_options_t options;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  select->in_scheme = sync->sparsify == IN_SCHEME;
  options.kind =
      select->in_scheme ? ZENPS_SPARSIFY_SCHEME : (zenps_sparsify_t)((int)ZENPS_SPARSIFY_TOPK + sync->sparsify - 1);
  if (!select->in_scheme) options.density = sync->density;
  options.period = (uint32_t)sync->period;
  options.unrefined = sync->unrefined;
  if (train_select_lossy(sync->scheme)) {
    options.residual = ZENPS_RESIDUAL_GLOBAL;
    options.capped = 1;
  }
  select->density = sync->density;
  select->k = (uint64_t)llround(sync->density * (double)(rows * width));
  if (select->k == 0) select->k = 1;
  select->dense = calloc(rows * width, sizeof *select->dense);
  return select->dense && zenps_sparsifier_create(&options, rows * width, ZENPS_F32, &select->sparsifier) == ZENPS_OK;
}

void train_select_close(struct train_select *select) {
  zenps_sparsifier_destroy(select->sparsifier);
  train_xi_close(&select->xi);
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
  select->n_sent = in->nnz;
  for (uint64_t i = 0; i < grad->n; i++) memset(select->dense + (uint64_t)grad->row_ids[i] * grad->width, 0, row_bytes);
  return status == ZENPS_OK;
}

/* Takes what was sent out of the residual. */
static bool commit(struct train_select *select, const zenps_request_t *request) {
  zenps_grad_t contributed;
  if (!select->in_scheme) return zenps_sparsifier_commit(select->sparsifier, &select->values) == ZENPS_OK;
  ZENPS_GRAD_INIT(&contributed);
  if (zenps_request_contributed(request, &contributed) != ZENPS_OK) return false;
  select->n_sent = contributed.nnz;
  return zenps_sparsifier_commit(select->sparsifier, &contributed) == ZENPS_OK;
}

bool train_select_out(struct train_select *select, const zenps_request_t *request, uint32_t width, zenps_grad_t *sum) {
  const zenps_grad_t *values = &select->values;
  if (!commit(select, request)) return false;
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
