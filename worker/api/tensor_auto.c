/* A tensor whose scheme is auto: one variant for each scheme that may be chosen, and how its ranks agree on them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/plan/limit.h"
#include "common/plan/measure.h"
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/api/tensor_impl.h"
#include "worker/choice/auto.h"

/* The tensor that runs tensor's rounds as `scheme`: opened by all ranks, one after another, as any other. It has those
 * of the tensor's options that the scheme takes. */
static zps_err_t variant_open(struct zenps_job *job, const struct zenps_tensor *tensor,
                              const struct zps_tensor_ask *asked, const zenps_tensor_options_t *given,
                              enum zps_plan_scheme scheme, struct zenps_tensor **variant_p, struct zps_error *error) {
  const char *const scheme_name = zps_plan_scheme_name(scheme);
  char name[sizeof tensor->core.name], text[ZPS_SCHEME_TEXT_MAX + 1];
  struct zps_scheme_options own = asked->scheme.options;
  struct zps_tensor_ask ask;
  zenps_tensor_options_t options;
  zenps_tensor_options_init(&options, sizeof options);
  if (given) {
    const zps_err_t err = zps_worker_struct_copy(&options, sizeof options, given, "zenps_tensor_options_t", error);
    if (err != ZPS_OK) return err;
  }
  zps_scheme_options_keep(&own, 1u << scheme);
  snprintf(text, sizeof text, "%s", scheme_name);
  options.scheme = zps_scheme_options_add(&own, text);
  if ((size_t)snprintf(name, sizeof name, "@%s/%s", scheme_name, tensor->core.name) >= sizeof name)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: with scheme auto its name must be %zu bytes shorter",
                    tensor->core.name, strlen(scheme_name) + 2);
  zps_err_t err = zps_tensor_ask_make(job, name, tensor->core.part.rows, tensor->core.width, tensor->core.dtype,
                                      &options, &ask, error);
  if (err != ZPS_OK) return err;
  *variant_p = zps_worker_tensor_find(job, ask.group, name); /* of an opening that failed later on */
  if (*variant_p) return zps_tensor_ask_compare(*variant_p, &ask, error);
  err = zps_worker_tensor_create(job, &ask, variant_p, error);
  if (err == ZPS_OK) zps_worker_tensor_add(job, *variant_p);
  return err;
}

/* ------------------------------------------------------------ agreement */

/* Its rounds (common/plan/agree.h) are rounds of a tensor of the library's own beside the trainer's, of rows of a byte.
 * Step k is the k-th round. The operation is "one": servers fail a round in which two ranks decide. A rank that is due
 * early waits for the slowest one, whose trainer may take any time. So the rounds have no deadline that counts, but end
 * with the job, or the tensor. */
#define RUNS "@runs/"

struct zps_agree {
  struct zenps_tensor *tensor;   /* its rounds'; borrowed */
  struct zenps_request *request; /* under way; else NULL */
  zenps_grad_t in, out;
  unsigned char *given, *round; /* of ZPS_PLAN_ROUND_BYTES */
  unsigned char bytes[];
};

/* This rank among the tensor's. */
static uint32_t own_index(const struct zenps_tensor *tensor) {
  const uint32_t rank = (uint32_t)tensor->job->options.rank;
  uint32_t i = 0;
  if (!tensor->group) return rank;
  while (tensor->group->ranks[i] != rank) i++;
  return i;
}

static zps_err_t runs_open(struct zenps_tensor *beside, struct zenps_tensor **tensor_p, struct zps_error *error) {
  const struct zps_round_tensor *core = &beside->core;
  char name[sizeof core->name];
  zenps_tensor_options_t options;
  struct zps_tensor_ask asked;
  if ((size_t)snprintf(name, sizeof name, RUNS "%s", core->name) >= sizeof name)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: with scheme auto its name must be %zu bytes shorter",
                    core->name, sizeof RUNS - 1);
  *tensor_p = zps_worker_tensor_find(beside->job, beside->group, name); /* of an opening that failed later on */
  if (*tensor_p) return ZPS_OK;
  zenps_tensor_options_init(&options, sizeof options);
  options.scheme = "balanced";
  options.partitions = 1;
  options.group = beside->group;
  zps_err_t err = zps_tensor_ask_make(beside->job, name, ZPS_PLAN_ROUND_BYTES(core->world), 1, ZPS_DTYPE_U8, &options,
                                      &asked, error);
  if (err != ZPS_OK) return err;
  asked.spec.op = ZPS_OP_ONE;
  err = zps_worker_tensor_create(beside->job, &asked, tensor_p, error);
  if (err == ZPS_OK) zps_worker_tensor_add(beside->job, *tensor_p);
  return err;
}

static zps_err_t agree_open(struct zenps_tensor *tensor, struct zps_error *error) {
  struct zenps_tensor *own;
  const zps_err_t err = runs_open(tensor, &own, error);
  if (err != ZPS_OK) return err;
  const size_t bytes = ZPS_PLAN_ROUND_BYTES(tensor->core.world);
  struct zps_agree *const agree = calloc(1, sizeof *agree + 2 * bytes);
  if (!agree) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for tensor %s", tensor->core.name);
  agree->tensor = own;
  agree->given = agree->bytes;
  agree->round = agree->bytes + bytes;
  tensor->agree = agree;
  return ZPS_OK;
}

