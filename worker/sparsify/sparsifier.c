#include "worker/sparsify/sparsifier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/error.h"
#include "worker/select/magnitude.h"

/* ------------------------------------------------------------ life */

static bool selects_nothing(const struct zenps_sparsifier *sparsifier) {
  return sparsifier->options.kind == ZENPS_SPARSIFY_SCHEME;
}

/* Entries that a pass may pick before it is given up: what a selection may be, and what the guess of an exact one may
 * exceed it by. */
static uint64_t room(const struct zenps_sparsifier *sparsifier) {
  const uint64_t n = sparsifier->n;
  if (selects_nothing(sparsifier)) return 0;
  if (sparsifier->options.kind == ZENPS_SPARSIFY_BUCKETS)
    return zps_sparsifier_total_k(sparsifier) + sparsifier->options.bucket;
  const uint64_t most = 2 * sparsifier->options.k + 24 * (n / sparsifier->options.sample) + 4096;
  return most < n ? most : n;
}

/* Room for the picks that k needs. */
static zps_err_t reserve(struct zenps_sparsifier *sparsifier) {
  struct zps_picks *const picks = &sparsifier->picks;
  const uint64_t capacity = room(sparsifier);
  if (capacity <= picks->capacity) return ZPS_OK;
  int64_t *const ids = malloc(capacity * sizeof *ids);
  void *const values = malloc(capacity * zps_dtype_size(sparsifier->dtype));
  if (!ids || !values) {
    free(ids);
    free(values);
    return ZPS_ERR_NOMEM;
  }
  free(picks->ids);
  free(picks->values);
  *picks = (struct zps_picks){.ids = ids, .values = values, .capacity = capacity};
  return ZPS_OK;
}

static zps_err_t allocate(struct zenps_sparsifier *sparsifier) {
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  if (zps_feedback_init(&sparsifier->feedback, sparsifier->dtype, sparsifier->n, options->momentum,
                        options->clip_norm) != ZPS_OK)
    return ZPS_ERR_NOMEM;
  if (reserve(sparsifier) != ZPS_OK) return ZPS_ERR_NOMEM;
  if (options->kind <= ZENPS_SPARSIFY_REUSED) {
    sparsifier->sample = malloc(options->sample * zps_dtype_size(sparsifier->dtype));
    if (!sparsifier->sample) return ZPS_ERR_NOMEM;
  }
  if (options->residual == ZENPS_RESIDUAL_GLOBAL && !selects_nothing(sparsifier)) {
    sparsifier->global_bits = calloc((sparsifier->n + 63) / 64, sizeof *sparsifier->global_bits);
    if (!sparsifier->global_bits) return ZPS_ERR_NOMEM;
  }
  return ZPS_OK;
}

zenps_status_t zenps_sparsifier_create(const zenps_sparsifier_options_t *options, uint64_t n, zenps_dtype_t dtype,
                                       zenps_sparsifier_t **sparsifier) {
  if (!options || !sparsifier)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_create: options or sparsifier is NULL");
  struct zps_error error;
  zenps_sparsifier_options_t loaded;
  if (zps_sparsifier_options_load(&loaded, options, n, (enum zps_dtype)dtype, &error) != ZPS_OK)
    return zps_worker_raise(&error);
  struct zenps_sparsifier *const made = calloc(1, sizeof *made);
  if (made) {
    made->options = loaded;
    made->dtype = (enum zps_dtype)dtype;
    made->n = n;
  }
  if (!made || allocate(made) != ZPS_OK) {
    zenps_sparsifier_destroy(made);
    return zps_worker_fail(ZPS_ERR_NOMEM, "no memory for a sparsifier of %" PRIu64 " values, k %" PRIu64, n, loaded.k);
  }
  *sparsifier = made;
  return ZENPS_OK;
}

void zenps_sparsifier_destroy(zenps_sparsifier_t *sparsifier) {
  if (!sparsifier) return;
  zps_feedback_fini(&sparsifier->feedback);
  free(sparsifier->picks.ids);
  free(sparsifier->picks.values);
  free(sparsifier->sample);
  free(sparsifier->global_bits);
  free(sparsifier);
}

/* ------------------------------------------------------------ a step */

