#include "worker/api/request.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/thread.h"
#include "worker/api/job.h"
#include "worker/api/grad_parts.h"
#include "worker/choice/auto.h"

/* Of the tensor, or of a variant that it may run as. */
static uint32_t most_parts(const struct zenps_tensor *tensor) {
  uint32_t n = tensor->core.part.n_parts;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES && tensor->is_automatic; i++) {
    const struct zps_round_tensor *const variant = tensor->automatic->variants[i];
    if (variant && variant->part.n_parts > n) n = variant->part.n_parts;
  }
  return n;
}

void zps_worker_request_aim(struct zenps_request *request, struct zenps_tensor *tensor) {
  request->tensor = tensor;
  request->has_parts = zps_worker_tensor_root(tensor) == tensor;
}

zps_err_t zps_worker_request_create(struct zenps_tensor *tensor, struct zenps_request **request_p) {
  const uint32_t n_parts = most_parts(tensor);
  struct zenps_request *request = calloc(1, sizeof *request);
  if (!request) return ZPS_ERR_NOMEM;
  request->sent = calloc(n_parts, 2 * sizeof *request->sent);
  if (!request->sent) {
    free(request);
    return ZPS_ERR_NOMEM;
  }
  request->in_union = request->sent + n_parts;
  request->job = tensor->job;
  atomic_fetch_add(&request->job->refs, 1);
  request->n_parts = zps_worker_tensor_root(tensor)->core.part.n_parts;
  zps_worker_request_aim(request, tensor);
  ZENPS_GRAD_INIT(&request->nothing);
  request->nothing.layout = ZENPS_ROWS;
  *request_p = request;
  return ZPS_OK;
}

void zps_worker_request_destroy(struct zenps_request *request) {
  if (!request) return;
  zps_result_release(&request->result);
  free(request->contributed);
  free(request->late);
  zps_wants_destroy(request->wants);
  zps_grad_parts_destroy(request->parts);
  free(request->sent);
  zps_worker_job_unref(request->job);
  free(request);
}

/* ------------------------------------------------------------ what the trainer has seen */

/* Of a round that begins next. */
static uint64_t seen_to(const struct zenps_job *job) {
  return job->unseen ? job->unseen->number : job->n_begun + 1;
}

void zps_worker_request_made(struct zenps_request *request) {
  request->seen_to = seen_to(request->job);
}

void zps_worker_request_begun(struct zenps_request *request, struct zps_round_start *start) {
  struct zenps_job *job = request->job;
  start->seen_to = request->seen_to ? request->seen_to : seen_to(job);
  start->number = request->number = ++job->n_begun;
  if (!request->then) {
    request->unseen_next = NULL;
    request->unseen_prev_p = job->unseen_last_p;
    *job->unseen_last_p = request;
    job->unseen_last_p = &request->unseen_next;
  }
}

/* Under the job's lock. */
static void see(struct zenps_request *request) {
  if (!request->unseen_prev_p) return;
  *request->unseen_prev_p = request->unseen_next;
  *(request->unseen_next ? &request->unseen_next->unseen_prev_p : &request->job->unseen_last_p) =
      request->unseen_prev_p;
  request->unseen_prev_p = NULL;
}

/* ------------------------------------------------------------ the end */

void zps_worker_request_cancel(struct zenps_request *request) {
  if (request->is_waiting || request->round) request->is_canceled = true;
  if (request->round && !request->job->closing) zps_round_cancel(request->round);
}

/* A request that is done and a trainer that asks for the descriptor may come in either order: the second one sees what
 * the first has noted. */
static void raise_fd(struct zenps_job *job) {
  const uint64_t one = 1;
  if (!atomic_load(&job->fd_asked) || !atomic_exchange(&job->fd_due, false)) return;
  /* Fails only where the counter is at its maximum, and then the descriptor is readable as it should be. */
  if (write(job->event_fd, &one, sizeof one) != (ssize_t)sizeof one) return;
}

void zps_worker_request_pass(struct zenps_request *request) {
  if (request->word) zps_words_set(&request->job->device->words, request->word);
  request->word = NULL;
}

void zps_worker_request_signal(struct zenps_job *job) {
  pthread_cond_broadcast(&job->done);
  atomic_store(&job->fd_due, true);
  raise_fd(job);
}

int zenps_get_fd(zenps_job_t *job) {
  if (!job || zps_worker_forked(job)) return -1;
  atomic_store(&job->fd_asked, true);
  raise_fd(job);
  return job->event_fd;
}

