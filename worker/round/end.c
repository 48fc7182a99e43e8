#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"

/* A round that is done may still fail to bring its result to where the caller wants it. */
static zps_err_t code_of(const struct zps_round *round) {
  if (round->machine->state != ZPS_MACHINE_DONE) return round->machine->code;
  return round->has_work_error ? round->work_error.code : ZPS_OK;
}

static void describe(const struct zps_round *round, zenps_error_t *error) {
  const struct zps_round_tensor *tensor = round->tensor;
  const zps_err_t code = code_of(round);
  error->status = (zenps_status_t)code;
  error->needed = round->needed;
  for (uint32_t i = 0; i < round->reason.n_ranks && i < sizeof error->missing_ranks / sizeof error->missing_ranks[0];
       i++) {
    error->missing_ranks[error->n_missing++] = round->reason.ranks[i];
  }
  zps_text_add(error->text, sizeof error->text, "job %s, tensor %s, step %" PRIu64 ": ", tensor->job, tensor->name,
               round->step);
  zps_text_add(error->text, sizeof error->text, "%s", round->reason.text);
}

static uint64_t span(uint64_t from_ns, uint64_t to_ns) {
  return from_ns && to_ns > from_ns ? to_ns - from_ns : 0;
}

static void fill_stats(struct zps_round *round, uint64_t now_ns) {
  zenps_request_stats_t *stats = &round->stats;
  stats->struct_size = sizeof *stats;
  const struct zps_round_tensor *tensor = round->tensor;
  stats->partitions = tensor->part.n_parts;
  stats->scheme = tensor->scheme;
  stats->bound_bytes = (uint64_t)(round->bound_bytes + 0.5);
  stats->total_ns = now_ns - round->start_ns;
  stats->encode_ns = span(round->start_ns, round->announced_first_ns);
  stats->push_ns = span(round->announced_first_ns, round->announced_last_ns);
  stats->wait_ns = span(round->announced_last_ns, round->result_first_ns);
  stats->pull_ns = span(round->result_first_ns, round->landed_last_ns);
  stats->decode_ns = span(round->landed_last_ns, now_ns);
}

/* ------------------------------------------------------------ the result */

zps_err_t zps_round_rows_fit(struct zps_round *round, uint64_t nnz, struct zps_error *error) {
  if (nnz <= round->out->capacity) return ZPS_OK;
  round->needed = nnz;
  return zps_fail(error, ZPS_ERR_TRUNCATED, "the result has %" PRIu64 " rows, but the caller's arrays hold %" PRIu64,
                  nnz, round->out->capacity);
}

bool zps_round_rows_get(struct zps_round_task *task, uint64_t nnz, int64_t **rows_p, void **values_p) {
  struct zps_round *round = task->round;
  const zenps_grad_t *out = round->out;
  struct zps_error error;
  if (out->row_ids) {
    *rows_p = out->row_ids;
    *values_p = out->values;
    if (zps_round_rows_fit(round, nnz, &error) == ZPS_OK) return true;
  } else {
    const struct zps_tensor_shape *shape = &round->tensor->shape;
    const zps_err_t err = zps_row_arrays_take(
        round->tensor->arrays, nnz, shape->width * (uint64_t)zps_dtype_size(shape->dtype), &round->row_arrays);
    *rows_p = round->row_arrays.rows.data;
    *values_p = round->row_arrays.values.data;
    if (err == ZPS_OK) return true;
    zps_fail(&error, ZPS_ERR_NOMEM, "no memory for a result of %" PRIu64 " rows", nnz);
  }
  zps_round_task_fail(task, &error);
  return false;
}

void zps_round_give_on_device(struct zps_round *round, void **rows_p, void **values_p) {
  if (!*rows_p) return;
  round->out->row_ids = *rows_p;
  round->out->values = *values_p;
  round->on_device.rows = *rows_p;
  round->on_device.values = *values_p;
  *rows_p = *values_p = NULL;
}

bool zps_round_finish(struct zps_round *round, uint64_t now_ns) {
  const bool ok = code_of(round) == ZPS_OK;
  zenps_error_t error = {.step = round->step};
  snprintf(error.tensor, sizeof error.tensor, "%s", round->tensor->name);
  fill_stats(round, now_ns);
  round->ops->finish(round, ok);
  if (!ok) {
    describe(round, &error);
    zps_row_arrays_give(&round->row_arrays);
    free(round->contributed.rows);
    round->contributed.rows = NULL;
  } else {
    round->out->nnz = round->stats.nnz_out;
    (round->into ? round->into : round->out)->contributors = round->contributors;
    if (round->row_arrays.rows.data) {
      round->out->row_ids = round->row_arrays.rows.data;
      round->out->values = round->row_arrays.values.data;
    }
  }
  round->serving = ok && !round->ops->quiet(round);
  round->finished = true;
  return round->owner->over(round, &error, round->serving);
}
