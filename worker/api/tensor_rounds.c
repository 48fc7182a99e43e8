#include "common/base/clock.h"
#include "common/base/container.h"
#include "worker/api/job.h"
#include "worker/api/tensor.h"

/* A round's lists are as large as the rows it had: of schemes that were tried, and left, nobody needs them any more. */
#define IDLE_NS ZPS_SLAB_IDLE_NS

static uint64_t idle_ns(const struct zps_plane *plane, uint64_t now_ns) {
  return now_ns < plane->trim_until_ns ? plane->trim_ns : IDLE_NS;
}

static void destroy_list(struct zps_round *round) {
  for (struct zps_round *next; round; round = next) {
    next = round->tensor_next;
    zps_round_destroy(round);
  }
}

static void arrays_fini(struct zenps_tensor *tensor) {
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE; i++) zps_row_arrays_fini(&tensor->spare_arrays[i]);
}

void zps_worker_tensor_rounds_destroy(struct zenps_tensor *tensor) {
  destroy_list(tensor->active);
  destroy_list(tensor->spare);
  arrays_fini(tensor);
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

zps_err_t zps_worker_tensor_round_get(struct zenps_tensor *tensor, uint64_t step, struct zps_round **round_p) {
  for (const struct zps_round *round = tensor->active; round; round = round->tensor_next) {
    if (round->step == step) return ZPS_ERR_BUSY;
  }
  if (tensor->n_active >= ZPS_TENSOR_ROUNDS_MAX) return ZPS_ERR_AGAIN;
  if (tensor->scheme && tensor->scheme->scheme->stateful) {
    if (step < tensor->next_step) return ZPS_ERR_STALE;
    tensor->next_step = step + 1;
  }
  struct zps_round *round = tensor->spare;
  if (round) {
    list_remove(round);
  } else {
    const zps_err_t err = zps_round_create(tensor, &round);
    if (err != ZPS_OK) return err;
  }
  round->step = step;
  list_add(&tensor->active, round);
  tensor->n_active++;
  *round_p = round;
  return ZPS_OK;
}

void zps_worker_tensor_round_put(struct zenps_tensor *tensor, struct zps_round *round) {
  struct zenps_job *const job = tensor->job;
  pthread_mutex_lock(&job->lock);
  list_remove(round);
  list_add(&tensor->spare, round);
  round->spare_since_ns = zps_clock_ns();
  if (job->plane.age_ns == ZPS_NEVER)
    job->plane.age_ns = round->spare_since_ns + idle_ns(&job->plane, round->spare_since_ns);
  job->n_serving -= round->serving;
  round->serving = false;
  tensor->n_active--;
  pthread_mutex_unlock(&job->lock);
  pthread_cond_broadcast(&job->done);
}

/* Memory of the device stays: to free it waits for everything that runs there. */
static bool may_age(const struct zps_round *round) {
  return !round->device;
}

/* Takes a round that is due out of its tensor; else NULL, and at most *next_ns is when one will be. */
static struct zps_round *take_old(struct zenps_tensor *tensor, uint64_t now_ns, uint64_t *next_ns) {
  for (struct zps_round *round = tensor->spare; round; round = round->tensor_next) {
    const uint64_t until_ns = round->spare_since_ns + idle_ns(&tensor->job->plane, now_ns);
    if (!may_age(round)) continue;
    if (until_ns <= now_ns) {
      list_remove(round);
      if (!tensor->active && !tensor->spare) arrays_fini(tensor);
      return round;
    }
    if (until_ns < *next_ns) *next_ns = until_ns;
  }
  return NULL;
}

uint64_t zps_worker_tensors_age(struct zps_plane *plane, uint64_t now_ns) {
  struct zenps_job *const job = zps_container_of(plane, struct zenps_job, plane);
  struct zps_round *old = NULL;
  uint64_t next_ns = ZPS_NEVER;
  pthread_mutex_lock(&job->lock);
  for (struct zenps_tensor *tensor = job->tensors; tensor && !old; tensor = tensor->next)
    old = take_old(tensor, now_ns, &next_ns);
  pthread_mutex_unlock(&job->lock);
  zps_round_destroy(old);
  return old ? now_ns : next_ns;
}

void zps_worker_tensors_trim(struct zps_plane *plane, uint64_t keep_ns, uint64_t now_ns) {
  plane->trim_ns = keep_ns;
  plane->trim_until_ns = now_ns + IDLE_NS;
  if (plane->age_ns != ZPS_NEVER) plane->age_ns = now_ns;
}
