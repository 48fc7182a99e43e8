/* The rounds of a tensor, as their owner sees them: taken for a step, over, spare, and destroyed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/net/slab.h"
#include "worker/api/job.h"
#include "worker/api/grad_parts.h"
#include "worker/api/request.h"
#include "worker/api/tensor.h"
#include "worker/choice/auto.h"

/* A round's lists are as large as the rows it had: lists of schemes that were tried and left are not needed any more.
 */
#define IDLE_NS ZPS_SLAB_IDLE_NS

static uint64_t idle_ns(const struct zenps_job *job, uint64_t now_ns) {
  return now_ns < job->spares.trim_until_ns ? job->spares.trim_ns : IDLE_NS;
}

static void destroy_list(struct zps_round *round) {
  for (struct zps_round *next; round; round = next) {
    next = round->tensor_next;
    zps_round_destroy(round);
  }
}

void zps_worker_tensor_rounds_destroy(struct zenps_tensor *tensor) {
  destroy_list(tensor->active);
  destroy_list(tensor->kept);
  destroy_list(tensor->spare);
}

static void list_add(struct zps_round **list, struct zps_round *round) {
  round->tensor_next = *list;
  round->tensor_prev_p = list;
  if (*list) (*list)->tensor_prev_p = &round->tensor_next;
  *list = round;
}

static void list_remove(struct zps_round *round) {
  *round->tensor_prev_p = round->tensor_next;
  if (round->tensor_next) round->tensor_next->tensor_prev_p = round->tensor_prev_p;
}

/* ------------------------------------------------------------ the rounds' owner */

static bool over(struct zps_round *round, const zenps_error_t *error, bool serving) {
  struct zenps_tensor *tensor = zps_worker_tensor_of(round->tensor);
  struct zenps_job *job = tensor->job;
  struct zenps_request *request = round->request;
  void (*const then)(struct zenps_request *, const struct zps_round *) = request->then;
  const bool ok = error->status == ZENPS_OK || error->status == ZENPS_ERR_TRUNCATED; /* the round went well */
  pthread_mutex_lock(&job->lock);
  request->error = *error;
  request->stats = round->stats;
  if (request->parts) {
    request->stats.copied_bytes = request->parts->copied_bytes + request->parts->split.copied_bytes;
    if (error->status == ZENPS_OK) zps_grad_parts_done(request->parts);
  }
  request->contributed = round->contributed.rows;
  request->n_contributed = round->contributed.n;
  request->n_late_bytes = round->n_late_bytes;
  request->late = round->n_late_bytes > 0 ? malloc(round->n_late_bytes) : NULL;
  if (request->late) memcpy(request->late, round->late, round->n_late_bytes);
  zps_result_get(&request->result, round);
  request->round = NULL;
  zps_worker_memory_unuse(&request->memory);
  request->done = true;
  zps_worker_request_pass(request);
  if (!then) tensor->n_requests--;
  zps_first_round(job, request, ok);
  zps_telemetry_round(tensor, round->step, &round->stats, ok);
  if (ok && tensor->automatic) zps_automatic_round_done(tensor->automatic, &tensor->core, &round->stats);
  job->n_serving += serving;
  round->request = NULL;
  pthread_mutex_unlock(&job->lock);
  round->contributed.rows = NULL;
  if (then) then(request, round); /* without it, the request may be gone */
  return !then;
}

static void wake(const struct zps_round_tensor *tensor) {
  zps_worker_request_signal(zps_worker_tensor_of(tensor)->job);
}

static void released(struct zps_round *round) {
  struct zenps_tensor *const tensor = zps_worker_tensor_of(round->tensor);
  struct zenps_job *const job = tensor->job;
  pthread_mutex_lock(&job->lock);
  list_remove(round);
  list_add(&tensor->spare, round);
  round->spare_since_ns = zps_clock_ns();
  if (job->rounds.idle_at_ns == ZPS_NEVER)
    job->rounds.idle_at_ns = round->spare_since_ns + idle_ns(job, round->spare_since_ns);
  job->n_serving -= round->serving;
  round->serving = false;
  if (!round->is_kept) tensor->n_active--;
  round->is_kept = false;
  pthread_mutex_unlock(&job->lock);
  pthread_cond_broadcast(&job->done);
}

static void kept(struct zps_round *round) {
  struct zenps_tensor *const tensor = zps_worker_tensor_of(round->tensor);
  struct zenps_job *const job = tensor->job;
  pthread_mutex_lock(&job->lock);
  list_remove(round);
  list_add(&tensor->kept, round);
  job->n_serving -= round->serving;
  round->serving = false;
  tensor->n_active--;
  pthread_mutex_unlock(&job->lock);
  pthread_cond_broadcast(&job->done);
}

static void expired(struct zps_round *round) {
  struct zenps_request *const request = round->request;
  if (!request) return;
  pthread_mutex_lock(&request->job->lock);
  request->is_expired = true;
  zps_worker_request_pass(request);
  pthread_mutex_unlock(&request->job->lock);
}