/* On the engine thread. */
static void over(struct zenps_request *request, const struct zps_round *round) {
  struct zenps_tensor *const tensor = request->then_ctx;
  struct zenps_job *const job = tensor->job;
  struct zps_agree *const agree = tensor->agree;
  (void)round;
  pthread_mutex_lock(&job->lock);
  agree->request = NULL;
  zps_automatic_agreed(tensor->automatic, request->error.status == ZENPS_OK ? agree->round : NULL, &request->error);
  pthread_mutex_unlock(&job->lock);
  zps_worker_request_destroy(request);
}

static void fill(struct zps_agree *agree, const struct zps_automatic *automatic) {
  ZENPS_GRAD_INIT(&agree->in);
  ZENPS_GRAD_INIT(&agree->out);
  agree->in.layout = agree->out.layout = ZENPS_DENSE;
  agree->in.values = agree->given;
  agree->out.values = agree->round;
  zps_plan_agreement_give(&automatic->agreement, &automatic->follower.schedule, agree->given);
}

static zps_err_t agree_begin(void *ctx, struct zps_automatic *automatic) {
  const struct zenps_job *const job = ctx;
  struct zenps_tensor *const tensor = zps_worker_tensor_of(automatic->tensor);
  struct zps_agree *const agree = tensor->agree;
  const uint64_t number = automatic->agreement.number;
  struct zenps_request *request;
  struct zps_round *round;
  if (job->closing || tensor->is_closed) return ZPS_ERR_CLOSED;
  zps_err_t err = zps_worker_request_create(agree->tensor, &request);
  if (err != ZPS_OK) return err;
  err = zps_worker_tensor_round_get(agree->tensor, number, false, false, &round);
  if (err != ZPS_OK) {
    zps_worker_request_destroy(request);
    return err;
  }
  fill(agree, automatic);
  request->then = over;
  request->then_ctx = tensor;
  agree->request = request;
  zps_worker_round_setup(round, request,
                         &(struct zps_round_start){
                             .step = number, .timeout_ms = ZPS_TIMEOUT_MAX_MS, .in = &agree->in, .out = &agree->out});
  zps_worker_round_start(round);
  return ZPS_OK;
}

void zps_worker_agree_cancel(const struct zenps_tensor *tensor) {
  if (tensor->agree && tensor->agree->request) zps_worker_request_cancel(tensor->agree->request);
}

/* ------------------------------------------------------------ open */

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
                                              .again_ns_p = &job->waiting.again_ns,
                                              .options = &job->options,
                                              .calibration = &job->calibration,
                                              .membership = &job->membership,
                                              .plane = &job->plane,
                                              .device_p = &job->device,
                                              .ctx = job,
                                              .check = check_job,
                                              .trim = trim,
                                              .agree = agree_begin};
  automatic->agreement.index = own_index(tensor);
  automatic->agreement.n_ranks = tensor->core.world;
  automatic->again_ns = ZPS_NEVER;
  if (job->calibration.threads <= 0) calibrate(job);
  zps_err_t err = ZPS_OK;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES && err == ZPS_OK; i++) {
    if (!(asked->scheme.choices >> i & 1)) continue;
    struct zenps_tensor *variant = tensor;
    if (i != ZPS_PLAN_BALANCED) err = variant_open(job, tensor, asked, given, (enum zps_plan_scheme)i, &variant, error);
    if (err == ZPS_OK) automatic->variants[i] = &variant->core;
  }
  if (err == ZPS_OK) err = agree_open(tensor, error);
  if (err != ZPS_OK) {
    zps_automatic_destroy(automatic);
    return err;
  }
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (automatic->variants[i]) zps_worker_tensor_of(automatic->variants[i])->automatic = automatic;
  }
  automatic->agreement.first =
      zps_plan_safest(tensor->core.world,
                      &(struct zps_plan_tensor){.rows = tensor->core.part.rows,
                                                .width = tensor->core.width,
                                                .value_bytes = (double)zps_dtype_size(tensor->core.dtype)},
                      asked->scheme.choices);
  tensor->automatic = automatic;
  tensor->is_automatic = true;
  return ZPS_OK;
}

/* ------------------------------------------------------------ the coordinator's tensor.plan, or its absence */

void zps_worker_plan(struct zenps_job *job, const struct zps_tensor_plan *plan) {
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next) {
    if (tensor->is_automatic && tensor->core.id == plan->tensor)
      zps_automatic_propose(tensor->automatic, plan->runs, plan->n, plan->whole);
  }
  pthread_mutex_unlock(&job->lock);
}

void zps_worker_plans_alone(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor; tensor = tensor->next)
    if (tensor->is_automatic) zps_automatic_alone(tensor->automatic);
  pthread_mutex_unlock(&job->lock);
}
