#include "worker/round_detour.h"

#include <inttypes.h>
#include <stdlib.h>

#include "worker/device.h"
#include "worker/round.h"
#include "worker/scheme_of.h"
#include "worker/tensor.h"

bool zps_detour_is_needed(const struct zenps_tensor *tensor) {
  return tensor->scheme || tensor->served->all_rows || tensor->served->blocks;
}

/* Schemes that send zeros write them, too; the others list their rows. */
static bool lists_rows(const struct zps_worker_round *round) {
  const struct zenps_tensor *const tensor = round->tensor;
  return round->out->layout == ZENPS_ROWS || (tensor->scheme && !tensor->scheme->scheme->dense);
}

void zps_round_detour_setup(struct zps_worker_round *round) {
  struct zps_round_detour *const detour = &round->detour;
  const bool is_needed = zps_detour_is_needed(round->tensor);
  detour->fetches = is_needed && round->in.memory == ZENPS_DEVICE;
  detour->delivers = is_needed && round->out->memory == ZENPS_DEVICE;
  detour->is_started = false;
  detour->keeps_zeros = false;
  if (!detour->delivers) return;
  detour->result = round->out;
  detour->host = *round->out;
  detour->host.memory = ZENPS_HOST;
  detour->host.layout = lists_rows(round) ? ZENPS_ROWS : ZENPS_DENSE;
  detour->host.row_ids = NULL;
  detour->host.values = NULL;
  detour->keeps_zeros = detour->host.layout != round->out->layout;
  round->out = &detour->host;
}

zps_err_t zps_round_detour_begin(struct zps_worker_round *round, struct zps_error *error) {
  struct zps_round_detour *const detour = &round->detour;
  const uint64_t bytes = zps_worker_tensor_dense_bytes(round->tensor);
  if (!detour->delivers || detour->host.layout == ZENPS_ROWS) return ZPS_OK;
  if (zps_buffer_need(&detour->dense, bytes, 1) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_NOMEM, "no host memory for a result of %" PRIu64 " bytes", bytes);
  detour->host.values = detour->dense.data;
  return ZPS_OK;
}

/* What it says names the step, for whoever knows no more than that the round failed. */
static void fail(struct zps_worker_task *task, const char *step, const struct zps_error *why) {
  struct zps_error error;
  zps_fail(&error, why->code, "%s: %s", step, why->text);
  zps_worker_task_fail(task, &error);
}

bool zps_round_detour_fetch(struct zps_worker_task *task) {
  struct zps_worker_round *const round = task->round;
  zenps_grad_t host;
  struct zps_error error;
  if (!round->detour.fetches) return true;
  if (zps_detour_in_run(&round->detour.in, round->device, &round->tensor->shape, &round->in, false, round->deadline_ns,
                        &host, &error) != ZPS_OK) {
    fail(task, "bringing the gradient from device memory", &error);
    return false;
  }
  round->in = host;
  return true;
}

static void deliver_run(struct zps_worker_task *task) {
  struct zps_worker_round *const round = task->round;
  struct zps_round_detour *const detour = &round->detour;
  struct zps_error error;
  zps_err_t code = ZPS_OK;
  if (detour->result->layout == ZENPS_ROWS && detour->result->row_ids)
    code = zps_worker_rows_fit(round, detour->host.nnz, &error);
  if (code != ZPS_OK) {
    zps_worker_task_fail(task, &error);
    return;
  }
  code = zps_detour_out_run(&detour->out, round->device, &round->tensor->shape, &detour->host, detour->result,
                            round->deadline_ns, &error);
  if (code != ZPS_OK) fail(task, "bringing the result to device memory", &error);
}

bool zps_round_detour_deliver(struct zps_worker_round *round) {
  struct zps_round_detour *const detour = &round->detour;
  if (!detour->delivers || detour->is_started || round->scheme->state != ZPS_SCHEME_DONE) return false;
  detour->is_started = true;
  detour->host.nnz = round->stats.nnz_out;
  if (detour->host.layout == ZENPS_ROWS) {
    detour->host.row_ids = round->row_arrays.rows.data;
    detour->host.values = round->row_arrays.values.data;
  }
  round->out = detour->result;
  round->deliver = (struct zps_worker_task){.round = round, .run = deliver_run};
  zps_worker_task_start(&round->deliver, round->device->out_pool);
  return true;
}

void zps_round_detour_finish(struct zps_worker_round *round, bool ok) {
  struct zps_round_detour *const detour = &round->detour;
  if (!detour->delivers) return;
  zps_row_arrays_give(round->tensor, &round->row_arrays);
  if (ok) {
    round->device_pull.rows = detour->out.rows;
    round->device_pull.values = detour->out.values;
    detour->out.rows = detour->out.values = NULL;
  } else if (detour->is_started) {
    round->reason.n_ranks = 0;
    round->reason.text[0] = '\0';
    zps_worker_say(round->reason.text, sizeof round->reason.text, "%s", round->work_error.text);
  }
}

void zps_round_detour_fini(struct zps_worker_round *round) {
  zps_detour_in_fini(&round->detour.in, round->device);
  zps_detour_out_fini(&round->detour.out, round->device);
  zps_buffer_fini(&round->detour.dense);
}
