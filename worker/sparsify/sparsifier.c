#include "worker/sparsify/sparsifier.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/error.h"
#include "worker/select/magnitude.h"
#include "worker/sparsify/on_device.h"

/* ------------------------------------------------------------ life */

/* Entries that a pass may pick before it is given up: what a selection may be, and what the guess of an exact one may
 * exceed it by. */
static uint64_t room(const struct zenps_sparsifier *sparsifier) {
  const uint64_t n = sparsifier->n;
  if (zps_sparsifier_selects_nothing(sparsifier)) return 0;
  if (sparsifier->options.kind == ZENPS_SPARSIFY_BUCKETS)
    return zps_sparsifier_total_k(sparsifier) + sparsifier->options.bucket;
  const uint64_t most = 2 * sparsifier->options.k + 24 * (n / sparsifier->options.sample) + 4096;
  return most < n ? most : n;
}

zps_err_t zps_sparsifier_reserve(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  struct zps_picks *const picks = &sparsifier->picks;
  const uint64_t capacity = room(sparsifier);
  if (capacity <= picks->capacity) return ZPS_OK;
  if (sparsifier->there) return zps_on_device_reserve(sparsifier, capacity, error);
  int64_t *const ids = malloc(capacity * sizeof *ids);
  void *const values = malloc(capacity * zps_dtype_size(sparsifier->dtype));
  if (!ids || !values) {
    free(ids);
    free(values);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for k %" PRIu64, sparsifier->options.k);
  }
  free(picks->ids);
  free(picks->values);
  *picks = (struct zps_picks){.ids = ids, .values = values, .capacity = capacity};
  return ZPS_OK;
}

static zps_err_t allocate(struct zenps_sparsifier *sparsifier, struct zps_error *error) {
  const zenps_sparsifier_options_t *const options = &sparsifier->options;
  const bool takes_sample = options->kind <= ZENPS_SPARSIFY_REUSED || options->kind == ZENPS_SPARSIFY_THRESHOLD;
  const bool needs_bits = options->residual == ZENPS_RESIDUAL_GLOBAL && !zps_sparsifier_selects_nothing(sparsifier);
  if (takes_sample) sparsifier->sample = malloc(options->sample * zps_dtype_size(sparsifier->dtype));
  if (needs_bits) sparsifier->global_bits = calloc((sparsifier->n + 63) / 64, sizeof *sparsifier->global_bits);
  zps_err_t code = ZPS_OK;
  if ((takes_sample && !sparsifier->sample) || (needs_bits && !sparsifier->global_bits)) code = ZPS_ERR_NOMEM;
  if (code == ZPS_OK && options->memory == ZENPS_HOST)
    code = zps_feedback_init(&sparsifier->feedback, sparsifier->dtype, sparsifier->n, options->momentum,
                             options->clip_norm, options->decay);
  if (code != ZPS_OK)
    return zps_fail(error, code, "no memory for a sparsifier of %" PRIu64 " values, k %" PRIu64, sparsifier->n,
                    options->k);
  if (options->memory == ZENPS_DEVICE) code = zps_on_device_create(sparsifier, error);
  return code == ZPS_OK ? zps_sparsifier_reserve(sparsifier, error) : code;
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
  if (!made || allocate(made, &error) != ZPS_OK) {
    if (!made) (void)zps_fail(&error, ZPS_ERR_NOMEM, "no memory for a sparsifier");
    zenps_sparsifier_destroy(made);
    return zps_worker_raise(&error);
  }
  *sparsifier = made;
  return ZENPS_OK;
}

void zenps_sparsifier_destroy(zenps_sparsifier_t *sparsifier) {
  if (!sparsifier) return;
  zps_on_device_destroy(sparsifier);
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
  struct zps_error error;
  if (!sparsifier->there)
    zps_sparsifier_run(sparsifier, gradient);
  else if (zps_on_device_run(sparsifier, gradient, out->stream, &error) != ZPS_OK)
    return zps_worker_raise(&error);
  sparsifier->selected = true;
  out->memory = sparsifier->options.memory;
  if (sparsifier->there) out->device = sparsifier->options.device;
  if (zps_sparsifier_selects_nothing(sparsifier)) {
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

/* ------------------------------------------------------------ settings and state */

zenps_status_t zenps_sparsifier_set_k(zenps_sparsifier_t *sparsifier, uint64_t k) {
  if (!sparsifier) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_set_k: sparsifier is NULL");
  if (sparsifier->selected) {
    return zps_worker_fail(ZPS_ERR_BUSY,
                           "zenps_sparsifier_set_k: selection %" PRIu64 " was neither committed nor canceled",
                           sparsifier->steps);
  }
  if (zps_sparsifier_selects_nothing(sparsifier))
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "zenps_sparsifier_set_k: ZENPS_SPARSIFY_SCHEME takes none: the tensor does");
  const uint64_t old = sparsifier->options.k;
  const uint64_t most = sparsifier->options.kind == ZENPS_SPARSIFY_BUCKETS ? sparsifier->options.bucket : sparsifier->n;
  if (k < 1 || k > most) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_sparsifier_set_k: k is %" PRIu64 "; it must be 1 to %" PRIu64, k,
                           most);
  }
  struct zps_error error;
  sparsifier->options.k = k;
  const zps_err_t code = zps_sparsifier_reserve(sparsifier, &error);
  if (code != ZPS_OK) {
    sparsifier->options.k = old;
    return zps_worker_fail(code, "zenps_sparsifier_set_k: %s", error.text);
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
