#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"

/* A round that is done may still fail to bring its result to where the caller wants it. */
static zps_err_t code_of(const struct zps_round *round) {
  if (round->machine->state != ZPS_MACHINE_DONE) return round->machine->code;
  return round->has_work_error ? round->work_error.code : ZPS_OK;
}

static void name(const struct zps_round *round, zenps_error_t *error) {
  zps_text_add(error->text, sizeof error->text, "job %s, tensor %s, step %" PRIu64 ": ", round->tensor->job,
               round->tensor->name, round->step);
}

static void describe(const struct zps_round *round, zenps_error_t *error) {
  const zps_err_t code = code_of(round);
  error->status = (zenps_status_t)code;
  for (uint32_t i = 0; i < round->reason.n_ranks && i < sizeof error->missing_ranks / sizeof error->missing_ranks[0];
       i++) {
    error->missing_ranks[error->n_missing++] = round->reason.ranks[i];
  }
  name(round, error);
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
  stats->step = round->sum_step;
  stats->bound_bytes = (uint64_t)(round->bound_bytes + 0.5);
  stats->total_ns = now_ns - round->start_ns;
  stats->encode_ns = span(round->start_ns, round->announced_first_ns);
  stats->push_ns = span(round->announced_first_ns, round->announced_last_ns);
  stats->wait_ns = span(round->announced_last_ns, round->result_first_ns);
  stats->pull_ns = span(round->result_first_ns, round->landed_last_ns);
  stats->decode_ns = span(round->landed_last_ns, now_ns);
}

/* ------------------------------------------------------------ the result */

bool zps_round_rows_fit(struct zps_round *round, uint64_t nnz) {
  round->needed = nnz > round->out->capacity ? nnz : 0;
  return round->needed == 0;
}

bool zps_round_rows_get(struct zps_round_task *task, uint64_t nnz, int64_t **rows_p, void **values_p) {
  struct zps_round *round = task->round;
  const zenps_grad_t *out = round->out;
  const struct zps_tensor_shape *shape = &round->tensor->shape;
  struct zps_error error;
  if (out->row_ids && zps_round_rows_fit(round, nnz)) {
    *rows_p = out->row_ids;
    *values_p = out->values;
    return true;
  }
  if (zps_row_arrays_take(round->tensor->arrays, nnz, zps_row_bytes(shape->width, shape->dtype), &round->row_arrays) ==
      ZPS_OK) {
    *rows_p = round->row_arrays.rows.data;
    *values_p = round->row_arrays.values.data;
    return true;
  }
  zps_fail(&error, ZPS_ERR_NOMEM, "no memory for a result of %" PRIu64 " rows", nnz);
  zps_round_task_fail(task, &error);
  return false;
}

void zps_round_rows_written(struct zps_round *round, uint64_t nnz) {
  const struct zps_tensor_shape *shape = &round->tensor->shape;
  round->stats.nnz_out = nnz;
  if (round->needed == 0 || !zps_round_rows_fit(round, nnz)) return;
  memcpy(round->out->row_ids, round->row_arrays.rows.data, nnz * sizeof *round->out->row_ids);
  memcpy(round->out->values, round->row_arrays.values.data, nnz * zps_row_bytes(shape->width, shape->dtype));
  zps_row_arrays_give(&round->row_arrays);
}

void zps_round_give_on_device(struct zps_round *round, void **rows_p, void **values_p) {
  if (!*rows_p) return;
  round->on_device.rows = *rows_p;
  round->on_device.values = *values_p;
  *rows_p = *values_p = NULL;
}

static void describe_kept(const struct zps_round *round, zenps_error_t *error) {
  error->status = ZENPS_ERR_TRUNCATED;
  error->needed = round->needed;
  name(round, error);
  if (round->reason.text[0] != '\0')
    zps_text_add(error->text, sizeof error->text, "%s", round->reason.text);
  else
    zps_text_add(error->text, sizeof error->text,
                 "the result has %" PRIu64 " rows, but the caller's arrays hold %" PRIu64, round->needed,
                 round->out->capacity);
  zps_text_add(error->text, sizeof error->text, "; it is kept for zenps_request_fetch()");
}

/* The caller's arrays have it, or it is in ours. */
static void show(const struct zps_round *round) {
  round->out->nnz = round->stats.nnz_out;
  (round->into ? round->into : round->out)->contributors = round->contributors;
  if (round->row_arrays.rows.data) {
    round->out->row_ids = round->row_arrays.rows.data;
    round->out->values = round->row_arrays.values.data;
  }
  if (round->on_device.rows) {
    round->out->row_ids = round->on_device.rows;
    round->out->values = round->on_device.values;
  }
}

/* A list of which a part has no room stays one list, for who fetches it. */
static void split_run(struct zps_round_task *task) {
  struct zps_round *const round = task->round;
  const struct zps_tensor_shape *const shape = &round->tensor->shape;
  const uint64_t row_bytes = zps_row_bytes(shape->width, shape->dtype);
  struct zps_error error;
  if (round->out->layout == ZENPS_DENSE) {
    zps_out_parts_dense(round->split, row_bytes, round->out->values);
  } else if (zps_out_parts_rows(round->split, row_bytes, round->row_arrays.rows.data, round->row_arrays.values.data,
                                round->stats.nnz_out, &error) != ZPS_OK) {
    round->needed = round->stats.nnz_out;
    zps_text_add(round->reason.text, sizeof round->reason.text, "%s", error.text);
  }
}

bool zps_round_deal(struct zps_round *round) {
  if (!round->split || round->is_split || code_of(round) != ZPS_OK) return false;
  round->is_split = true;
  round->split_task = (struct zps_round_task){.round = round, .run = split_run};
  zps_round_task_start(&round->split_task, round->plane->pool);
  return true;
}

bool zps_round_finish(struct zps_round *round, uint64_t now_ns) {
  const bool ok = code_of(round) == ZPS_OK;
  zenps_error_t error = {.step = round->step};
  snprintf(error.tensor, sizeof error.tensor, "%s", round->tensor->name);
  fill_stats(round, now_ns);
  if (round->rounds) zps_past_note_end(&round->rounds->past, round, code_of(round), now_ns);
  round->ops->finish(round, ok);
  if (!ok) {
    describe(round, &error);
    zps_row_arrays_give(&round->row_arrays);
    free(round->contributed.rows);
    round->contributed.rows = NULL;
  } else if (round->needed > 0) {
    describe_kept(round, &error);
  } else {
    show(round);
  }
  round->serving = ok && !round->ops->quiet(round);
  round->finished = true;
  return round->owner->over(round, &error, round->serving);
}