static const struct zps_round_owner owner = {
    .over = over, .expired = expired, .wake = wake, .released = released, .kept = kept};

/* ------------------------------------------------------------ taken */

zps_err_t zps_worker_tensor_round_get(struct zenps_tensor *tensor, uint64_t step, bool only_gives, bool only_takes,
                                      struct zps_round **round_p) {
  for (const struct zps_round *round = tensor->active; round; round = round->tensor_next) {
    const bool are_apart = (only_gives && round->only_takes) || (only_takes && round->only_gives);
    /* A pull that is over, as servers know, of a sum that may be had again. */
    const bool may_repeat = only_takes && round->only_takes && !round->request && tensor->asked.staleness > 0;
    if (round->step == step && !are_apart && !may_repeat) return ZPS_ERR_BUSY;
  }
  if (tensor->n_active >= ZPS_TENSOR_ROUNDS_MAX) return ZPS_ERR_AGAIN;
  if (tensor->core.peer && tensor->core.peer->scheme->stateful) {
    if (step < tensor->next_step) return ZPS_ERR_STALE;
    tensor->next_step = step + 1;
  }
  struct zps_round *round = tensor->spare;
  if (round) {
    list_remove(round);
  } else {
    const zps_err_t err = zps_round_create(&tensor->core, &owner, &round);
    if (err != ZPS_OK) return err;
  }
  round->step = step;
  list_add(&tensor->active, round);
  tensor->n_active++;
  *round_p = round;
  return ZPS_OK;
}

void zps_worker_round_setup(struct zps_round *round, struct zenps_request *request,
                            const struct zps_round_start *start) {
  const bool on_device = start->in->memory != ZENPS_HOST || start->out->memory != ZENPS_HOST;
  struct zps_round_start whole = *start;
  request->round = round;
  whole.request = request;
  whole.sent = request->sent;
  whole.in_union = request->in_union;
  whole.device = on_device ? request->job->device : NULL;
  zps_worker_request_begun(request, &whole);
  zps_round_setup(round, &whole);
}

void zps_worker_round_start(struct zps_round *round) {
  if (round->ops->prepare) round->ops->prepare(round);
  zps_round_launch(round);
}

/* ------------------------------------------------------------ destroyed */

void zps_worker_tensor_rounds_end(struct zenps_tensor *tensor) {
  for (struct zps_round *round = tensor->active; round; round = round->tensor_next) {
    struct zenps_request *const request = round->request;
    if (!request) continue;
    round->request = NULL;
    zps_row_arrays_give(&round->row_arrays);
    if (request->then) { /* nobody else knows it any more */
      zps_worker_request_destroy(request);
      continue;
    }
    zps_worker_detail(&request->error, ZPS_ERR_CLOSED,
                      "job %s, tensor %s, step %" PRIu64
                      ": the job was closed here, while the fabric still held memory",
                      tensor->core.job, tensor->core.name, round->step);
    request->error.step = round->step;
    snprintf(request->error.tensor, sizeof request->error.tensor, "%s", tensor->core.name);
    request->round = NULL;
    zps_worker_memory_unuse(&request->memory);
    request->done = true;
    zps_worker_request_pass(request);
  }
}

/* A round with memory of the device stays: freeing that memory waits for everything that runs on the device. */
static bool may_age(const struct zps_round *round) {
  return !round->device;
}

/* Takes a round that is due out of its tensor. NULL: none is, and *next_ns is no later than the time when one will be.
 */
static struct zps_round *take_old(struct zenps_tensor *tensor, uint64_t now_ns, uint64_t *next_ns) {
  for (struct zps_round *round = tensor->spare; round; round = round->tensor_next) {
    const uint64_t until_ns = round->spare_since_ns + idle_ns(tensor->job, now_ns);
    if (!may_age(round)) continue;
    if (until_ns <= now_ns) {
      list_remove(round);
      if (!tensor->active && !tensor->spare) zps_row_arrays_pool_drop(tensor->core.arrays);
      return round;
    }
    if (until_ns < *next_ns) *next_ns = until_ns;
  }
  return NULL;
}

uint64_t zps_worker_tensors_age(void *ctx, uint64_t now_ns) {
  struct zenps_job *const job = ctx;
  struct zps_round *old = NULL;
  uint64_t next_ns = ZPS_NEVER;
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor && !old; tensor = tensor->next)
    old = take_old(tensor, now_ns, &next_ns);
  pthread_mutex_unlock(&job->lock);
  zps_round_destroy(old);
  return old ? now_ns : next_ns;
}

void zps_worker_tensors_trim(struct zenps_job *job, uint64_t keep_ns, uint64_t now_ns) {
  job->spares = (struct zps_spares){.trim_ns = keep_ns, .trim_until_ns = now_ns + IDLE_NS};
  if (job->rounds.idle_at_ns != ZPS_NEVER) job->rounds.idle_at_ns = now_ns;
}
