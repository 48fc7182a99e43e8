#include "worker/base/options.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "worker/select/magnitude.h"
#include "worker/sparsify/sparsifier.h"

enum { PERIOD = 32, BUCKET = 512, SAMPLE_SHARE = 512, SAMPLE_MIN = 4096, SAMPLE_MAX = 1 << 17 };

void zenps_sparsifier_options_init(zenps_sparsifier_options_t *options, size_t struct_size) {
  memset(options, 0, struct_size);
  options->struct_size = struct_size;
}

/* k from density, and whether there is that much to choose from. `domain`: n, or the bucket. */
static zps_err_t complete_k(zenps_sparsifier_options_t *options, uint64_t domain, struct zps_error *error) {
  if (options->k > 0 && options->density > 0) {
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: k is %" PRIu64 " and density %g; give one of them", options->k,
                    options->density);
  }
  const bool is_scheme = options->kind == ZENPS_SPARSIFY_SCHEME;
  if (is_scheme && (options->k > 0 || options->density != 0))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "sparsifier: k is %" PRIu64 " and density %g; ZENPS_SPARSIFY_SCHEME takes neither: the tensor does",
                    options->k, options->density);
  if (is_scheme || (options->k == 0 && options->kind == ZENPS_SPARSIFY_THRESHOLD && options->density == 0))
    options->k = domain;
  if (options->k == 0) {
    if (!(options->density > 0 && options->density <= 1)) {
      return zps_fail(error, ZPS_ERR_INVALID,
                      "sparsifier: k is 0 and density %g; give k, or a density over 0 and up to 1", options->density);
    }
    const double k = options->density * (double)domain;
    options->k = k < 1 ? 1 : (uint64_t)llround(k);
  }
  if (options->k > domain) {
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: k is %" PRIu64 ", of %" PRIu64 " values", options->k, domain);
  }
  return ZPS_OK;
}

static zps_err_t check_numbers(const zenps_sparsifier_options_t *options, struct zps_error *error) {
  if (options->residual != ZENPS_RESIDUAL_SENT && options->residual != ZENPS_RESIDUAL_GLOBAL) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "sparsifier: residual %d is none of ZENPS_RESIDUAL_SENT, ZENPS_RESIDUAL_GLOBAL",
                    (int)options->residual);
  }
  if (!(options->momentum >= 0 && options->momentum < 1))
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: momentum is %g; it must be at least 0 and below 1",
                    options->momentum);
  if (!(options->decay >= 0 && options->decay <= 1))
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: decay is %g; it must be over 0 and at most 1, or 0 for 1",
                    options->decay);
  if (!(options->clip_norm >= 0))
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: clip_norm is %g; it must be at least 0", options->clip_norm);
  if (!(options->threshold >= 0))
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: threshold is %g; it must be at least 0", options->threshold);
  if (options->threshold > 0 && options->kind != ZENPS_SPARSIFY_THRESHOLD) {
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: threshold is %g; only ZENPS_SPARSIFY_THRESHOLD takes one",
                    options->threshold);
  }
  return ZPS_OK;
}

static zps_err_t check_memory(const zenps_sparsifier_options_t *options, uint64_t n, struct zps_error *error) {
  if (options->memory == ZENPS_HOST) return ZPS_OK;
  if (options->memory != ZENPS_DEVICE)
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: memory %d is none of ZENPS_HOST, ZENPS_DEVICE",
                    (int)options->memory);
  if (options->device < 0)
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: device is %d; it must be the number of a GPU",
                    options->device);
  if (options->kind == ZENPS_SPARSIFY_GAUSSIAN)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "sparsifier: ZENPS_SPARSIFY_GAUSSIAN does not select in device memory; all other kinds do");
  if (options->clip_norm > 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "sparsifier: clip_norm is %g; gradients in device memory are to be clipped by who computes them",
                    options->clip_norm);
  if (n > INT32_MAX)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "sparsifier: of %" PRIu64 " values in device memory; there must be 1 to 2^31 - 1", n);
  return ZPS_OK;
}

zps_err_t zps_sparsifier_options_load(zenps_sparsifier_options_t *options, const zenps_sparsifier_options_t *given,
                                      uint64_t n, enum zps_dtype dtype, struct zps_error *error) {
  zenps_sparsifier_options_init(options, sizeof *options);
  zps_err_t err = zps_worker_struct_copy(options, sizeof *options, given, "zenps_sparsifier_options_t", error);
  if (err != ZPS_OK) return err;
  if (n < 1 || n > 1ull << 40)
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: of %" PRIu64 " values; there must be 1 to 2^40", n);
  if (dtype != ZPS_DTYPE_F32 && dtype != ZPS_DTYPE_F64)
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: dtype %d is none of ZENPS_F32, ZENPS_F64%s", (int)dtype,
                    zps_dtype_is_half(dtype) ? "; residuals of halves are kept in ZENPS_F32, so widen them first" : "");
  if (options->kind == 0) options->kind = ZENPS_SPARSIFY_TOPK;
  if (options->kind < ZENPS_SPARSIFY_TOPK || options->kind > ZENPS_SPARSIFY_SCHEME) {
    return zps_fail(error, ZPS_ERR_INVALID, "sparsifier: kind %d is none of ZENPS_SPARSIFY_*: 1 to %d",
                    (int)options->kind, (int)ZENPS_SPARSIFY_SCHEME);
  }
  err = check_numbers(options, error);
  if (err == ZPS_OK) err = check_memory(options, n, error);
  if (err != ZPS_OK) return err;
  if (options->decay == 0) options->decay = 1;
  if (options->period == 0) options->period = PERIOD;
  if (options->bucket == 0) options->bucket = BUCKET;
  if (options->sample == 0) {
    options->sample = n / SAMPLE_SHARE;
    if (options->sample < SAMPLE_MIN) options->sample = SAMPLE_MIN;
    if (options->sample > SAMPLE_MAX) options->sample = SAMPLE_MAX;
  }
  if (options->sample > n) options->sample = n;
  return complete_k(options, options->kind == ZENPS_SPARSIFY_BUCKETS ? options->bucket : n, error);
}
