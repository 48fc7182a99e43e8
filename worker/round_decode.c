/* The sums are here: from slices to the result. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/codec/decode.h"
#include "worker/device.h"
#include "worker/job.h"
#include "worker/plane.h"
#include "worker/round.h"
#include "worker/tensor.h"

static void clear_run(struct zps_worker_task *task) {
  const struct zps_worker_round *round = task->round;
  zps_decode_dense_clear(round->out->values, zps_worker_tensor_dense_bytes(round->tensor), task->arg, round->n_pieces);
}

static void clear_done(struct zps_worker_task *task) {
  struct zps_worker_round *round = task->round;
  if (--round->n_clears == 0) zps_worker_round_event(round, ZPS_SCHEME_CLEARED, 0, 0, ZPS_OK);
}

void zps_worker_round_clear(struct zps_worker_round *round) {
  struct zps_workpool *pool = round->plane->pool;
  if (zps_worker_tensor_dense_bytes(round->tensor) <= ZPS_SMALL_DENSE_BYTES) pool = NULL;
  round->n_clears = round->n_pieces = pool ? zps_workpool_threads(pool) : 1;
  for (unsigned i = 0; i < round->n_pieces; i++) zps_worker_task_start(&round->clears[i], pool);
}

/* The payload is a peer's: nothing of it is used before it was checked. */
static bool view(struct zps_worker_task *task, uint32_t p) {
  struct zps_worker_round *round = task->round;
  const struct zps_worker_part *part = &round->parts[p];
  const struct zenps_tensor *tensor = round->tensor;
  struct zps_error error;
  const zps_err_t err =
      zps_slice_view_init(&round->views[p], part->result.codec, part->m, part->result.nnz, tensor->width, tensor->dtype,
                          tensor->value_codec, part->sum, part->result.len_bytes, &error);
  if (err == ZPS_OK) return true;
  struct zps_error named;
  const uint32_t server = tensor->owners[p];
  zps_fail(&named, err, "the sum of partition %" PRIu32 " from server %u (%s) is malformed: %s", p, server,
           round->plane->servers[server].name, error.text);
  zps_worker_task_fail(task, &named);
  return false;
}

static void dense_run(struct zps_worker_task *task) {
  struct zps_worker_round *round = task->round;
  if (view(task, task->arg)) {
    zps_decode_dense_cut(&round->tensor->part, task->arg, &round->views[task->arg], round->out->values,
                         zps_worker_tensor_dense_bytes(round->tensor));
  }
}

static void dense_done(struct zps_worker_task *task) {
  zps_worker_part_put_pull_buf(&task->round->parts[task->arg]);
  zps_worker_round_event(task->round, ZPS_SCHEME_DECODED, task->arg, 0, ZPS_OK);
}

static uint32_t stripe_parts(const struct zps_worker_round *round) {
  return round->tensor->part.stripe_parts;
}

static void stripe_run(struct zps_worker_task *task) {
  struct zps_worker_round *round = task->round;
  const struct zenps_tensor *tensor = round->tensor;
  const uint32_t first = task->arg * stripe_parts(round);
  for (uint32_t p = first; p < first + stripe_parts(round); p++)
    if (!view(task, p)) return;
  if (zps_decode_dense_stripe(&tensor->part, task->arg, round->views, round->out->values,
                              zps_worker_tensor_dense_bytes(tensor)) == ZPS_OK)
    return;
  struct zps_error error;
  zps_fail(&error, ZPS_ERR_NOMEM, "no memory to decode %" PRIu32 " sums together", stripe_parts(round));
  zps_worker_task_fail(task, &error);
}

static void stripe_done(struct zps_worker_task *task) {
  struct zps_worker_round *round = task->round;
  const uint32_t first = task->arg * stripe_parts(round);
  for (uint32_t p = first; p < first + stripe_parts(round); p++) {
    zps_worker_part_put_pull_buf(&round->parts[p]);
    zps_worker_round_event(round, ZPS_SCHEME_DECODED, p, 0, ZPS_OK);
  }
}

void zps_worker_round_decode_stripe(struct zps_worker_round *round, uint32_t stripe) {
  zps_worker_task_start(&round->stripes[stripe], round->plane->pool);
}

zps_err_t zps_worker_rows_fit(struct zps_worker_round *round, uint64_t nnz, struct zps_error *error) {
  if (nnz <= round->out->capacity) return ZPS_OK;
  round->needed = nnz;
  return zps_fail(error, ZPS_ERR_TRUNCATED, "the result has %" PRIu64 " rows, but the caller's arrays hold %" PRIu64,
                  nnz, round->out->capacity);
}