/* Under the job's lock, which it may let go. */
static zenps_status_t outcome(struct zenps_request *request) {
  if (!request->done) return ZENPS_IN_PROGRESS;
  see(request);
  if (request->error.status == ZENPS_OK) return ZENPS_OK;
  const zenps_status_t status = zps_worker_raise_detail(&request->error);
  zps_first_seen(request->job);
  zps_first_flush(request->job); /* Another thread may free the request meanwhile. */
  return status;
}

static zenps_status_t check(const struct zenps_request *request, const char *call) {
  if (!request) return zps_worker_fail(ZPS_ERR_INVALID, "%s: the request is NULL", call);
  if (zps_worker_forked(request->job)) return zps_worker_fail_forked();
  return ZENPS_OK;
}

zenps_status_t zenps_test(zenps_request_t *request) {
  zenps_status_t status = check(request, "zenps_test");
  if (status != ZENPS_OK) return status;
  struct zenps_job *job = request->job;
  pthread_mutex_lock(&job->lock);
  status = outcome(request);
  pthread_mutex_unlock(&job->lock);
  return status;
}

static zenps_status_t check_timeout(int timeout_ms, const char *call) {
  if (timeout_ms >= -1) return ZENPS_OK;
  return zps_worker_fail(ZPS_ERR_INVALID, "%s: a timeout of %d ms; it must be 0 or more, or -1", call, timeout_ms);
}

/* -1: never. */
static uint64_t time_after(int timeout_ms) {
  return timeout_ms < 0 ? ZPS_NEVER : zps_clock_ns() + (uint64_t)timeout_ms * ZPS_NS_PER_MS;
}

static zenps_status_t wait_until(struct zenps_request *request, uint64_t until_ns) {
  struct zenps_job *job = request->job;
  pthread_mutex_lock(&job->lock);
  while (!request->done && zps_thread_wait(&job->done, &job->lock, until_ns)) continue;
  const zenps_status_t status = outcome(request);
  pthread_mutex_unlock(&job->lock);
  return status;
}

zenps_status_t zenps_wait(zenps_request_t *request, int timeout_ms) {
  zenps_status_t status = check(request, "zenps_wait");
  if (status == ZENPS_OK) status = check_timeout(timeout_ms, "zenps_wait");
  return status == ZENPS_OK ? wait_until(request, time_after(timeout_ms)) : status;
}

zenps_status_t zenps_wait_all(zenps_request_t *const *requests, uint32_t n, int timeout_ms) {
  if (!requests && n > 0)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_wait_all: requests is NULL, but n is %" PRIu32, n);
  for (uint32_t i = 0; i < n; i++) {
    if (!requests[i]) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_wait_all: requests[%" PRIu32 "] is NULL", i);
    const zenps_status_t status = check(requests[i], "zenps_wait_all");
    if (status != ZENPS_OK) return status;
  }
  const zenps_status_t status = check_timeout(timeout_ms, "zenps_wait_all");
  if (status != ZENPS_OK) return status;
  const uint64_t until_ns = time_after(timeout_ms);
  const struct zenps_request *failed = NULL;
  for (uint32_t i = 0; i < n; i++) {
    const zenps_status_t one = wait_until(requests[i], until_ns);
    if (one == ZENPS_IN_PROGRESS) return one;
    if (one != ZENPS_OK && !failed) failed = requests[i];
  }
  return failed ? zps_worker_raise_detail(&failed->error) : ZENPS_OK;
}

zenps_status_t zenps_cancel(zenps_request_t *request) {
  const zenps_status_t status = check(request, "zenps_cancel");
  if (status != ZENPS_OK) return status;
  struct zenps_job *job = request->job;
  pthread_mutex_lock(&job->lock);
  zps_worker_request_cancel(request);
  pthread_mutex_unlock(&job->lock);
  return ZENPS_OK;
}

void zenps_request_free(zenps_request_t *request) {
  if (!request || zps_worker_forked(request->job)) return;
  struct zenps_job *job = request->job;
  pthread_mutex_lock(&job->lock);
  zps_worker_request_cancel(request);
  while (!request->done) pthread_cond_wait(&job->done, &job->lock);
  see(request);
  pthread_mutex_unlock(&job->lock);
  zps_worker_request_destroy(request);
}

