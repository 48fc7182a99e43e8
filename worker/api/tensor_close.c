/* Closing a tensor: all ranks agree, servers forget it, and what belongs to it here goes. */
#include <stdlib.h>
#include <string.h>

#include "common/base/thread.h"
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/api/tensor_impl.h"

/* Rounds that are over for their requests may still serve other ranks until their deadline. */
#define LINGER_MS 1000u

/* The tensor, and those of the library's own that belong to it. */
static bool belongs(const struct zenps_tensor *tensor, const struct zenps_tensor *to) {
  return tensor->group == to->group && strcmp(zps_tensor_owner_name(tensor->core.name), to->core.name) == 0;
}

/* The following under the job's lock. */
static unsigned count_requests(const struct zenps_tensor *of) {
  unsigned n = 0;
  for (const struct zenps_tensor *tensor = of->job->tensors; tensor; tensor = tensor->next)
    if (belongs(tensor, of)) n += tensor->n_requests;
  return n;
}

static unsigned count_rounds(const struct zenps_tensor *of) {
  unsigned n = 0;
  for (const struct zenps_tensor *tensor = of->job->tensors; tensor; tensor = tensor->next)
    if (belongs(tensor, of)) n += tensor->n_active;
  return n;
}

static void mark(const struct zenps_tensor *of, bool is_closed) {
  for (struct zenps_tensor *tensor = of->job->tensors; tensor; tensor = tensor->next)
    if (belongs(tensor, of)) tensor->is_closed = is_closed;
}

/* Takes them out of the job. Returns them as a list. */
static struct zenps_tensor *take(const struct zenps_tensor *of) {
  struct zenps_tensor *taken = NULL, **link = &of->job->tensors;
  while (*link) {
    struct zenps_tensor *const tensor = *link;
    if (!belongs(tensor, of)) {
      link = &tensor->next;
      continue;
    }
    *link = tensor->next;
    tensor->next = taken;
    taken = tensor;
  }
  return taken;
}

static unsigned count_canceled(const struct zenps_tensor *of) {
  unsigned n = 0;
  for (const struct zenps_request *request = of->job->unseen; request; request = request->unseen_next)
    n += !request->done && request->is_canceled && belongs(request->tensor, of);
  return n;
}

/* When the rounds of now are over at the latest. */
static uint64_t time_of_end(const struct zenps_job *job) {
  return zps_clock_ns() + (job->options.round_timeout_ms + LINGER_MS) * ZPS_NS_PER_MS;
}

/* The trainer has no part in their end. Returns the number of operations in flight. */
static unsigned await_canceled(const struct zenps_tensor *tensor) {
  struct zenps_job *const job = tensor->job;
  const uint64_t until_ns = time_of_end(job);
  while (count_requests(tensor) > 0 && count_requests(tensor) == count_canceled(tensor) &&
         zps_thread_wait(&job->done, &job->lock, until_ns))
    continue;
  return count_requests(tensor);
}

/* Until no other rank can be reading from their rounds. */
static bool drain(struct zenps_tensor *tensor) {
  struct zenps_job *const job = tensor->job;
  const uint64_t until_ns = time_of_end(job);
  pthread_mutex_lock(&job->lock);
  while (count_rounds(tensor) > 0 && zps_thread_wait(&job->done, &job->lock, until_ns)) continue;
  const bool is_drained = count_rounds(tensor) == 0;
  pthread_mutex_unlock(&job->lock);
  return is_drained;
}

/* Rounds have memory that belongs to the engine thread. */
struct fini_command {
  struct zps_command command;
  struct zenps_tensor *tensors;
};

static void fini_run(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  for (struct zenps_tensor *tensor = ((struct fini_command *)command)->tensors; tensor; tensor = tensor->next)
    zps_worker_tensor_fini(tensor);
}

static void keep_closed(struct zenps_job *job, struct zenps_tensor *tensor) {
  struct zenps_tensor **const place = &job->closed[job->n_closed++ % ZPS_CLOSED_KEPT];
  free(*place);
  *place = tensor;
}

/* Telemetry looks at tensors outside the job's lock. */
static void destroy(struct zenps_tensor *tensor) {
  struct zenps_job *const job = tensor->job;
  struct fini_command fini = {.command.run = fini_run};
  pthread_mutex_lock(&job->telemetry.lock);
  pthread_mutex_lock(&job->lock);
  fini.tensors = take(tensor);
  pthread_mutex_unlock(&job->lock);
  pthread_mutex_unlock(&job->telemetry.lock);
  if (zps_engine_call(job->plane.engine, &fini.command) != ZPS_OK) fini_run(&fini.command, NULL);
  for (struct zenps_tensor *one = fini.tensors, *next; one; one = next) {
    next = one->next;
    if (one == tensor)
      keep_closed(job, one);
    else
      free(one);
  }
}

/* Under the job's `open`. */
static zenps_status_t close_agreed(struct zenps_tensor *tensor) {
  struct zenps_job *const job = tensor->job;
  struct zps_error error;
  pthread_mutex_lock(&job->lock);
  const unsigned n_requests = await_canceled(tensor);
  zenps_status_t status = zps_worker_job_check(job);
  if (status == ZENPS_OK && tensor->is_closed)
    status = zps_worker_tensor_check(tensor, &error) == ZPS_OK ? status : zps_worker_raise(&error);
  if (status == ZENPS_OK && n_requests > 0)
    status = zps_worker_fail(
        ZPS_ERR_BUSY, "tensor %s: %u of its operations are in flight; wait for them, or cancel them, then close it",
        tensor->core.name, n_requests);
  if (status == ZENPS_OK) mark(tensor, true);
  pthread_mutex_unlock(&job->lock);
  if (status != ZENPS_OK) return status;
  if (zps_membership_tensor_close(&job->membership, tensor->core.id, job->options.round_timeout_ms, &error) != ZPS_OK) {
    pthread_mutex_lock(&job->lock);
    mark(tensor, false);
    pthread_mutex_unlock(&job->lock);
    return zps_worker_raise(&error);
  }
  pthread_mutex_lock(&job->lock);
  zps_worker_agree_cancel(tensor);
  pthread_mutex_unlock(&job->lock);
  if (!drain(tensor)) /* it stays in the list, and goes with the job */
    return zps_worker_fail(ZPS_ERR_TIMEOUT, "tensor %s is closed, but its last rounds are not over: its memory stays",
                           tensor->core.name);
  destroy(tensor);
  return ZENPS_OK;
}

zenps_status_t zenps_tensor_close(zenps_tensor_t *tensor) {
  if (!tensor) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_tensor_close: the tensor is NULL");
  struct zenps_job *const job = tensor->job;
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  pthread_mutex_lock(&job->open);
  const zenps_status_t status = close_agreed(tensor);
  pthread_mutex_unlock(&job->open);
  return zps_first_call(job, status);
}