zenps_status_t zenps_sparsifier_select(zenps_sparsifier_t *sparsifier, const void *gradient, zenps_grad_t *out) {
  if (!sparsifier || !gradient || !out)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_select: sparsifier, gradient or out is NULL");
  if (out->struct_size < sizeof *out) {
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_sparsifier_select: out has struct_size %zu; initialise it with "
                           "ZENPS_GRAD_INIT()",
                           out->struct_size);
  }
  if (sparsifier->selected) {
    return zps_worker_fail(ZPS_ERR_BUSY,
                           "zenps_sparsifier_select: selection %" PRIu64 " was neither committed nor canceled",
                           sparsifier->steps);
  }
  zps_sparsifier_run(sparsifier, gradient);
  sparsifier->selected = true;
  out->memory = ZENPS_HOST;
  if (selects_nothing(sparsifier)) {
    out->layout = ZENPS_DENSE;
    out->nnz = out->capacity = 0;
    out->row_ids = NULL;
    out->values = sparsifier->feedback.residual;
    return ZENPS_OK;
  }
  out->layout = ZENPS_ROWS;
  out->nnz = sparsifier->picks.n;
  out->capacity = sparsifier->picks.capacity;
  out->row_ids = sparsifier->picks.ids;
  out->values = sparsifier->picks.values;
  return ZENPS_OK;
}

static zenps_status_t check_result(const struct zenps_sparsifier *sparsifier, const zenps_grad_t *result) {
  if (!result || result->struct_size < sizeof *result)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_commit: %s",
                           selects_nothing(sparsifier)
                               ? "ZENPS_SPARSIFY_SCHEME needs the rows of zenps_request_contributed()"
                               : "ZENPS_RESIDUAL_GLOBAL needs the result");
  if (result->layout == ZENPS_DENSE && result->values && !selects_nothing(sparsifier)) return ZENPS_OK;
  if (result->layout != ZENPS_ROWS || (result->nnz > 0 && !result->row_ids)) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_commit: the result has layout %d and no %s",
                           (int)result->layout, result->layout == ZENPS_ROWS ? "row_ids" : "values");
  }
  for (uint64_t i = 0; i < result->nnz; i++) {
    if ((uint64_t)result->row_ids[i] >= sparsifier->n) {
      return zps_worker_fail(ZPS_ERR_INVALID,
                             "zenps_sparsifier_commit: row %" PRId64 " of the result (entry %" PRIu64
                             ") is none of the %" PRIu64 " rows",
                             result->row_ids[i], i, sparsifier->n);
    }
  }
  return ZENPS_OK;
}

/* Clears those of the selection that the result lists; the bits are all zero again afterwards. */
static void clear_listed(struct zenps_sparsifier *sparsifier, const zenps_grad_t *result) {
  const struct zps_picks *const picks = &sparsifier->picks;
  uint64_t *const bits = sparsifier->global_bits;
  for (uint64_t i = 0; i < picks->n; i++) bits[picks->ids[i] / 64] |= 1ull << picks->ids[i] % 64;
  for (uint64_t i = 0; i < result->nnz; i++) {
    const uint64_t id = (uint64_t)result->row_ids[i], bit = 1ull << id % 64;
    if (!(bits[id / 64] & bit)) continue;
    bits[id / 64] &= ~bit;
    zps_feedback_clear(&sparsifier->feedback, id);
  }
  for (uint64_t i = 0; i < picks->n; i++) bits[picks->ids[i] / 64] = 0;
}

