#include "worker/device/staging.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/container.h"
#include "common/base/text.h"

/* Schemes that send zeros write them, too; the others list their rows. */
static bool lists_rows(const struct zps_round *round) {
  return round->out->layout == ZENPS_ROWS || (round->tensor->peer && !round->tensor->sends_zeros);
}

void zps_staging_setup(struct zps_staging *staging, struct zps_round *round) {
  const bool is_needed = round->tensor->works_in_host;
  staging->fetches = is_needed && round->in.memory == ZENPS_DEVICE;
  staging->delivers = is_needed && round->out->memory == ZENPS_DEVICE;
  staging->is_started = false;
  staging->keeps_zeros = false;
  staging->in.as_given = round->tensor->keeps_zero_rows;
  if (!staging->delivers) return;
  staging->result = round->out;
  staging->host = *round->out;
  staging->host.memory = ZENPS_HOST;
  staging->host.layout = lists_rows(round) ? ZENPS_ROWS : ZENPS_DENSE;
  staging->host.row_ids = NULL;
  staging->host.values = NULL;
  staging->keeps_zeros = staging->host.layout != round->out->layout;
  round->out = &staging->host;
}

zps_err_t zps_staging_begin(struct zps_staging *staging, struct zps_round *round, struct zps_error *error) {
  const uint64_t bytes = zps_tensor_shape_bytes(&round->tensor->shape);
  if (!staging->delivers || staging->host.layout == ZENPS_ROWS) return ZPS_OK;
  if (zps_buffer_need(&staging->dense, bytes, 1) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_NOMEM, "no host memory for a result of %" PRIu64 " bytes", bytes);
  staging->host.values = staging->dense.data;
  return ZPS_OK;
}

/* The error names the operation that failed: the round's own text says only that the round failed. */
static void fail(struct zps_round_task *task, const char *step, const struct zps_error *why) {
  struct zps_error error;
  zps_fail(&error, why->code, "%s: %s", step, why->text);
  zps_round_task_fail(task, &error);
}

bool zps_staging_fetch(struct zps_staging *staging, struct zps_round_task *task) {
  struct zps_round *const round = task->round;
  zenps_grad_t host;
  struct zps_error error;
  if (!staging->fetches) return true;
  if (zps_host_in_run(&staging->in, round->device, &round->tensor->shape, &round->in, false, round->deadline_ns, &host,
                      &error) != ZPS_OK) {
    fail(task, "bringing the gradient from device memory", &error);
    return false;
  }
  round->in = host;
  return true;
}

static void deliver_run(struct zps_round_task *task) {
  struct zps_staging *const staging = zps_container_of(task, struct zps_staging, task);
  struct zps_round *const round = task->round;
  struct zps_error error;
  zenps_grad_t to = *staging->result;
  if (to.layout == ZENPS_ROWS && to.row_ids && !zps_round_rows_fit(round, staging->host.nnz))
    to.row_ids = to.values = NULL; /* ours */
  const zps_err_t code = zps_host_out_run(&staging->out, round->device, &round->tensor->shape, &staging->host, &to,
                                          round->deadline_ns, &error);
  if (code != ZPS_OK) fail(task, "bringing the result to device memory", &error);
}

bool zps_staging_deliver(struct zps_staging *staging, struct zps_round *round) {
  if (!staging->delivers || staging->is_started || round->machine->state != ZPS_MACHINE_DONE) return false;
  staging->is_started = true;
  staging->host.nnz = round->stats.nnz_out;
  if (staging->host.layout == ZENPS_ROWS) {
    staging->host.row_ids = round->row_arrays.rows.data;
    staging->host.values = round->row_arrays.values.data;
  }
  round->out = staging->result;
  staging->task = (struct zps_round_task){.round = round, .run = deliver_run};
  zps_round_task_start(&staging->task, round->device->out_pool);
  return true;
}

void zps_staging_finish(struct zps_staging *staging, struct zps_round *round, bool ok) {
  if (!staging->delivers) return;
  zps_row_arrays_give(&round->row_arrays);
  if (ok) {
    zps_round_give_on_device(round, &staging->out.rows, &staging->out.values);
  } else if (staging->is_started) {
    round->reason.n_ranks = 0;
    round->reason.text[0] = '\0';
    zps_text_add(round->reason.text, sizeof round->reason.text, "%s", round->work_error.text);
  }
}

void zps_staging_fini(struct zps_staging *staging, struct zps_worker_device *device) {
  zps_host_in_fini(&staging->in, device);
  zps_host_out_fini(&staging->out, device);
  zps_buffer_fini(&staging->dense);
}
