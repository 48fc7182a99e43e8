/* A tensor whose scheme is auto: one variant for each scheme that may be chosen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/plan/measure.h"
#include "worker/api/job.h"
#include "worker/api/tensor_impl.h"
#include "worker/choice/auto.h"

/* The tensor that runs tensor's rounds as `scheme`: opened by all ranks, one after another, as any other. */
static zps_err_t variant_open(struct zenps_job *job, const struct zenps_tensor *tensor,
                              const zenps_tensor_options_t *given, enum zps_plan_scheme scheme,
                              struct zenps_tensor **variant_p, struct zps_error *error) {
  char name[sizeof tensor->core.name];
  struct zps_tensor_ask ask;
  zenps_tensor_options_t options;
  zenps_tensor_options_init(&options, sizeof options);
  if (given) {
    const zps_err_t err = zps_worker_struct_copy(&options, sizeof options, given, "zenps_tensor_options_t", error);
    if (err != ZPS_OK) return err;
  }
  options.scheme = zps_plan_scheme_name(scheme);
  if (!zps_plan_scheme_lossy(scheme)) {
    options.k = 0;
    options.density = 0;
    options.contributed = 0;
  }
  if (scheme != ZPS_PLAN_OKTOPK) options.boundary_period = options.threshold_period = 0;
  options.without &= zps_without_of(scheme);
  const unsigned flags = zps_plan_scheme_flags(scheme);
  if (zps_served_kind_find(options.scheme)) { /* takes none of these */
    options.chunks = 0;
  }
  if (!zps_plan_flags_round(flags)) options.bits = 0;
  if (!(flags & ZPS_SCHEME_LEVELS)) options.n_levels = 0;
  if (scheme != ZPS_PLAN_BLUECONNECT) options.level_algorithms = NULL;
  if (!(flags & ZPS_SCHEME_GATHERS)) options.allgather = ZENPS_ALLGATHER_AUTO;
  if (!(flags & ZPS_SCHEME_STREAMS)) options.delta = 0;
  if ((size_t)snprintf(name, sizeof name, "@%s/%s", options.scheme, tensor->core.name) >= sizeof name)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: with scheme auto its name must be %zu bytes shorter",
                    tensor->core.name, strlen(options.scheme) + 2);
  zps_err_t err = zps_tensor_ask_make(job, name, tensor->core.part.rows, tensor->core.width, tensor->core.dtype,
                                      &options, &ask, error);
  if (err != ZPS_OK) return err;
  *variant_p = zps_worker_tensor_find(job, ask.group, name); /* of an opening that failed later on */
  if (*variant_p) return zps_tensor_ask_compare(*variant_p, &ask, error);
  err = zps_worker_tensor_create(job, &ask, variant_p, error);
  if (err == ZPS_OK) zps_worker_tensor_add(job, *variant_p);
  return err;
}

/* Once per job; only threads that open tensors look at it, one at a time. */
static void calibrate(struct zenps_job *job) {
  const char *const provider = zenps_provider(job);
  zps_plan_calibration_measure(&job->calibration);
  job->calibration.threads = (double)job->options.threads;
  /* Where the network's hardware reads and writes memory, moving bytes takes no processor. */
  const bool hardware =
      strcmp(provider, "net") != 0 && strcmp(provider, "tcp") != 0 && strcmp(provider, "sockets") != 0;
  if (hardware) job->calibration.move_byte_ns = 0;
}

static zenps_status_t check_job(void *job) {
  return zps_worker_job_check(job);
}

static void trim(void *job, uint64_t keep_ns) {
  zps_worker_tensors_trim(job, keep_ns, zps_clock_ns());
}

zps_err_t zps_worker_tensor_automatic(struct zenps_job *job, struct zenps_tensor *tensor,
                                      const struct zps_tensor_ask *asked, const zenps_tensor_options_t *given,
                                      struct zps_error *error) {
  struct zps_automatic *automatic = calloc(1, sizeof *automatic);
  if (!automatic) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor %s", tensor->core.name);
  automatic->tensor = &tensor->core;
  automatic->job = (struct zps_automatic_job){.lock = &job->lock,
                                              .learned = &job->waiting.due,
                                              .options = &job->options,
                                              .calibration = &job->calibration,
                                              .membership = &job->membership,
                                              .plane = &job->plane,
                                              .device_p = &job->device,
                                              .ctx = job,
                                              .check = check_job,
                                              .trim = trim};
  if (job->calibration.threads <= 0) calibrate(job);
  zps_err_t err = ZPS_OK;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES && err == ZPS_OK; i++) {
    if (!(asked->scheme.choices >> i & 1)) continue;
    struct zenps_tensor *variant = tensor;
    if (i != ZPS_PLAN_BALANCED) err = variant_open(job, tensor, given, (enum zps_plan_scheme)i, &variant, error);
    if (err == ZPS_OK) automatic->variants[i] = &variant->core;
  }
  if (err != ZPS_OK) {
    zps_automatic_destroy(automatic);
    return err;
  }
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (automatic->variants[i]) zps_worker_tensor_of(automatic->variants[i])->automatic = automatic;
  }
  tensor->automatic = automatic;
  tensor->is_automatic = true;
  return ZPS_OK;
}
