#include "worker/job.h"
#include "worker/tensor.h"

static void destroy_list(struct zps_worker_round *round) {
  for (struct zps_worker_round *next; round; round = next) {
    next = round->tensor_next;
    zps_worker_round_destroy(round);
  }
}

void zps_worker_tensor_rounds_destroy(struct zenps_tensor *tensor) {
  destroy_list(tensor->active);
  destroy_list(tensor->spare);
  for (unsigned i = 0; i < ZPS_ROW_ARRAYS_SPARE; i++) zps_row_arrays_fini(&tensor->spare_arrays[i]);
}

static void list_add(struct zps_worker_round **list, struct zps_worker_round *round) {
  round->tensor_next = *list;
  round->tensor_prev_p = list;
  if (*list) (*list)->tensor_prev_p = &round->tensor_next;
  *list = round;
}

static void list_remove(struct zps_worker_round *round) {
  *round->tensor_prev_p = round->tensor_next;
  if (round->tensor_next) round->tensor_next->tensor_prev_p = round->tensor_prev_p;
}

zps_err_t zps_worker_tensor_round_get(struct zenps_tensor *tensor, uint64_t step, struct zps_worker_round **round_p) {
  for (const struct zps_worker_round *round = tensor->active; round; round = round->tensor_next) {
    if (round->step == step) return ZPS_ERR_BUSY;
  }
  if (tensor->n_active >= ZPS_TENSOR_ROUNDS_MAX) return ZPS_ERR_AGAIN;
  if (tensor->scheme && tensor->scheme->scheme->stateful) {
    if (step < tensor->next_step) return ZPS_ERR_STALE;
    tensor->next_step = step + 1;
  }
  struct zps_worker_round *round = tensor->spare;
  if (round) {
    list_remove(round);
  } else {
    const zps_err_t err = zps_worker_round_create(tensor, &round);
    if (err != ZPS_OK) return err;
  }
  round->step = step;
  list_add(&tensor->active, round);
  tensor->n_active++;
  *round_p = round;
  return ZPS_OK;
}

void zps_worker_tensor_round_put(struct zenps_tensor *tensor, struct zps_worker_round *round) {
  struct zenps_job *const job = tensor->job;
  pthread_mutex_lock(&job->lock);
  list_remove(round);
  list_add(&tensor->spare, round);
  job->n_serving -= round->serving;
  round->serving = false;
  tensor->n_active--;
  pthread_mutex_unlock(&job->lock);
  pthread_cond_broadcast(&job->done);
}
