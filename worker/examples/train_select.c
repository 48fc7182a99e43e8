#include "worker/examples/train_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/without.h"

const char *const train_sparsify[] = {"none", "topk", "sampled", "reused", "gaussian", "buckets", "scheme", NULL};

enum { IN_SCHEME = 6 }; /* of train_sparsify */

static enum zps_plan_scheme number_of(const char *scheme) {
  enum zps_plan_scheme number = ZPS_PLAN_AUTO;
  return scheme && zps_plan_scheme_parse(scheme, &number) ? number : ZPS_PLAN_AUTO;
}

bool train_select_lossy(const char *scheme) {
  return zps_plan_scheme_lossy(number_of(scheme));
}

/* Checked by train_select_parts(). */
static unsigned without(const struct train_sync *sync) {
  unsigned parts = 0;
  struct zps_error error;
  if (!sync->without || zps_without_parse(sync->without, strlen(sync->without), &parts, &error) != ZPS_OK) return 0;
  return parts;
}

static unsigned selection_parts(const struct train_sync *sync) {
  return sync->sparsify == (int)ZENPS_SPARSIFY_REUSED     ? ZPS_WITHOUT_STEERING
         : sync->sparsify == (int)ZENPS_SPARSIFY_GAUSSIAN ? ZPS_WITHOUT_CORRECTION
                                                          : 0;
}

bool train_select_parts(const struct train_sync *sync, zenps_tensor_options_t *options, struct zps_error *error) {
  const enum zps_plan_scheme scheme = number_of(sync->scheme);
  const unsigned of_scheme = zps_without_of(scheme), most = of_scheme | selection_parts(sync);
  const bool oktopk = scheme == ZPS_PLAN_OKTOPK;
  struct zps_error why;
  unsigned parts = 0;
  char text[ZPS_WITHOUT_TEXT_MAX + 1];
  if (sync->without && zps_without_parse(sync->without, strlen(sync->without), &parts, &why) != ZPS_OK) {
    zps_fail(error, ZPS_ERR_INVALID, "--without: %s", why.text);
    return false;
  }
  if (parts & ~most) {
    zps_fail(error, ZPS_ERR_INVALID, "--without: scheme and selection do not have %s",
             zps_without_text(parts & ~most, text));
    return false;
  }
  if ((sync->tau && !oktopk) || (sync->tau_threshold && !oktopk && sync->sparsify != (int)ZENPS_SPARSIFY_REUSED)) {
    zps_fail(error, ZPS_ERR_INVALID, "--tau needs --scheme oktopk, --tau-threshold that or --sparsify reused");
    return false;
  }
  if (sync->sparsify == IN_SCHEME && !zps_plan_scheme_lossy(scheme)) {
    zps_fail(error, ZPS_ERR_INVALID, "--sparsify scheme needs a --scheme that keeps only some rows, such as oktopk");
    return false;
  }
  if (sync->xi && sync->sparsify == 0) {
    zps_fail(error, ZPS_ERR_INVALID, "--xi needs --sparsify: all values are applied without it");
    return false;
  }
  options->without = parts & of_scheme;
  options->contributed = sync->sparsify == IN_SCHEME;
  if (oktopk) {
    options->boundary_period = (uint32_t)sync->tau;
    options->threshold_period = (uint32_t)sync->tau_threshold;
  }
  return true;
}

bool train_select_open(struct train_select *select, const struct train_sync *sync, uint64_t rows, uint32_t width) {
  zenps_sparsifier_options_t options;
  ZENPS_SPARSIFIER_OPTIONS_INIT(&options);
  select->in_scheme = sync->sparsify == IN_SCHEME;
  options.kind =
      select->in_scheme ? ZENPS_SPARSIFY_SCHEME : (zenps_sparsify_t)((int)ZENPS_SPARSIFY_TOPK + sync->sparsify - 1);
  if (!select->in_scheme) options.density = sync->density;
  options.period = (uint32_t)sync->tau_threshold;
  options.unrefined = (without(sync) & selection_parts(sync)) != 0;
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