const zenps_error_t *zenps_request_error(const zenps_request_t *request) {
  if (!request || zps_worker_forked(request->job)) return NULL;
  struct zenps_job *job = request->job;
  pthread_mutex_lock(&job->lock);
  const bool failed = request->done && request->error.status != ZENPS_OK;
  pthread_mutex_unlock(&job->lock);
  return failed ? &request->error : NULL;
}

static zenps_status_t check_done(const struct zenps_request *request, const char *call) {
  const zenps_status_t status = check(request, call);
  if (status != ZENPS_OK) return status;
  struct zenps_job *job = request->job;
  pthread_mutex_lock(&job->lock);
  const bool done = request->done;
  pthread_mutex_unlock(&job->lock);
  return done ? ZENPS_OK : zps_worker_fail(ZPS_ERR_BUSY, "%s: the operation is still in progress", call);
}

zenps_status_t zenps_request_stats(const zenps_request_t *request, zenps_request_stats_t *stats) {
  const zenps_status_t status = check_done(request, "zenps_request_stats");
  if (status != ZENPS_OK) return status;
  if (!stats || stats->struct_size < sizeof(size_t)) {
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_request_stats: stats is NULL, or its struct_size is not set");
  }
  const size_t size = stats->struct_size;
  memset(stats, 0, size);
  memcpy(stats, &request->stats, size < sizeof *stats ? size : sizeof *stats);
  stats->struct_size = size;
  return ZENPS_OK;
}

zenps_status_t zenps_request_partition_nnz(const zenps_request_t *request, uint32_t *sent, uint32_t *in_union) {
  const zenps_status_t status = check_done(request, "zenps_request_partition_nnz");
  if (status != ZENPS_OK) return status;
  /* The arrays are as large as the tensor that the caller has asks for, whatever the step ran as. */
  const size_t bytes = request->n_parts * sizeof *sent;
  if (!request->has_parts) {
    if (sent) memset(sent, 0, bytes);
    if (in_union) memset(in_union, 0, bytes);
    return ZENPS_OK;
  }
  if (sent) memcpy(sent, request->sent, bytes);
  if (in_union) memcpy(in_union, request->in_union, bytes);
  return ZENPS_OK;
}

zenps_status_t zps_worker_request_check(const struct zenps_request *request, const zenps_grad_t *rows,
                                        const char *call) {
  const zenps_status_t status = check_done(request, call);
  if (status != ZENPS_OK || (rows && rows->struct_size >= sizeof *rows)) return status;
  return zps_worker_fail(ZPS_ERR_INVALID, "%s: the zenps_grad_t is NULL, or not initialised with ZENPS_GRAD_INIT()",
                         call);
}

zenps_status_t zenps_request_contributed(const zenps_request_t *request, zenps_grad_t *rows) {
  const zenps_status_t status = zps_worker_request_check(request, rows, "zenps_request_contributed");
  if (status != ZENPS_OK) return status;
  if (request->error.status != ZENPS_OK) return zps_worker_raise_detail(&request->error);
  if (!request->contributed)
    return zps_worker_fail(ZPS_ERR_UNSUPPORTED,
                           "zenps_request_contributed: tensor %s was not opened with the option contributed, or its "
                           "scheme %s keeps all rows",
                           request->error.tensor, request->stats.scheme);
  rows->layout = ZENPS_ROWS;
  rows->memory = ZENPS_HOST;
  rows->nnz = rows->capacity = request->n_contributed;
  rows->row_ids = request->contributed;
  rows->values = NULL;
  return ZENPS_OK;
}

zenps_status_t zenps_request_late(const zenps_request_t *request, int *ranks, uint32_t capacity, uint32_t *n) {
  const zenps_status_t status = check_done(request, "zenps_request_late");
  if (status != ZENPS_OK) return status;
  if (!n || (capacity > 0 && !ranks))
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_request_late: n is NULL, or ranks is, and capacity is not 0");
  if (request->error.status != ZENPS_OK) return zps_worker_raise_detail(&request->error);
  if (request->n_late_bytes > 0 && !request->late)
    return zps_worker_fail(ZPS_ERR_NOMEM, "zenps_request_late: there was no memory to keep the late ranks");
  *n = 0;
  for (uint32_t rank = 0; rank < 8 * request->n_late_bytes; rank++) {
    if (!(request->late[rank / 8] >> rank % 8 & 1)) continue;
    if (*n < capacity) ranks[*n] = (int)rank;
    (*n)++;
  }
  return ZENPS_OK;
}