bool zps_worker_rows_get(struct zps_worker_task *task, uint64_t nnz, int64_t **rows_p, void **values_p) {
  struct zps_worker_round *round = task->round;
  const zenps_grad_t *out = round->out;
  struct zps_error error;
  if (out->row_ids) {
    *rows_p = out->row_ids;
    *values_p = out->values;
    if (zps_worker_rows_fit(round, nnz, &error) == ZPS_OK) return true;
  } else {
    const zps_err_t err = zps_row_arrays_take(round->tensor, nnz, &round->row_arrays);
    *rows_p = round->row_arrays.rows.data;
    *values_p = round->row_arrays.values.data;
    if (err == ZPS_OK) return true;
    zps_fail(&error, ZPS_ERR_NOMEM, "no memory for a result of %" PRIu64 " rows", nnz);
  }
  zps_worker_task_fail(task, &error);
  return false;
}

/* Out of the blocks, the rows that are not zero. */
static zps_err_t rows_of_blocks(struct zps_worker_task *task, uint64_t n_blocks) {
  struct zps_worker_round *round = task->round;
  const struct zenps_tensor *tensor = round->tensor;
  const size_t n = n_blocks ? (size_t)n_blocks : 1;
  int64_t *ids = malloc(n * sizeof *ids), *rows;
  void *blocks = malloc(n * tensor->width * zps_dtype_size(tensor->dtype)), *values;
  zps_err_t err = ids && blocks ? zps_decode_rows(&tensor->part, round->views, round->plane->pool,
                                                  &round->decode_scratch, ids, blocks)
                                : ZPS_ERR_NOMEM;
  if (err == ZPS_OK) {
    round->stats.nnz_out = zps_blocks_rows(&tensor->shape, ids, blocks, n_blocks, NULL, NULL);
    if (zps_worker_rows_get(task, round->stats.nnz_out, &rows, &values))
      zps_blocks_rows(&tensor->shape, ids, blocks, n_blocks, rows, values);
  }
  free(ids);
  free(blocks);
  return err;
}

static void rows_run(struct zps_worker_task *task) {
  struct zps_worker_round *round = task->round;
  if (round->out->memory == ZENPS_DEVICE) {
    zps_device_pull_decode(task);
    return;
  }
  const uint32_t n_parts = round->tensor->part.n_parts;
  int64_t *rows;
  void *values;
  for (uint32_t p = 0; p < n_parts; p++) {
    if (!view(task, p)) return;
  }
  zps_err_t err;
  if (round->tensor->served->blocks) {
    err = rows_of_blocks(task, round->stats.nnz_out);
  } else {
    if (!zps_worker_rows_get(task, round->stats.nnz_out, &rows, &values)) return;
    err = zps_decode_rows(&round->tensor->part, round->views, round->plane->pool, &round->decode_scratch, rows, values);
  }
  if (err != ZPS_OK) {
    struct zps_error error;
    zps_fail(&error, ZPS_ERR_NOMEM, "no memory to merge the sums of %" PRIu32 " partitions", n_parts);
    zps_worker_task_fail(task, &error);
  }
}

static void rows_done(struct zps_worker_task *task) {
  struct zps_worker_round *round = task->round;
  for (uint32_t p = 0; p < round->tensor->part.n_parts; p++) zps_worker_part_put_pull_buf(&round->parts[p]);
  zps_worker_round_event(round, ZPS_SCHEME_DECODED, ZPS_SCHEME_ALL, 0, ZPS_OK);
}

void zps_worker_round_decode(struct zps_worker_round *round, uint32_t partition) {
  const struct zenps_tensor *tensor = round->tensor;
  struct zps_workpool *pool = round->plane->pool;
  if (partition == ZPS_SCHEME_ALL) {
    if (round->stats.nnz_out <= ZPS_SMALL_BYTES / (tensor->width * zps_dtype_size(tensor->dtype))) pool = NULL;
    if (round->out->memory == ZENPS_DEVICE) pool = round->device->out_pool;
    zps_worker_task_start(&round->whole, pool);
    return;
  }
  if (round->parts[partition].result.is_inline) pool = NULL;
  struct zps_worker_task *task = &round->parts[partition].task;
  task->run = dense_run;
  task->done = dense_done;
  zps_worker_task_start(task, pool);
}

void zps_worker_round_decode_init(struct zps_worker_round *round) {
  round->whole = (struct zps_worker_task){.round = round, .run = rows_run, .done = rows_done};
  for (uint32_t i = 0; i < zps_partition_stripes(&round->tensor->part); i++)
    round->stripes[i] = (struct zps_worker_task){.round = round, .run = stripe_run, .done = stripe_done, .arg = i};
  for (unsigned i = 0; i < zps_workpool_threads(round->plane->pool); i++) {
    round->clears[i] = (struct zps_worker_task){.round = round, .run = clear_run, .done = clear_done, .arg = i};
  }
}