zenps_status_t zenps_sparsifier_commit(zenps_sparsifier_t *sparsifier, const zenps_grad_t *result) {
  if (!sparsifier || !sparsifier->selected)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_commit: there is no selection to commit");
  const struct zps_picks *const picks = &sparsifier->picks;
  if (selects_nothing(sparsifier)) {
    const zenps_status_t status = check_result(sparsifier, result);
    if (status != ZENPS_OK) return status;
    for (uint64_t i = 0; i < result->nnz; i++) zps_feedback_clear(&sparsifier->feedback, (uint64_t)result->row_ids[i]);
  } else if (sparsifier->options.residual == ZENPS_RESIDUAL_SENT) {
    for (uint64_t i = 0; i < picks->n; i++) zps_feedback_clear(&sparsifier->feedback, (uint64_t)picks->ids[i]);
  } else {
    const zenps_status_t status = check_result(sparsifier, result);
    if (status != ZENPS_OK) return status;
    if (result->layout == ZENPS_ROWS) {
      clear_listed(sparsifier, result);
    } else {
      for (uint64_t i = 0; i < picks->n; i++) {
        const uint64_t id = (uint64_t)picks->ids[i];
        if (zps_magnitude_at(sparsifier->dtype, result->values, id)) zps_feedback_clear(&sparsifier->feedback, id);
      }
    }
  }
  sparsifier->selected = false;
  return ZENPS_OK;
}

zenps_status_t zenps_sparsifier_cancel(zenps_sparsifier_t *sparsifier) {
  if (!sparsifier || !sparsifier->selected)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_cancel: there is no selection to cancel");
  sparsifier->selected = false;
  return ZENPS_OK;
}

/* ------------------------------------------------------------ settings and state */

zenps_status_t zenps_sparsifier_set_k(zenps_sparsifier_t *sparsifier, uint64_t k) {
  if (!sparsifier) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_set_k: sparsifier is NULL");
  if (sparsifier->selected) {
    return zps_worker_fail(ZPS_ERR_BUSY,
                           "zenps_sparsifier_set_k: selection %" PRIu64 " was neither committed nor canceled",
                           sparsifier->steps);
  }
  if (selects_nothing(sparsifier))
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_sparsifier_set_k: ZENPS_SPARSIFY_SCHEME takes none: the tensor does");
  const uint64_t old = sparsifier->options.k;
  const uint64_t most = sparsifier->options.kind == ZENPS_SPARSIFY_BUCKETS ? sparsifier->options.bucket : sparsifier->n;
  if (k < 1 || k > most) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_set_k: k is %" PRIu64 "; it must be 1 to %" PRIu64, k,
                           most);
  }
  sparsifier->options.k = k;
  if (reserve(sparsifier) != ZPS_OK) {
    sparsifier->options.k = old;
    return zps_worker_fail(ZPS_ERR_NOMEM, "zenps_sparsifier_set_k: no memory for k %" PRIu64, k);
  }
  if (k != old) sparsifier->age = 0; /* a threshold for another k is no use */
  return ZENPS_OK;
}

zenps_status_t zenps_sparsifier_set_threshold(zenps_sparsifier_t *sparsifier, double threshold) {
  if (!sparsifier || sparsifier->options.kind != ZENPS_SPARSIFY_THRESHOLD) {
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_sparsifier_set_threshold: the sparsifier is NULL or not of ZENPS_SPARSIFY_THRESHOLD");
  }
  if (!(threshold >= 0)) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_set_threshold: %g; it must be at least 0", threshold);
  }
  sparsifier->options.threshold = threshold;
  return ZENPS_OK;
}

void *zenps_sparsifier_residual(zenps_sparsifier_t *sparsifier) {
  return sparsifier ? sparsifier->feedback.residual : NULL;
}

void *zenps_sparsifier_velocity(zenps_sparsifier_t *sparsifier) {
  return sparsifier ? sparsifier->feedback.velocity : NULL;
}

zenps_status_t zenps_sparsifier_stats(const zenps_sparsifier_t *sparsifier, zenps_sparsifier_stats_t *stats) {
  if (!sparsifier || !stats || stats->struct_size < sizeof(size_t)) {
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_sparsifier_stats: sparsifier or stats is NULL, or its struct_size is not set");
  }
  const size_t size = stats->struct_size;
  const zenps_sparsifier_stats_t now = {.struct_size = size,
                                        .k = zps_sparsifier_total_k(sparsifier),
                                        .selected = sparsifier->picks.n,
                                        .threshold = zps_magnitude_value(sparsifier->dtype, sparsifier->threshold),
                                        .steps = sparsifier->steps,
                                        .refined = sparsifier->refined};
  memset(stats, 0, size);
  memcpy(stats, &now, size < sizeof now ? size : sizeof now);
  stats->struct_size = size;
  return ZENPS_OK;
}
